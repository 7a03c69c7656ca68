//! Idempotency records for administrators: the statements.

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::record::read_records;
use super::step;
use super::writing::durably;
use crate::model::{Outcome, RecordState};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::record_admin::{DecideParams, Decision, ListParams, RecordAdminStore};
use crate::store::verbs::record_row::{RecordRow, plain_columns};
use crate::store::verbs::time::to_micros;

/// Records without their outcomes. The filter is the rule of
/// [`state_now`](crate::store::verbs::record_row::RecordRow::state_now).
const LIST: &str = read_records!(
    "NULL AS outcome, NULL AS outcome_size",
    "rowlock_idempotency r, (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now
WHERE (?1 IS NULL OR r.scope = ?1)
  AND (?2 IS NULL OR ?2 = CASE
        WHEN r.state = 'running' AND r.lease_until - 1000 > now.us THEN 'running'
        WHEN r.state = 'running' AND r.open_step IS NOT NULL THEN 'unknown'
        WHEN r.state IN ('running', 'free') AND r.abandoned >= r.max_attempts
             AND r.lease_until - 1000 > now.us - 3600000000 THEN 'poisoned'
        WHEN r.state = 'running' THEN 'lapsed'
        WHEN r.state = 'done' AND r.retain_until <= now.us THEN 'expired'
        ELSE r.state END)
ORDER BY r.scope, r.idempotency_key
LIMIT ?3"
);

const TO_UNKNOWN: &str = "
UPDATE rowlock_idempotency SET state = 'unknown', forget_at = NULL, clean_at = NULL
WHERE scope = ?1 AND idempotency_key = ?2 AND attempt = ?3 AND state = 'running' AND open_step IS NOT NULL
  AND lease_until <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000";

const UNKNOWN: &str = "
SELECT open_step FROM rowlock_idempotency
WHERE scope = ?1 AND idempotency_key = ?2 AND attempt = ?3 AND state = 'unknown'";

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
    async fn record_list(&mut self, filter: &ListParams) -> Result<Vec<RecordRow>, Fault> {
        Ok(sqlx::query_as(LIST)
            .bind(filter.scope.as_deref())
            .bind(filter.state.map(RecordState::name))
            .bind(i64::from(filter.limit))
            .fetch_all(self)
            .await?)
    }

    async fn record_decide(&mut self, params: &DecideParams) -> Result<bool, Fault> {
        durably(self, async |conn| {
            let (scope, key) = (params.key.scope(), params.key.key());
            let remember = to_micros(params.remember);
            let sql = match &params.decision {
                Decision::Unknown => TO_UNKNOWN,
                Decision::Reset => RESET,
                Decision::Resolve(outcome) => return resolve(conn, params, outcome.as_ref()).await,
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
    outcome: Option<&Outcome>,
) -> Result<bool, sqlx::Error> {
    let (scope, key) = (params.key.scope(), params.key.key());
    let found: Option<(Option<String>,)> = sqlx::query_as(UNKNOWN)
        .bind(scope)
        .bind(key)
        .bind(params.attempt)
        .fetch_optional(&mut *conn)
        .await?;
    let Some((Some(open_step),)) = found else {
        return Ok(false);
    };
    if let Some(outcome) = outcome {
        step::keep(conn, &params.key, &open_step, params.attempt, outcome).await?;
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
            Decision::Resolve(None),
            Decision::Resolve(Some(happened)),
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
