//! Cleaning: the statements.

use sqlx::{Connection, MySqlConnection};

use super::idempotency::{REMOVE, REMOVE_STEPS};
use crate::idempotency::RecordKey;
use crate::store::json;
use crate::store::record::CleanedRows;

/// What is due. `UTC_TIMESTAMP(6)`, which is a little early: an index cannot be asked for what is before `SYSDATE(6)`, which
/// changes while the statement runs.
const DUE: &str = "
SELECT scope, idempotency_key, forget_at <= UTC_TIMESTAMP(6) FROM rowlock_idempotency
WHERE clean_at <= UTC_TIMESTAMP(6) AND state <> 'running'
ORDER BY clean_at LIMIT ?
FOR UPDATE SKIP LOCKED";

const EXPIRE: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
    scope VARCHAR(510) CHARACTER SET ascii PATH '$[0]',
    k     VARCHAR(510) CHARACTER SET ascii PATH '$[1]'
)) a
STRAIGHT_JOIN rowlock_idempotency r FORCE INDEX (PRIMARY)
    ON r.scope = UNHEX(a.scope) AND r.idempotency_key = UNHEX(a.k)
SET r.state = 'expired', r.outcome = NULL, r.content_type = NULL, r.clean_at = r.forget_at";

pub(super) async fn records(
    conn: &mut MySqlConnection,
    limit: u32,
) -> Result<CleanedRows, sqlx::Error> {
    let mut tx = conn.begin().await?;
    let due: Vec<(Vec<u8>, Vec<u8>, bool)> =
        sqlx::query_as(DUE).bind(limit).fetch_all(&mut *tx).await?;
    let keys = |over: bool| {
        let due = due.iter().filter(|row| row.2 == over);
        due.filter_map(|(scope, key, _)| RecordKey::new(scope, key).ok())
            .collect::<Vec<_>>()
    };
    let (over, expired) = (keys(true), keys(false));
    let (mut records, mut outcomes) = (0, 0);
    if !over.is_empty() {
        let keys = json::keys(&over);
        let steps = sqlx::query(REMOVE_STEPS).bind(&keys);
        steps.execute(&mut *tx).await?;
        let gone = sqlx::query(REMOVE).bind(&keys).execute(&mut *tx).await?;
        records = gone.rows_affected();
    }
    if !expired.is_empty() {
        let expire = sqlx::query(EXPIRE).bind(json::keys(&expired));
        outcomes = expire.execute(&mut *tx).await?.rows_affected();
    }
    tx.commit().await?;
    Ok(CleanedRows {
        outcomes,
        records,
        tokens: 0,
    })
}
