//! Idempotency records for administrators: the statements.

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::record::read_records;
use super::step;
use super::writing::durably;
use crate::model::Outcome;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::record_admin::{DecideParams, Decision, RecordAdminStore, RecordRange};
use crate::store::verbs::record_row::{RecordRow, plain_columns};
use crate::store::verbs::time::to_micros;

/// The keys are found first: a row may have a large outcome.
const LIST: &str = read_records!(
    "NULL AS outcome, NULL AS outcome_size",
    "(
    SELECT scope, idempotency_key FROM rowlock_idempotency
    WHERE (scope, idempotency_key) >= (?1, ?2) AND (scope, idempotency_key) < (?3, ?4)
    ORDER BY scope, idempotency_key LIMIT 1000
) k CROSS JOIN rowlock_idempotency r ON r.scope = k.scope AND r.idempotency_key = k.idempotency_key,
(SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now
ORDER BY r.scope, r.idempotency_key"
);

const OPEN: &str = read_records!(
    "NULL AS outcome, NULL AS outcome_size",
    "(
    SELECT * FROM (SELECT scope, idempotency_key FROM rowlock_idempotency WHERE clean_at IS NULL LIMIT 1000)
    UNION ALL
    SELECT * FROM (SELECT scope, idempotency_key FROM rowlock_idempotency
                   WHERE clean_at IS NOT NULL ORDER BY clean_at DESC LIMIT 1000)
) k CROSS JOIN rowlock_idempotency r ON r.scope = k.scope AND r.idempotency_key = k.idempotency_key,
(SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now"
);

const TO_UNKNOWN: &str = "
UPDATE rowlock_idempotency SET state = 'unknown', forget_at = NULL, clean_at = NULL
WHERE scope = ?1 AND idempotency_key = ?2 AND attempt = ?3 AND state = 'running' AND open_step IS NOT NULL
  AND lease_until <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000";

const UNKNOWN: &str = "
SELECT attempt FROM rowlock_idempotency
WHERE scope = ?1 AND idempotency_key = ?2 AND attempt = ?3 AND open_step = ?4
  AND (state = 'unknown'
       OR (state = 'running' AND lease_until <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000))";

const RESOLVE: &str = "
UPDATE rowlock_idempotency
SET state = 'free', open_step = NULL, abandoned = 0, bound = 1, forget_at = now.us + ?3, clean_at = now.us + ?3
FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now
WHERE scope = ?1 AND idempotency_key = ?2";

/// It is unknown what an abandoned attempt began: the key stays bound to its request.
const RESET: &str = "
UPDATE rowlock_idempotency
SET state = CASE WHEN open_step IS NULL THEN 'free' ELSE 'unknown' END, abandoned = 0,
    bound = bound OR state = 'running',
    forget_at = CASE WHEN open_step IS NULL THEN now.us + ?4 END,
    clean_at = CASE WHEN open_step IS NULL THEN now.us + ?4 END
FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now
WHERE scope = ?1 AND idempotency_key = ?2 AND attempt = ?3
  AND (state = 'free' OR (state = 'running' AND lease_until <= now.us))";

#[async_trait]
impl RecordAdminStore for SqliteConnection {
    async fn record_list(&mut self, range: &RecordRange) -> Result<Vec<RecordRow>, Fault> {
        let list = sqlx::query_as(LIST).bind(&*range.from.0);
        let list = list.bind(&*range.from.1).bind(&*range.until.0);
        Ok(list.bind(&*range.until.1).fetch_all(self).await?)
    }

    async fn record_open(&mut self) -> Result<Vec<RecordRow>, Fault> {
        Ok(sqlx::query_as(OPEN).fetch_all(self).await?)
    }

    async fn record_decide(&mut self, params: &DecideParams) -> Result<bool, Fault> {
        durably(self, async |conn| {
            let (scope, key) = (params.key.scope(), params.key.key());
            let remember = to_micros(params.remember);
            let sql = match &params.decision {
                Decision::Unknown => TO_UNKNOWN,
                Decision::Reset => RESET,
                Decision::Resolve(step, outcome) => {
                    return resolve(conn, params, step, outcome.as_ref()).await;
                }
            };
            let mut query = sqlx::query(sql).bind(scope).bind(key).bind(params.attempt);
            if matches!(params.decision, Decision::Reset) {
                query = query.bind(remember);
            }
            Ok(query.execute(conn).await?.rows_affected() > 0)
        })
        .await
    }
}

async fn resolve(
    conn: &mut SqliteConnection,
    params: &DecideParams,
    step: &str,
    outcome: Option<&Outcome>,
) -> Result<bool, sqlx::Error> {
    let (scope, key) = (params.key.scope(), params.key.key());
    let found: Option<i64> = sqlx::query_scalar(UNKNOWN)
        .bind(scope)
        .bind(key)
        .bind(params.attempt)
        .bind(step)
        .fetch_optional(&mut *conn)
        .await?;
    if found.is_none() {
        return Ok(false);
    }
    if let Some(outcome) = outcome {
        step::keep(conn, &params.key, step, params.attempt, outcome).await?;
    }
    let resolve = sqlx::query(RESOLVE)
        .bind(scope)
        .bind(key)
        .bind(to_micros(params.remember));
    resolve.execute(conn).await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::RecordKey;
    use crate::store::sqlite::Sqlite;
    use crate::store::verbs::schema::SchemaStore;

    #[tokio::test]
    async fn a_decision_about_what_is_not_there_decides_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}/test.db?mode=rwc", dir.path().display());
        let sqlite = Sqlite::from_url(&url).unwrap();
        let minute = Duration::from_mins(1);
        let mut conn = sqlite.open(minute).await.unwrap();
        conn.migrate(crate::store::verbs::schema::MigrateUntil::Now)
            .await
            .unwrap();
        let happened = Outcome::new("text/plain", "done").unwrap();
        for decision in [
            Decision::Unknown,
            Decision::Reset,
            Decision::Resolve("charge".into(), None),
            Decision::Resolve("charge".into(), Some(happened)),
        ] {
            let params = DecideParams {
                key: RecordKey::new("scope", "k").unwrap(),
                attempt: 1,
                decision,
                remember: minute,
            };
            assert!(!conn.record_decide(&params).await.unwrap(), "{params:?}");
        }
    }
}
