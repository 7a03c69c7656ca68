//! What a holder changes in its own lease: the statements.

use async_trait::async_trait;
use sqlx::{MySqlConnection, Row};
use uuid::Uuid;

use super::listener::wake_first;
use super::lock_row::row_ends;
use super::statement::{fill, hex, in_one_transaction, rows_and_changes};
use crate::model::Name;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::hold::{HoldOutcome, HoldStore, RaiseParams, RunOutParams};
use crate::store::verbs::time::to_micros;

/// Changes the row of a live grant of the ask. As in `lease.rs`, a derived table skips a locked row.
macro_rules! mine {
    () => {
        "
UPDATE (
    SELECT f.name FROM rowlock_lock f FORCE INDEX (PRIMARY)
    WHERE f.name = ? AND f.grant_id = ? AND f.expires_at > SYSDATE(6)
      AND (f.session_id IS NULL
           OR EXISTS (SELECT 1 FROM rowlock_session s WHERE s.id = f.session_id AND s.expires_at > SYSDATE(6)))
    LIMIT 1
    FOR UPDATE SKIP LOCKED
) t
STRAIGHT_JOIN rowlock_lock l FORCE INDEX (PRIMARY) ON l.name = t.name
SET "
    };
}

const RAISE: &str = concat!(mine!(), "l.fence = GREATEST(l.fence + 1, ?)");

const RUN_OUT: &str = concat!(
    mine!(),
    "l.grant_id = ?, l.expires_at = SYSDATE(6) + INTERVAL ? MICROSECOND, l.session_id = NULL"
);

/// The fence of the ask's live grant; no row: there is none. (A subquery that the server cuts is empty, and the grant
/// would look lost: so this has none.)
const READ: &str = concat!(
    "SELECT l.fence FROM rowlock_lock l FORCE INDEX (PRIMARY)
     LEFT JOIN rowlock_session s ON s.id = l.session_id
     WHERE l.name = ? AND l.grant_id = ? AND ",
    row_ends!(),
    " > SYSDATE(6)"
);

/// An earlier sending has given the row to this reservation.
const IS_RESERVED: &str = "SELECT 1 FROM rowlock_lock WHERE name = ? AND grant_id = ?";

#[async_trait]
impl HoldStore for MySqlConnection {
    async fn hold_raise(&mut self, params: &RaiseParams) -> Result<HoldOutcome<i64>, Fault> {
        let mine = [hex(params.name.as_bytes()), hex(params.grant_id.as_bytes())];
        let [name, id] = mine.clone();
        let raise = fill(RAISE, &[name, id, params.at_least.to_string()]);
        let text = format!("{raise}; {}", fill(READ, &mine));
        let (rows, changed) = rows_and_changes(self, text).await?;
        match rows.first() {
            Some(row) if changed > 0 => Ok(HoldOutcome::Done(row.try_get(0)?)),
            row => Ok(HoldOutcome::missed(row.is_some())),
        }
    }

    async fn hold_run_out(&mut self, params: &RunOutParams) -> Result<HoldOutcome<()>, Fault> {
        let name = hex(params.name.as_bytes());
        let [id, reservation] = [params.grant_id, params.reservation].map(|id| hex(id.as_bytes()));
        let time = to_micros(params.time).to_string();
        let run_out = fill(RUN_OUT, &[name.clone(), id, reservation.clone(), time]);
        let run_out = sqlx::raw_sql(sqlx::AssertSqlSafe(run_out));
        // Those who wait for a permit wait for the name that it is one of.
        let of = params.name.of_permit();
        let of = of.as_ref().unwrap_or(&params.name);
        if run_out.execute(&mut *self).await?.rows_affected() > 0 {
            wake_first(self, of).await;
            return Ok(HoldOutcome::Done(()));
        }
        let missed = missed(&mut *self, &params.name, params.grant_id).await?;
        if missed == HoldOutcome::Gone && params.is_reserved() {
            let is_reserved = fill(IS_RESERVED, &[name, reservation]);
            if !in_one_transaction(self, &is_reserved).await?.is_empty() {
                // The first sending may have ended before it woke anybody.
                wake_first(self, of).await;
                return Ok(HoldOutcome::Done(()));
            }
        }
        Ok(missed)
    }
}

async fn missed<T>(
    conn: &mut MySqlConnection,
    name: &Name,
    id: Uuid,
) -> Result<HoldOutcome<T>, Fault> {
    let read = fill(READ, &[hex(name.as_bytes()), hex(id.as_bytes())]);
    let rows = in_one_transaction(conn, &read).await?;
    Ok(HoldOutcome::missed(!rows.is_empty()))
}
