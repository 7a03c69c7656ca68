//! Cleaning: the statements.

use sqlx::PgConnection;

use crate::store::record::CleanedRows;

/// What is due goes, or only its outcome does. `now()`, which is a little early: an index cannot be asked for what is
/// before `clock_timestamp()`, which is volatile.
const CLEAN: &str = "
WITH due AS (
    SELECT scope, idempotency_key, forget_at <= now() AS over FROM rowlock_idempotency
    WHERE clean_at <= now() AND state <> 'running'
    ORDER BY clean_at LIMIT $1
    FOR UPDATE SKIP LOCKED
), steps AS (
    DELETE FROM rowlock_idempotency_step s USING due o
    WHERE o.over AND s.scope = o.scope AND s.idempotency_key = o.idempotency_key
), gone AS (
    DELETE FROM rowlock_idempotency r USING due o
    WHERE o.over AND r.scope = o.scope AND r.idempotency_key = o.idempotency_key
    RETURNING 1
), expired AS (
    UPDATE rowlock_idempotency r
    SET state = 'expired', outcome = NULL, content_type = NULL, clean_at = r.forget_at
    FROM due o
    WHERE NOT o.over AND r.scope = o.scope AND r.idempotency_key = o.idempotency_key
    RETURNING 1
)
SELECT (SELECT count(*) FROM expired), (SELECT count(*) FROM gone)";

pub(super) async fn records(
    conn: &mut PgConnection,
    limit: u32,
) -> Result<CleanedRows, sqlx::Error> {
    let (outcomes, records): (i64, i64) = sqlx::query_as(CLEAN)
        .bind(i64::from(limit))
        .fetch_one(conn)
        .await?;
    Ok(CleanedRows {
        outcomes: outcomes.unsigned_abs(),
        records: records.unsigned_abs(),
        tokens: 0,
    })
}
