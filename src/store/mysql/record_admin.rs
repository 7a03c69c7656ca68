//! Idempotency records for administrators: the statements.

use async_trait::async_trait;
use sqlx::{Connection, MySqlConnection};

use super::record::read_records;
use super::statement::{fill, hex, read_as};
use super::step;
use crate::model::Outcome;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::record_admin::{DecideParams, Decision, RecordAdminStore, RecordRange};
use crate::store::verbs::record_row::{RecordRow, plain_columns};
use crate::store::verbs::time::to_micros;

/// The keys are found first: a row may have a large outcome.
const LIST: &str = read_records!(
    "NULL AS outcome, NULL AS outcome_size",
    "(
    SELECT scope, idempotency_key FROM rowlock_idempotency FORCE INDEX (PRIMARY)
    WHERE (scope > ? OR scope = ? AND idempotency_key >= ?) AND (scope < ? OR scope = ? AND idempotency_key < ?)
    ORDER BY scope, idempotency_key LIMIT 1000
) k
STRAIGHT_JOIN rowlock_idempotency r FORCE INDEX (PRIMARY) ON r.scope = k.scope AND r.idempotency_key = k.idempotency_key
ORDER BY k.scope, k.idempotency_key"
);

const OPEN: &str = read_records!(
    "NULL AS outcome, NULL AS outcome_size",
    "(
    (SELECT scope, idempotency_key FROM rowlock_idempotency FORCE INDEX (rowlock_idempotency_clean)
     WHERE clean_at IS NULL LIMIT 1000)
    UNION ALL
    (SELECT scope, idempotency_key FROM rowlock_idempotency FORCE INDEX (rowlock_idempotency_clean)
     WHERE clean_at IS NOT NULL ORDER BY clean_at DESC LIMIT 1000)
) k
STRAIGHT_JOIN rowlock_idempotency r FORCE INDEX (PRIMARY) ON r.scope = k.scope AND r.idempotency_key = k.idempotency_key"
);

/// Locks the record, so that the statement that changes it never waits.
const LOCK: &str = "
SELECT attempt FROM rowlock_idempotency
WHERE scope = ? AND idempotency_key = ? AND attempt = ?
FOR UPDATE SKIP LOCKED";

const TO_UNKNOWN: &str = "
UPDATE rowlock_idempotency SET state = 'unknown', forget_at = NULL, clean_at = NULL
WHERE scope = ? AND idempotency_key = ? AND attempt = ?
  AND state = 'running' AND open_step IS NOT NULL AND lease_until <= SYSDATE(6)";

const LOCK_UNKNOWN: &str = "
SELECT attempt FROM rowlock_idempotency
WHERE scope = ? AND idempotency_key = ? AND attempt = ? AND open_step = ?
  AND (state = 'unknown' OR (state = 'running' AND lease_until <= SYSDATE(6)))
FOR UPDATE SKIP LOCKED";

const RESOLVE: &str = "
UPDATE rowlock_idempotency
SET state = 'free', open_step = NULL, abandoned = 0, bound = TRUE,
    forget_at = SYSDATE(6) + INTERVAL ? MICROSECOND, clean_at = SYSDATE(6) + INTERVAL ? MICROSECOND
WHERE scope = ? AND idempotency_key = ?";

/// It is unknown what an abandoned attempt began: the key stays bound to its request.
const RESET: &str = "
UPDATE rowlock_idempotency
SET bound = bound OR state = 'running', state = IF(open_step IS NULL, 'free', 'unknown'), abandoned = 0,
    forget_at = IF(open_step IS NULL, SYSDATE(6) + INTERVAL ? MICROSECOND, NULL),
    clean_at = IF(open_step IS NULL, SYSDATE(6) + INTERVAL ? MICROSECOND, NULL)
WHERE scope = ? AND idempotency_key = ? AND attempt = ?
  AND (state = 'free' OR (state = 'running' AND lease_until <= SYSDATE(6)))";

#[async_trait]
impl RecordAdminStore for MySqlConnection {
    async fn record_list(&mut self, range: &RecordRange) -> Result<Vec<RecordRow>, Fault> {
        let (from, until) = (&range.from, &range.until);
        let keys = [&from.0, &from.0, &from.1, &until.0, &until.0, &until.1];
        let list = fill(LIST, &keys.map(|key| hex(key)));
        Ok(read_as(self, &list).await?)
    }

    async fn record_open(&mut self) -> Result<Vec<RecordRow>, Fault> {
        Ok(read_as(self, OPEN).await?)
    }

    async fn record_decide(&mut self, params: &DecideParams) -> Result<bool, Fault> {
        let (scope, key) = (params.key.scope(), params.key.key());
        let remember = to_micros(params.remember);
        let query = match &params.decision {
            Decision::Unknown => sqlx::query(TO_UNKNOWN),
            Decision::Reset => sqlx::query(RESET).bind(remember).bind(remember),
            Decision::Resolve(step, outcome) => {
                return Ok(resolve(self, params, step, outcome.as_ref()).await?);
            }
        };
        let mut tx = self.begin().await?;
        let locked: Option<i64> = sqlx::query_scalar(LOCK)
            .bind(scope)
            .bind(key)
            .bind(params.attempt)
            .fetch_optional(&mut *tx)
            .await?;
        let mut changed = 0;
        if locked.is_some() {
            let query = query.bind(scope).bind(key).bind(params.attempt);
            changed = query.execute(&mut *tx).await?.rows_affected();
        }
        tx.commit().await?;
        Ok(changed > 0)
    }
}

async fn resolve(
    conn: &mut MySqlConnection,
    params: &DecideParams,
    step: &str,
    outcome: Option<&Outcome>,
) -> Result<bool, sqlx::Error> {
    let (scope, key) = (params.key.scope(), params.key.key());
    let mut tx = conn.begin().await?;
    let found: Option<i64> = sqlx::query_scalar(LOCK_UNKNOWN)
        .bind(scope)
        .bind(key)
        .bind(params.attempt)
        .bind(step.as_bytes())
        .fetch_optional(&mut *tx)
        .await?;
    if found.is_none() {
        tx.rollback().await?;
        return Ok(false);
    }
    if let Some(outcome) = outcome {
        step::keep(&mut tx, &params.key, step, params.attempt, outcome).await?;
    }
    let remember = to_micros(params.remember);
    sqlx::query(RESOLVE)
        .bind(remember)
        .bind(remember)
        .bind(scope)
        .bind(key)
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(true)
}
