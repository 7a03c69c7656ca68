//! Idempotency records: the statements.
//!
//! A writer has the whole file to itself. The clock is read after BEGIN IMMEDIATE, in whole milliseconds; a lease is
//! set to end one later.

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::quarantine::is_quarantined;
use super::writing::{durably, in_a_transaction};
use crate::model::{Outcome, RecordKey};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::lease::RenewOutcome;
use crate::store::verbs::record::{
    ClaimOutcome, ClaimParams, EndColumns, FinishOutcome, FinishParams, KeepParams, RecordStore,
};
use crate::store::verbs::record_row::{RecordRow, plain_columns};
use crate::store::verbs::time::{micros, to_micros};

/// The columns of a record, but its outcome, at the time `now.us`.
macro_rules! read_records {
    ($outcome:literal, $from:literal) => {
        concat!(
            "SELECT ",
            plain_columns!(),
            ", r.open_step, r.began_at, r.attempted_at, r.lease_until, r.done_at, r.lease_until - now.us - 1000 AS lease_left,
       r.retain_until - now.us AS retain_left, r.forget_at - now.us AS forget_left, ",
            $outcome,
            " FROM ",
            $from
        )
    };
}
pub(super) use read_records;

const READ: &str = read_records!(
    "CASE WHEN length(r.outcome) <= ?3 THEN r.outcome END AS outcome, length(r.outcome) AS outcome_size",
    "rowlock_idempotency r, (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now
WHERE r.scope = ?1 AND r.idempotency_key = ?2"
);

const CLAIM_NEW: &str = "
INSERT INTO rowlock_idempotency (scope, idempotency_key, state, attempt, abandoned, max_attempts, attempt_id, holder,
                                 fingerprint, bound, began_at, attempted_at, lease_until, forget_at, clean_at)
SELECT ?1, ?2, 'running', now.us, 1, ?3, ?4, ?5, ?6, 0, now.us, now.us, now.us + ?7 + 1000, now.us + ?8, now.us + ?8
FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now
WHERE true
ON CONFLICT DO NOTHING
RETURNING attempt";

const CLAIM_AGAIN: &str = "
UPDATE rowlock_idempotency
SET state = 'running', bound = bound OR state = 'running', attempt = max(attempt + 1, now.us),
    abandoned = iif(lease_until > now.us - 3600000000, abandoned, 0) + 1,
    max_attempts = ?3, attempt_id = ?4, holder = ?5, fingerprint = ?6, attempted_at = now.us,
    lease_until = now.us + ?7 + 1000, forget_at = now.us + ?8, clean_at = now.us + ?8
FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now
WHERE scope = ?1 AND idempotency_key = ?2 AND attempt = ?9
  AND (state = 'free' OR (state = 'running' AND open_step IS NULL AND lease_until <= now.us))
RETURNING attempt";

const FORGET: &str = "
DELETE FROM rowlock_idempotency
WHERE scope = ?1 AND idempotency_key = ?2 AND attempt = ?3
  AND forget_at <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
  AND (state <> 'running' OR (open_step IS NULL
       AND lease_until <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000))";

pub(super) const FORGET_STEPS: &str =
    "DELETE FROM rowlock_idempotency_step WHERE scope = ?1 AND idempotency_key = ?2";

const RENEW: &str = "
UPDATE rowlock_idempotency
SET lease_until = max(lease_until, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 + ?4 + 1000)
WHERE scope = ?1 AND idempotency_key = ?2 AND attempt_id = ?3 AND state = 'running'
RETURNING lease_until - CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 - 1000";

const FINISH: &str = "
UPDATE rowlock_idempotency
SET state = CASE WHEN ?13 AND open_step IS NOT NULL THEN 'unknown' ELSE ?5 END,
    open_step = CASE WHEN ?13 THEN open_step END,
    bound = bound OR ?10,
    abandoned = max(abandoned - ?11, 0),
    content_type = ?6,
    outcome = ?7,
    done_at = CASE WHEN ?5 = 'done' THEN now.us END,
    retain_until = now.us + ?8,
    forget_at = CASE WHEN NOT ?13 OR open_step IS NULL THEN now.us + iif(bound OR ?10, ?12, ?9) END,
    clean_at = CASE WHEN NOT ?13 OR open_step IS NULL THEN now.us + COALESCE(?8, iif(bound OR ?10, ?12, ?9)) END
FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now
WHERE scope = ?1 AND idempotency_key = ?2 AND attempt_id = ?3 AND ?4 IN (attempt, -1) AND state = 'running'";

#[async_trait]
impl RecordStore for SqliteConnection {
    async fn record_read(
        &mut self,
        keys: &[RecordKey],
        largest: usize,
    ) -> Result<Vec<Option<RecordRow>>, Fault> {
        let mut rows = Vec::with_capacity(keys.len());
        for key in keys {
            rows.push(read_one(self, key, largest).await?);
        }
        Ok(rows)
    }

    async fn record_is_claimed(&mut self, _key: &RecordKey) -> Result<bool, Fault> {
        Ok(false)
    }

    async fn record_forget(&mut self, key: &RecordKey, attempt: i64) -> Result<(), Fault> {
        durably(self, async |conn| {
            let (scope, key) = (key.scope(), key.key());
            let forget = sqlx::query(FORGET).bind(scope).bind(key).bind(attempt);
            if forget.execute(&mut *conn).await?.rows_affected() > 0 {
                let steps = sqlx::query(FORGET_STEPS).bind(scope).bind(key);
                steps.execute(conn).await?;
            }
            Ok(())
        })
        .await
    }

    async fn record_claim(&mut self, all: &[ClaimParams]) -> Result<Vec<ClaimOutcome>, Fault> {
        durably(self, async |conn| {
            let mut claimed = Vec::with_capacity(all.len());
            let may_claim = !is_quarantined(conn).await?;
            for params in all {
                let attempt = if may_claim {
                    claim_one(conn, params).await?
                } else {
                    None
                };
                claimed.push(match attempt {
                    Some(attempt) => ClaimOutcome::Mine { attempt },
                    None => params.missed(read_one(conn, &params.key, 0).await?.as_ref()),
                });
            }
            Ok(claimed)
        })
        .await
    }

    async fn record_renew(&mut self, all: &[KeepParams]) -> Result<Vec<RenewOutcome>, Fault> {
        in_a_transaction(self, async |conn| {
            let mut renewed = Vec::with_capacity(all.len());
            for params in all {
                let left: Vec<i64> = sqlx::query_scalar(RENEW)
                    .bind(params.key.scope())
                    .bind(params.key.key())
                    .bind(params.attempt_id)
                    .bind(to_micros(params.lease))
                    .fetch_all(&mut *conn)
                    .await?;
                renewed.push(match left.first() {
                    Some(&left) => RenewOutcome::Live {
                        remaining: micros(left),
                    },
                    None => RenewOutcome::Gone,
                });
            }
            Ok(renewed)
        })
        .await
    }

    async fn record_finish(&mut self, all: &[FinishParams]) -> Result<Vec<FinishOutcome>, Fault> {
        durably(self, async |conn| {
            let mut finished = Vec::with_capacity(all.len());
            for params in all {
                let end = EndColumns::from(&params.end);
                let done = sqlx::query(FINISH)
                    .bind(params.key.scope())
                    .bind(params.key.key())
                    .bind(params.attempt_id)
                    .bind(params.attempt)
                    .bind(end.state)
                    .bind(end.outcome.map(Outcome::content_type))
                    .bind(end.outcome.map(Outcome::bytes))
                    .bind(end.retain)
                    .bind(end.remember)
                    .bind(end.bound)
                    .bind(end.pardon)
                    .bind(end.remember_begun)
                    .bind(end.step_is_open)
                    .execute(&mut *conn)
                    .await?;
                finished.push(match done.rows_affected() {
                    0 => {
                        let row = read_one(conn, &params.key, params.size()).await?;
                        params.missed(row.as_ref())
                    }
                    _ => FinishOutcome::Ended,
                });
            }
            Ok(finished)
        })
        .await
    }
}

async fn read_one(
    conn: &mut SqliteConnection,
    key: &RecordKey,
    largest: usize,
) -> Result<Option<RecordRow>, sqlx::Error> {
    sqlx::query_as(READ)
        .bind(key.scope())
        .bind(key.key())
        .bind(i64::try_from(largest).unwrap_or(i64::MAX))
        .fetch_optional(conn)
        .await
}

/// Returns the attempt's number, if the claim succeeded.
pub(super) async fn claim_one(
    conn: &mut SqliteConnection,
    params: &ClaimParams,
) -> Result<Option<i64>, sqlx::Error> {
    let (scope, key) = (params.key.scope(), params.key.key());
    let sql = if params.seen.is_some() {
        CLAIM_AGAIN
    } else {
        CLAIM_NEW
    };
    let mut query = sqlx::query_scalar(sql)
        .bind(scope)
        .bind(key)
        .bind(params.max_attempts)
        .bind(params.attempt_id)
        .bind(&*params.holder)
        .bind(&params.fingerprint.as_bytes()[..])
        .bind(to_micros(params.lease))
        .bind(to_micros(params.remember_begun));
    if let Some(seen) = params.seen {
        query = query.bind(seen);
    }
    let attempts: Vec<i64> = query.fetch_all(conn).await?;
    Ok(attempts.first().copied())
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
