//! Steps of idempotency records: the statements.

use async_trait::async_trait;
use sqlx::PgConnection;

use super::{query, query_as, query_scalar};
use crate::model::{Outcome, RecordKey};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::record::FinishOutcome;
use crate::store::verbs::step::{StepLook, StepParams, StepRow, StepStore};

const STEP_LOOK: &str = "
SELECT r.attempt_id = $3 AND r.attempt = $4 AND r.state = 'running', r.open_step, r.open_step_number, s.content_type, s.outcome
FROM rowlock_idempotency r
LEFT JOIN rowlock_idempotency_step s
       ON s.scope = r.scope AND s.idempotency_key = r.idempotency_key AND s.step = $5
WHERE r.scope = $1 AND r.idempotency_key = $2";

const STEP_OPEN: &str = "
UPDATE rowlock_idempotency r SET open_step = $5, open_step_number = $6
FROM (
    SELECT scope, idempotency_key FROM rowlock_idempotency
    WHERE scope = $1 AND idempotency_key = $2 AND attempt_id = $3 AND attempt = $4 AND state = 'running'
      AND (open_step IS NULL OR open_step_number < $6)
    FOR UPDATE SKIP LOCKED
) o
WHERE r.scope = o.scope AND r.idempotency_key = o.idempotency_key";

const STEP_DONE: &str = "
WITH own AS (
    SELECT scope, idempotency_key FROM rowlock_idempotency
    WHERE scope = $1 AND idempotency_key = $2 AND attempt_id = $3 AND attempt = $4 AND state = 'running'
    FOR UPDATE SKIP LOCKED
), mine AS (
    UPDATE rowlock_idempotency r
    SET open_step = CASE WHEN r.open_step_number <= $8 THEN NULL ELSE r.open_step END, bound = r.bound OR $6 IS NOT NULL
    FROM own o
    WHERE r.scope = o.scope AND r.idempotency_key = o.idempotency_key
    RETURNING 1
), kept AS (
    INSERT INTO rowlock_idempotency_step (scope, idempotency_key, step, attempt, content_type, outcome, done_at)
    SELECT $1, $2, $5, $4, $6, $7, clock_timestamp() FROM mine WHERE $6 IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT count(*) FROM mine";

const STEPS: &str = "
SELECT step, attempt, content_type, substr(outcome, 1, $3), octet_length(outcome)::bigint, (extract(epoch FROM done_at) * 1000000)::bigint
FROM rowlock_idempotency_step
WHERE scope = $1 AND idempotency_key = $2
ORDER BY done_at, step";

#[async_trait]
impl StepStore for PgConnection {
    async fn step_look(&mut self, params: &StepParams) -> Result<Option<StepLook>, Fault> {
        Ok(query_as(STEP_LOOK)
            .bind(params.key.scope())
            .bind(params.key.key())
            .bind(params.attempt_id)
            .bind(params.attempt)
            .bind(&*params.step)
            .fetch_optional(self)
            .await?)
    }

    async fn step_open(&mut self, params: &StepParams) -> Result<bool, Fault> {
        let open = query(STEP_OPEN)
            .bind(params.key.scope())
            .bind(params.key.key())
            .bind(params.attempt_id)
            .bind(params.attempt)
            .bind(&*params.step)
            .bind(params.kind.number());
        Ok(open.execute(self).await?.rows_affected() > 0)
    }

    async fn step_finish(
        &mut self,
        params: &StepParams,
        outcome: Option<&Outcome>,
    ) -> Result<FinishOutcome, Fault> {
        let mine: i64 = query_scalar(STEP_DONE)
            .bind(params.key.scope())
            .bind(params.key.key())
            .bind(params.attempt_id)
            .bind(params.attempt)
            .bind(&*params.step)
            .bind(outcome.map(Outcome::content_type))
            .bind(outcome.map(Outcome::bytes))
            .bind(params.kind.number())
            .fetch_one(&mut *self)
            .await?;
        if mine > 0 {
            return Ok(FinishOutcome::Ended);
        }
        Ok(StepParams::not_settled(
            self.step_look(params).await?.as_ref(),
        ))
    }

    async fn step_list(&mut self, key: &RecordKey, most: i32) -> Result<Vec<StepRow>, Fault> {
        Ok(query_as(STEPS)
            .bind(key.scope())
            .bind(key.key())
            .bind(most)
            .fetch_all(self)
            .await?)
    }
}
