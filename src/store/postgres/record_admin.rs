//! Idempotency records for administrators: the statements.

use async_trait::async_trait;
use sqlx::PgConnection;

use super::record::read_records;
use super::{query, query_as};
use crate::model::Outcome;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::record_admin::{DecideParams, Decision, RecordAdminStore, RecordRange};
use crate::store::verbs::record_row::{RecordRow, plain_columns};
use crate::store::verbs::time::to_micros;

const LIST: &str = read_records!(
    "NULL::bytea AS outcome, NULL::bigint AS outcome_size",
    "rowlock_idempotency r
WHERE (r.scope, r.idempotency_key) >= ($1, $2) AND (r.scope, r.idempotency_key) < ($3, $4)
ORDER BY r.scope, r.idempotency_key LIMIT 1000"
);

const OPEN: &str = read_records!(
    "NULL::bytea AS outcome, NULL::bigint AS outcome_size",
    "(
    (SELECT * FROM rowlock_idempotency WHERE clean_at IS NULL LIMIT 1000)
    UNION ALL
    (SELECT * FROM rowlock_idempotency WHERE clean_at IS NOT NULL ORDER BY clean_at DESC LIMIT 1000)
) r"
);

const TO_UNKNOWN: &str = "
UPDATE rowlock_idempotency r SET state = 'unknown', forget_at = NULL, clean_at = NULL
FROM (
    SELECT scope, idempotency_key FROM rowlock_idempotency
    WHERE scope = $1 AND idempotency_key = $2 AND attempt = $3
      AND state = 'running' AND open_step IS NOT NULL AND lease_until <= clock_timestamp()
    FOR UPDATE SKIP LOCKED
) o
WHERE r.scope = o.scope AND r.idempotency_key = o.idempotency_key";

const RESOLVE: &str = "
WITH old AS (
    SELECT scope, idempotency_key, attempt, open_step FROM rowlock_idempotency
    WHERE scope = $1 AND idempotency_key = $2 AND attempt = $3 AND open_step = $7
      AND (state = 'unknown' OR (state = 'running' AND lease_until <= clock_timestamp()))
    FOR UPDATE SKIP LOCKED
), kept AS (
    INSERT INTO rowlock_idempotency_step (scope, idempotency_key, step, attempt, content_type, outcome, done_at)
    SELECT scope, idempotency_key, open_step, attempt, $5, $6, clock_timestamp() FROM old WHERE $5 IS NOT NULL
    ON CONFLICT DO NOTHING
)
UPDATE rowlock_idempotency r
SET state = 'free', open_step = NULL, abandoned = 0, bound = true,
    forget_at = clock_timestamp() + $4 * interval '1 microsecond',
    clean_at = clock_timestamp() + $4 * interval '1 microsecond'
FROM old o
WHERE r.scope = o.scope AND r.idempotency_key = o.idempotency_key";

/// It is unknown what an abandoned attempt began: the key stays bound to its request.
const RESET: &str = "
UPDATE rowlock_idempotency r
SET state = CASE WHEN r.open_step IS NULL THEN 'free' ELSE 'unknown' END, abandoned = 0,
    bound = r.bound OR r.state = 'running',
    forget_at = CASE WHEN r.open_step IS NULL THEN clock_timestamp() + $4 * interval '1 microsecond' END,
    clean_at = CASE WHEN r.open_step IS NULL THEN clock_timestamp() + $4 * interval '1 microsecond' END
FROM (
    SELECT scope, idempotency_key FROM rowlock_idempotency
    WHERE scope = $1 AND idempotency_key = $2 AND attempt = $3
      AND (state = 'free' OR (state = 'running' AND lease_until <= clock_timestamp()))
    FOR UPDATE SKIP LOCKED
) o
WHERE r.scope = o.scope AND r.idempotency_key = o.idempotency_key";

#[async_trait]
impl RecordAdminStore for PgConnection {
    async fn record_list(&mut self, range: &RecordRange) -> Result<Vec<RecordRow>, Fault> {
        let list = query_as(LIST).bind(&*range.from.0).bind(&*range.from.1);
        let list = list.bind(&*range.until.0).bind(&*range.until.1);
        Ok(list.fetch_all(self).await?)
    }

    async fn record_open(&mut self) -> Result<Vec<RecordRow>, Fault> {
        Ok(query_as(OPEN).fetch_all(self).await?)
    }

    async fn record_decide(&mut self, params: &DecideParams) -> Result<bool, Fault> {
        let remember = to_micros(params.remember);
        let (sql, outcome) = match &params.decision {
            Decision::Unknown => (TO_UNKNOWN, None),
            Decision::Reset => (RESET, None),
            Decision::Resolve(_, outcome) => (RESOLVE, outcome.as_ref()),
        };
        let mut query = query(sql)
            .bind(params.key.scope())
            .bind(params.key.key())
            .bind(params.attempt);
        if !matches!(params.decision, Decision::Unknown) {
            query = query.bind(remember);
        }
        if let Decision::Resolve(step, _) = &params.decision {
            query = query
                .bind(outcome.map(Outcome::content_type))
                .bind(outcome.map(Outcome::bytes))
                .bind(&**step);
        }
        Ok(query.execute(self).await?.rows_affected() > 0)
    }
}
