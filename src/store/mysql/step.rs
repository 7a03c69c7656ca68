//! Steps of idempotency records: the statements.

use async_trait::async_trait;
use sqlx::{Connection, MySqlConnection};

use super::statement::{fill, hex, read_as};
use crate::model::{Outcome, RecordKey};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::record::FinishOutcome;
use crate::store::verbs::step::{StepLook, StepParams, StepRow, StepStore};

const STEP_LOOK: &str = "
SELECT r.attempt_id = ? AND r.attempt = ? AND r.state = 'running', CONVERT(r.open_step USING utf8mb4), r.open_step_number, s.content_type, s.outcome
FROM rowlock_idempotency r
LEFT JOIN rowlock_idempotency_step s
       ON s.scope = r.scope AND s.idempotency_key = r.idempotency_key AND s.step = ?
WHERE r.scope = ? AND r.idempotency_key = ?";

const STEP_OPEN: &str = "
UPDATE (
    SELECT f.scope, f.idempotency_key FROM rowlock_idempotency f FORCE INDEX (PRIMARY)
    WHERE f.scope = ? AND f.idempotency_key = ? AND f.attempt_id = ? AND f.attempt = ? AND f.state = 'running'
      AND (f.open_step IS NULL OR f.open_step_number < ?)
    LIMIT 1
    FOR UPDATE SKIP LOCKED
) t
STRAIGHT_JOIN rowlock_idempotency r FORCE INDEX (PRIMARY)
    ON r.scope = t.scope AND r.idempotency_key = t.idempotency_key
SET r.open_step = ?, r.open_step_number = ?";

const LOCK: &str = "
SELECT attempt FROM rowlock_idempotency
WHERE scope = ? AND idempotency_key = ? AND attempt_id = ? AND attempt = ? AND state = 'running'
FOR UPDATE SKIP LOCKED";

const STEP_SETTLED: &str = "
UPDATE rowlock_idempotency
SET open_step = IF(open_step_number <= ?, NULL, open_step), bound = bound OR ?
WHERE scope = ? AND idempotency_key = ? AND attempt_id = ? AND attempt = ? AND state = 'running'";

/// A second sending changes nothing.
const STEP_KEEP: &str = "
INSERT INTO rowlock_idempotency_step (scope, idempotency_key, step, attempt, content_type, outcome, done_at)
VALUES (?, ?, ?, ?, ?, ?, SYSDATE(6))
ON DUPLICATE KEY UPDATE step = step";

const STEPS: &str = "
SELECT CONVERT(step USING utf8mb4), attempt, content_type, LEFT(outcome, ?),
       CAST(OCTET_LENGTH(outcome) AS SIGNED), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', done_at)
FROM rowlock_idempotency_step
WHERE scope = ? AND idempotency_key = ?
ORDER BY done_at, step";

#[async_trait]
impl StepStore for MySqlConnection {
    async fn step_look(&mut self, params: &StepParams) -> Result<Option<StepLook>, Fault> {
        let look = fill(
            STEP_LOOK,
            &[
                hex(params.attempt_id.as_bytes()),
                params.attempt.to_string(),
                hex(params.step.as_bytes()),
                hex(params.key.scope()),
                hex(params.key.key()),
            ],
        );
        Ok(read_as(self, &look).await?.pop())
    }

    async fn step_open(&mut self, params: &StepParams) -> Result<bool, Fault> {
        let open = sqlx::query(STEP_OPEN)
            .bind(params.key.scope())
            .bind(params.key.key())
            .bind(params.attempt_id)
            .bind(params.attempt)
            .bind(params.kind.number())
            .bind(&*params.step)
            .bind(params.kind.number());
        Ok(open.execute(self).await?.rows_affected() > 0)
    }

    async fn step_finish(
        &mut self,
        params: &StepParams,
        outcome: Option<&Outcome>,
    ) -> Result<FinishOutcome, Fault> {
        let mut tx = self.begin().await?;
        let locked: Option<i64> = sqlx::query_scalar(LOCK)
            .bind(params.key.scope())
            .bind(params.key.key())
            .bind(params.attempt_id)
            .bind(params.attempt)
            .fetch_optional(&mut *tx)
            .await?;
        if locked.is_none() {
            tx.rollback().await?;
            return Ok(StepParams::not_settled(
                self.step_look(params).await?.as_ref(),
            ));
        }
        sqlx::query(STEP_SETTLED)
            .bind(params.kind.number())
            .bind(outcome.is_some())
            .bind(params.key.scope())
            .bind(params.key.key())
            .bind(params.attempt_id)
            .bind(params.attempt)
            .execute(&mut *tx)
            .await?;
        if let Some(outcome) = outcome {
            keep(&mut tx, &params.key, &params.step, params.attempt, outcome).await?;
        }
        tx.commit().await?;
        Ok(FinishOutcome::Ended)
    }

    async fn step_list(&mut self, key: &RecordKey, most: i32) -> Result<Vec<StepRow>, Fault> {
        let of = [most.to_string(), hex(key.scope()), hex(key.key())];
        let steps = fill(STEPS, &of);
        Ok(read_as(self, &steps).await?)
    }
}

pub(super) async fn keep(
    conn: &mut MySqlConnection,
    key: &RecordKey,
    step: &str,
    attempt: i64,
    outcome: &Outcome,
) -> Result<(), sqlx::Error> {
    let keep = sqlx::query(STEP_KEEP)
        .bind(key.scope())
        .bind(key.key())
        .bind(step)
        .bind(attempt)
        .bind(outcome.content_type())
        .bind(outcome.bytes());
    keep.execute(conn).await.map(|_| ())
}
