//! Cleaning: the statements.

use sqlx::SqliteConnection;

use super::idempotency::{FORGET_STEPS, in_a_transaction};
use crate::store::record::CleanedRows;

/// What is due.
const DUE: &str = "
SELECT r.rowid, r.scope, r.idempotency_key, r.forget_at <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
FROM rowlock_idempotency r
WHERE r.clean_at <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AND r.state <> 'running'
ORDER BY r.clean_at LIMIT ?1";

const REMOVE: &str = "DELETE FROM rowlock_idempotency WHERE rowid = ?1";

const EXPIRE: &str = "
UPDATE rowlock_idempotency SET state = 'expired', outcome = NULL, content_type = NULL, clean_at = forget_at
WHERE rowid = ?1";

pub(super) async fn records(
    conn: &mut SqliteConnection,
    limit: u32,
) -> Result<CleanedRows, sqlx::Error> {
    in_a_transaction(conn, async |conn| {
        let due: Vec<(i64, Vec<u8>, Vec<u8>, bool)> = sqlx::query_as(DUE)
            .bind(limit)
            .fetch_all(&mut *conn)
            .await?;
        let mut cleaned = CleanedRows::default();
        for (row, scope, key, over) in &due {
            if *over {
                sqlx::query(REMOVE).bind(row).execute(&mut *conn).await?;
                let steps = sqlx::query(FORGET_STEPS).bind(scope).bind(key);
                steps.execute(&mut *conn).await?;
                cleaned.records += 1;
            } else {
                sqlx::query(EXPIRE).bind(row).execute(&mut *conn).await?;
                cleaned.outcomes += 1;
            }
        }
        Ok(cleaned)
    })
    .await
}
