//! Steps of idempotency records: the statements.

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::writing::durably;
use crate::model::{Outcome, RecordKey};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::record::FinishOutcome;
use crate::store::verbs::step::{StepLook, StepParams, StepRow, StepStore};

const STEP_LOOK: &str = "
SELECT r.attempt_id = ?3 AND r.attempt = ?4 AND r.state = 'running', r.open_step, r.open_step_number, s.content_type, s.outcome
FROM rowlock_idempotency r
LEFT JOIN rowlock_idempotency_step s
       ON s.scope = r.scope AND s.idempotency_key = r.idempotency_key AND s.step = ?5
WHERE r.scope = ?1 AND r.idempotency_key = ?2";

const STEP_OPEN: &str = "
UPDATE rowlock_idempotency SET open_step = ?5, open_step_number = ?6
WHERE scope = ?1 AND idempotency_key = ?2 AND attempt_id = ?3 AND attempt = ?4 AND state = 'running'
  AND (open_step IS NULL OR open_step_number < ?6)";

const STEP_SETTLED: &str = "
UPDATE rowlock_idempotency
SET open_step = CASE WHEN open_step_number <= ?5 THEN NULL ELSE open_step END, bound = bound OR ?6
WHERE scope = ?1 AND idempotency_key = ?2 AND attempt_id = ?3 AND attempt = ?4 AND state = 'running'";

/// A second sending changes nothing.
const STEP_KEEP: &str = "
INSERT INTO rowlock_idempotency_step (scope, idempotency_key, step, attempt, content_type, outcome, done_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)
ON CONFLICT DO NOTHING";

const STEPS: &str = "
SELECT step, attempt, content_type, substr(outcome, 1, ?3), length(outcome), done_at
FROM rowlock_idempotency_step
WHERE scope = ?1 AND idempotency_key = ?2
ORDER BY done_at, step";

#[async_trait]
impl StepStore for SqliteConnection {
    async fn step_look(&mut self, params: &StepParams) -> Result<Option<StepLook>, Fault> {
        Ok(sqlx::query_as(STEP_LOOK)
            .bind(params.key.scope())
            .bind(params.key.key())
            .bind(params.attempt_id)
            .bind(params.attempt)
            .bind(&*params.step)
            .fetch_optional(self)
            .await?)
    }

    async fn step_open(&mut self, params: &StepParams) -> Result<bool, Fault> {
        durably(self, async |conn| {
            let open = sqlx::query(STEP_OPEN)
                .bind(params.key.scope())
                .bind(params.key.key())
                .bind(params.attempt_id)
                .bind(params.attempt)
                .bind(&*params.step)
                .bind(params.kind.number());
            Ok(open.execute(conn).await?.rows_affected() > 0)
        })
        .await
    }

    async fn step_finish(
        &mut self,
        params: &StepParams,
        outcome: Option<&Outcome>,
    ) -> Result<FinishOutcome, Fault> {
        durably(self, async |conn| {
            let mine = sqlx::query(STEP_SETTLED)
                .bind(params.key.scope())
                .bind(params.key.key())
                .bind(params.attempt_id)
                .bind(params.attempt)
                .bind(params.kind.number())
                .bind(outcome.is_some())
                .execute(&mut *conn)
                .await?;
            if mine.rows_affected() == 0 {
                return Ok(FinishOutcome::Superseded);
            }
            if let Some(outcome) = outcome {
                keep(conn, &params.key, &params.step, params.attempt, outcome).await?;
            }
            Ok(FinishOutcome::Ended)
        })
        .await
    }

    async fn step_list(&mut self, key: &RecordKey, most: i32) -> Result<Vec<StepRow>, Fault> {
        Ok(sqlx::query_as(STEPS)
            .bind(key.scope())
            .bind(key.key())
            .bind(most)
            .fetch_all(self)
            .await?)
    }
}

pub(super) async fn keep(
    conn: &mut SqliteConnection,
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
