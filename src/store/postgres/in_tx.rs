//! Locks in the caller's transaction: the statements.
//!
//! Contention must not raise an error here: after an error the caller could only roll its transaction back.
//!
//! READ COMMITTED locks the newest version of a row and checks WHERE on it afterwards; a row that fails this check
//! stays locked until the transaction ends (manual, section 13.2.1). A lease that was committed after the statement
//! began would then be locked by this transaction: its holder could neither renew nor release it, and would lose it.
//! So the transaction waits after a savepoint, and rolls back to it when a row is missing from the answer. It takes
//! several names in the same way. A lone name is taken without a savepoint, which would cost two round trips: there
//! the statement itself fails, and the server unlocks the row ([`TAKE_ONE`]).
//!
//! The application may have ended the transaction with its own COMMIT or ROLLBACK. sqlx does not notice, and each
//! statement then commits by itself, so the verbs check. Nothing in SQL tells a transaction block from a lone
//! statement (the times of both may be equal in a block, and differ outside of one). These checks do:
//!
//! - A transaction that has an id when a statement begins has written or locked before, so there is a block. `here` is
//!   MATERIALIZED and stands in the first condition, so it is read before the statement itself gets an id.
//! - A transaction with the setting `rowlock.here`, which ends with it, is a block ([`BEGIN`]).
//! - Otherwise SAVEPOINT decides, in a round trip of its own: outside of a block it is an error (manual, "SAVEPOINT").
//!
//! Under REPEATABLE READ and SERIALIZABLE a row that was changed after the transaction's snapshot cannot be locked
//! (40001): the caller begins again.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::PgConnection;
use uuid::Uuid;

use super::grant_rule::{freed, is_free, may_grant, next_fence};
use super::lock_row::{row_columns, row_ends};
use super::quarantine::quarantine_left;
use super::{each, in_callers, query_as, row_security, tx_wait};
use crate::model::{FaultKind, Name};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::in_tx::{
    FURTHEST_AHEAD, InTxStore, PinOutcome, PinParams, TxParams, TxReply, TxTaken, TxWaited,
};
use crate::store::verbs::row::LockRow;
use crate::store::verbs::time::micros;

/// Begins a transaction in which every later statement can tell that this transaction is still open.
pub(crate) const BEGIN: &str = "BEGIN; SET LOCAL rowlock.here = 'begun'";

/// Fails outside of a transaction block. Inside, later statements can then tell that the transaction is still open.
const PROVE: &str = "
SAVEPOINT rowlock_here; RELEASE SAVEPOINT rowlock_here; SET LOCAL rowlock.here = 'seen'";

/// FOR SHARE lets several transactions of one holder pin its lease at the same time. It conflicts with every UPDATE of
/// the row.
const PIN: &str = "
WITH here AS MATERIALIZED (
    SELECT pg_current_xact_id_if_assigned() IS NOT NULL
           OR COALESCE(current_setting('rowlock.here', true), '') <> '' AS proven
), mine AS (
    SELECT expires_at FROM rowlock_lock
    WHERE (SELECT proven FROM here) IS NOT NULL AND name = $1 AND grant_id = $2
    FOR SHARE SKIP LOCKED
)
SELECT d.id, m.expires_at > clock_timestamp(),
       current_setting('transaction_isolation') IN ('read committed', 'read uncommitted'),
       (SELECT proven FROM here)
FROM rowlock_database d LEFT JOIN mine m ON true";

/// The next fence of the row `l`, which is locked. Waits until the clock has passed the last one, if that is ahead by
/// less than [`FURTHEST_AHEAD`]. (A list of a SELECT … FOR UPDATE would be computed before the row is locked. The
/// inner CASE is never NULL.)
macro_rules! fence_after_wait {
    () => {
        concat!("CASE WHEN
             CASE WHEN l.fence + 1 - (extract(epoch FROM clock_timestamp()) * 1000000)::bigint BETWEEN 1 AND 40000
                  THEN pg_sleep((l.fence + 2 - (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) / 1000000.0)::text
                  ELSE '' END IS NOT NULL
             THEN ", next_fence!("l."), " END")
    };
}
const _: () = assert!(FURTHEST_AHEAD == 40_000);

/// `rowlock.locked` holds the names that this transaction was granted. The setting ends with the transaction, and is
/// rolled back with its savepoints. MATERIALIZED: it is read before it is written.
const TAKE: &str = concat!("
WITH ask AS (
    SELECT * FROM unnest($1::bytea[], $2::bigint[]) AS a (name, version)
), marks AS MATERIALIZED (
    SELECT COALESCE(bool_or(
        position(' ' || encode(name, 'hex') || ' ' IN
                 COALESCE(current_setting('rowlock.locked', true), '')) > 0), false) AS again
    FROM ask
), free AS (
    SELECT l.name FROM rowlock_lock l JOIN ask a ON a.name = l.name
    WHERE ", is_free!("l."), " AND l.capacity = 0
      AND (a.version IS NULL OR a.version = l.fence)
      AND NOT (SELECT again FROM marks) AND ", may_grant!(), "
    ORDER BY l.name
    FOR UPDATE OF l SKIP LOCKED
), took AS (
    UPDATE rowlock_lock l
    SET fence = ", fence_after_wait!(), ",
        ", freed!(), "
    FROM free f
    WHERE l.name = f.name AND (SELECT count(*) FROM free) = cardinality($1)
    RETURNING l.name, l.fence, set_config(
        'rowlock.locked',
        COALESCE(current_setting('rowlock.locked', true), '') || ' ' || encode(l.name, 'hex') || ' ',
        true)
)
SELECT d.id, (SELECT again FROM marks),
       (SELECT count(*) FROM rowlock_lock WHERE name = ANY ($1)) < cardinality($1), t.name, t.fence, ", quarantine_left!(), "
FROM rowlock_database d LEFT JOIN took t ON true");

/// [`TAKE`] for a lone name, with half the work. When it grants nothing, [`WHY`] gives the reason.
///
/// The inner SELECT reads the row in the statement's snapshot. The row is then locked by its name only, and CASE sees
/// the locked version. A lease or a pause may have been committed in these few microseconds. The cast then fails, and
/// the transaction with it. So the server unlocks the row by itself, however slow this process is, and its log has the
/// reason.
const TAKE_ONE: &str = concat!("
WITH here AS MATERIALIZED (
    SELECT pg_current_xact_id_if_assigned() IS NOT NULL
           OR COALESCE(current_setting('rowlock.here', true), '') <> '' AS proven
)
UPDATE rowlock_lock l
SET fence = ", fence_after_wait!(), ",
    ", freed!(), "
WHERE name = (
    SELECT CASE
        WHEN ", is_free!("k."), " THEN k.name
        ELSE decode(concat('rowlock: just granted or paused by ', COALESCE(k.holder, k.paused_by))::bigint::text, 'hex')
    END
    FROM rowlock_lock k
    WHERE k.name = (
        SELECT name FROM rowlock_lock
        WHERE (SELECT proven FROM here) IS NOT NULL AND name = $1 AND ($2::bigint IS NULL OR fence = $2)
          AND ", is_free!(""), " AND capacity = 0 AND ", may_grant!(), "
          AND position(' ' || encode($1, 'hex') || ' ' IN
                       COALESCE(current_setting('rowlock.locked', true), '')) = 0
    )
    FOR UPDATE OF k SKIP LOCKED
) AND ($2::bigint IS NULL OR fence = $2)
RETURNING (SELECT id FROM rowlock_database), fence, set_config(
    'rowlock.locked',
    COALESCE(current_setting('rowlock.locked', true), '') || ' ' || encode(name, 'hex') || ' ',
    true), (SELECT proven FROM here)");

/// `invalid_text_representation`: how the cast in [`TAKE_ONE`] fails.
const GAVE_WAY: &str = "22P02";

/// Whether this transaction was granted the name before, whether it has no row, whether a transaction is open, and how
/// long a quarantine lasts.
const WHY: &str = concat!(
    "
SELECT id, position(' ' || encode($1, 'hex') || ' ' IN
                    COALESCE(current_setting('rowlock.locked', true), '')) > 0,
       NOT EXISTS (SELECT FROM rowlock_lock WHERE name = $1),
       pg_current_xact_id_if_assigned() IS NOT NULL
       OR COALESCE(current_setting('rowlock.here', true), '') <> '', ",
    quarantine_left!(),
    "
FROM rowlock_database d"
);

const ROW: &str = concat!(
    "
SELECT d.id,",
    row_columns!(),
    "
FROM rowlock_database d LEFT JOIN rowlock_lock l ON l.name = $1
LEFT JOIN rowlock_session s ON s.id = l.session_id"
);

/// The database, whether this transaction was granted one of the names before, whether a name has no row, a name with
/// its fence, and how long a quarantine lasts.
type TxTakeColumns = (Uuid, bool, bool, Option<Vec<u8>>, Option<i64>, Option<i64>);

/// The database, the fence, the setting, and whether a transaction is known to be open.
type TakenColumns = (Option<Uuid>, i64, String, bool);

/// Fails when the connection is in no transaction.
pub(super) async fn prove(conn: &mut PgConnection) -> Result<(), Fault> {
    sqlx::raw_sql(PROVE).execute(conn).await?;
    Ok(())
}

/// PostgreSQL takes the COMMIT of a transaction in which a statement has failed for a ROLLBACK, and answers with
/// success. The SELECT fails there. With AND CHAIN there is a transaction for sqlx's ROLLBACK, which is queued when
/// its `Transaction` is dropped: else the server would log a warning.
const COMMIT: &str = "SELECT 1; COMMIT AND CHAIN";

#[async_trait]
impl InTxStore for PgConnection {
    async fn tx_commit(&mut self) -> Result<bool, sqlx::Error> {
        sqlx::raw_sql(COMMIT).execute(self).await?;
        Ok(true)
    }

    async fn tx_pin(&mut self, params: &PinParams) -> Result<TxReply<PinOutcome>, Fault> {
        in_callers(async {
            let row: Option<(Uuid, Option<bool>, bool, bool)> = query_as(PIN)
                .bind(params.name.as_bytes())
                .bind(params.grant_id)
                .fetch_optional(&mut *self)
                .await?;
            if row.is_some_and(|row| !row.3) {
                prove(self).await?;
            }
            if matches!(row, Some((_, None, ..))) {
                row_security::check(self).await?;
            }
            let found = match row {
                Some((_, Some(true), ..)) => PinOutcome::Live,
                Some((_, Some(false), ..)) => PinOutcome::Expired,
                Some((_, None, false, _)) => PinOutcome::Invisible,
                Some((_, None, true, _)) | None => PinOutcome::Missed,
            };
            Ok(TxReply::of(row.map(|row| row.0), found))
        })
        .await
    }

    async fn tx_take(&mut self, all: &[TxParams]) -> Result<TxReply<TxTaken>, Fault> {
        in_callers(async {
            if let [params] = all {
                let told = take_one(self, params).await?;
                if matches!(told.found, TxTaken::NoRow) {
                    row_security::check(self).await?;
                }
                return Ok(told);
            }
            // This locks the free ones of several names, in any order. When some are not free, all are unlocked, so
            // that waiting in the order of the names can start from nothing.
            sqlx::raw_sql("SAVEPOINT rowlock_take")
                .execute(&mut *self)
                .await?;
            let told = take_all(self, all).await?;
            let end = match told.found {
                TxTaken::Granted { .. } => "RELEASE SAVEPOINT rowlock_take",
                _ => "ROLLBACK TO SAVEPOINT rowlock_take; RELEASE SAVEPOINT rowlock_take",
            };
            sqlx::raw_sql(end).execute(&mut *self).await?;
            if matches!(told.found, TxTaken::NoRow) {
                row_security::check(self).await?;
            }
            Ok(told)
        })
        .await
    }

    async fn tx_wait(
        &mut self,
        wanted: &[Name],
        limit: Option<Duration>,
    ) -> Result<TxWaited, Fault> {
        in_callers(tx_wait::wait(self, wanted, limit)).await
    }

    async fn tx_row(&mut self, name: &Name) -> Result<TxReply<Option<LockRow>>, Fault> {
        in_callers(async {
            let row = query_as(ROW).bind(name.as_bytes());
            Ok(row.fetch_optional(self).await?.unwrap_or_default())
        })
        .await
    }
}

async fn take_one(conn: &mut PgConnection, params: &TxParams) -> Result<TxReply<TxTaken>, Fault> {
    let row: Result<Option<TakenColumns>, sqlx::Error> = query_as(TAKE_ONE)
        .bind(params.name.as_bytes())
        .bind(params.version)
        .fetch_optional(&mut *conn)
        .await;
    match row {
        Ok(Some((database, fence, _, proven))) => {
            if !proven {
                prove(conn).await?;
            }
            let found = TxTaken::Granted {
                fences: vec![fence],
                perhaps_again: Vec::new(),
            };
            Ok(TxReply::of(database, found))
        }
        Ok(None) => {
            let row: Option<(Uuid, bool, bool, bool, Option<i64>)> = query_as(WHY)
                .bind(params.name.as_bytes())
                .fetch_optional(&mut *conn)
                .await?;
            if row.is_some_and(|row| !row.3) {
                prove(conn).await?;
            }
            Ok(TxReply::of(
                row.map(|row| row.0),
                match row {
                    Some((_, true, ..)) => TxTaken::Again,
                    Some((.., Some(left))) => TxTaken::Quarantined(micros(left)),
                    Some((_, _, true, ..)) => TxTaken::NoRow,
                    _ => TxTaken::Missed(None),
                },
            ))
        }
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(GAVE_WAY) => {
            let detail =
                "a lease was granted, or the name was paused, while its row was being locked";
            Err(Fault::said(FaultKind::Conflict, detail))
        }
        Err(error) => Err(error.into()),
    }
}

async fn take_all(conn: &mut PgConnection, all: &[TxParams]) -> Result<TxReply<TxTaken>, Fault> {
    let rows: Vec<TxTakeColumns> = query_as(TAKE)
        .bind(each(all, |params| params.name.as_bytes()))
        .bind(each(all, |params| params.version))
        .fetch_all(conn)
        .await?;
    let database = rows.first().map(|row| row.0);
    let fence = |params: &TxParams| {
        let mine = |row: &&TxTakeColumns| row.3.as_deref() == Some(params.name.as_bytes());
        rows.iter().find(mine).and_then(|row| row.4)
    };
    let fences: Option<Vec<i64>> = all.iter().map(fence).collect();
    let found = match fences {
        Some(fences) => TxTaken::Granted {
            fences,
            perhaps_again: Vec::new(),
        },
        None => match rows.first() {
            Some((_, true, ..)) => TxTaken::Again,
            Some(&(.., Some(left))) => TxTaken::Quarantined(micros(left)),
            Some((_, _, true, ..)) => TxTaken::NoRow,
            _ => TxTaken::Missed(None),
        },
    };
    Ok(TxReply::of(database, found))
}
