//! What a holder changes in its own lease: the statements. Their times follow the rules of `lease.rs`.

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::listener::wake_first;
use super::writing::durably;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::hold::{HoldOutcome, HoldStore, RaiseParams, RunOutParams};
use crate::store::verbs::time::to_micros;

/// The row has a live grant of the ask.
macro_rules! is_live {
    () => {
        "
WHERE name = ?1 AND grant_id = ?2 AND expires_at > now.us
  AND (session_id IS NULL
       OR EXISTS (SELECT 1 FROM rowlock_session s WHERE s.id = session_id AND s.expires_at > now.us))"
    };
}

const RAISE: &str = concat!(
    "
UPDATE rowlock_lock SET fence = max(fence + 1, ?3)
FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now",
    is_live!(),
    " RETURNING fence"
);

const RUN_OUT: &str = concat!(
    "
UPDATE rowlock_lock SET grant_id = ?3, expires_at = now.us + ?4 + 1000, session_id = NULL
FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now",
    is_live!()
);

/// An earlier sending has given the row to this reservation.
const IS_RESERVED: &str =
    "SELECT EXISTS (SELECT 1 FROM rowlock_lock WHERE name = ?1 AND grant_id = ?2)";

#[async_trait]
impl HoldStore for SqliteConnection {
    async fn hold_raise(&mut self, params: &RaiseParams) -> Result<HoldOutcome<i64>, Fault> {
        let fences: Vec<i64> = durably(self, async |conn| {
            let raise = sqlx::query_scalar(RAISE)
                .bind(params.name.as_bytes())
                .bind(params.grant_id)
                .bind(params.at_least);
            raise.fetch_all(conn).await
        })
        .await?;
        Ok(fences
            .first()
            .map_or(HoldOutcome::Gone, |fence| HoldOutcome::Done(*fence)))
    }

    async fn hold_run_out(&mut self, params: &RunOutParams) -> Result<HoldOutcome<()>, Fault> {
        let done = durably(self, async |conn| {
            let run_out = sqlx::query(RUN_OUT)
                .bind(params.name.as_bytes())
                .bind(params.grant_id)
                .bind(params.reservation)
                .bind(to_micros(params.time));
            let changed = run_out.execute(&mut *conn).await?.rows_affected();
            let is_reserved = sqlx::query_scalar(IS_RESERVED).bind(params.name.as_bytes());
            let is_done = changed > 0
                || params.is_reserved()
                    && is_reserved.bind(params.reservation).fetch_one(conn).await?;
            Ok(if is_done {
                HoldOutcome::Done(())
            } else {
                HoldOutcome::Gone
            })
        })
        .await?;
        if done == HoldOutcome::Done(()) {
            // Those who wait for a permit wait for the name that it is one of.
            let of = params.name.of_permit();
            wake_first(self, of.as_ref().unwrap_or(&params.name)).await;
        }
        Ok(done)
    }
}
