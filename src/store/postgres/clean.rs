//! Cleaning: the statements.

use async_trait::async_trait;
use sqlx::PgConnection;

use super::grant_rule::is_unpaused;
use super::lock_row::row_ends;
use super::{query, query_as};
use crate::model::Name;
use crate::store::verbs::clean::{CleanStore, CleanedLocks, CleanedRows, IDLE};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::permit::pass_any;
use crate::store::verbs::queue::PassWhy;
use crate::store::verbs::time::to_micros;

/// Removes the rows that are due: whole records, or only outcomes and results of steps. `now()` is a little early, but
/// no index serves a comparison with `clock_timestamp()`, which is volatile.
const CLEAN: &str = "
WITH due AS (
    SELECT scope, idempotency_key, forget_at <= now() AS over FROM rowlock_idempotency
    WHERE clean_at <= now() AND state <> 'unknown'
      AND (state <> 'running' OR (open_step IS NULL AND lease_until <= now()))
    ORDER BY clean_at LIMIT $1
    FOR UPDATE SKIP LOCKED
), steps AS (
    DELETE FROM rowlock_idempotency_step s USING due o
    WHERE s.scope = o.scope AND s.idempotency_key = o.idempotency_key
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

const TOKENS: &str = "
DELETE FROM rowlock_form_token t
USING (
    SELECT scope, token FROM rowlock_form_token
    WHERE expires_at <= now()
    ORDER BY expires_at LIMIT $1
    FOR UPDATE SKIP LOCKED
) o
WHERE t.scope = o.scope AND t.token = o.token";

/// Names that something keeps from being idle, and whether they have permits. More of one is used than its live
/// permits weigh: a holder has crashed. Or it is free and has waiters: all of them may be dead.
const ORPHANED: &str = concat!(
    "
SELECT n.name, n.capacity <> 0 FROM (
    SELECT name, capacity, used, waiters, grant_id, expires_at FROM rowlock_lock WHERE name > $1 ORDER BY name LIMIT $2
) n
WHERE n.waiters > 0 AND n.used = 0 AND (n.grant_id IS NULL OR n.expires_at <= clock_timestamp())
   OR n.capacity <> 0 AND n.used > 0 AND n.used > (
    SELECT COALESCE(sum(l.weight), 0)
    FROM rowlock_lock l LEFT JOIN rowlock_session s ON s.id = l.session_id
    WHERE l.name > n.name || decode('00', 'hex') AND l.name < n.name || decode('01', 'hex') AND ",
    row_ends!(),
    " > clock_timestamp()
)"
);

/// Goes through the rows in the order of the primary key: neither the fence nor the expiry has an index. Under READ
/// COMMITTED a row that was granted after the statement's snapshot is checked again when it is locked, in its newest
/// version.
const IDLE_LOCKS: &str = concat!(
    "
WITH seen AS MATERIALIZED (
    SELECT name FROM rowlock_lock WHERE name > $1 ORDER BY name LIMIT $2
), idle AS (
    SELECT l.name FROM seen s JOIN rowlock_lock l ON l.name = s.name
    WHERE ((l.grant_id IS NULL AND l.expires_at IS NULL
            AND l.fence < (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - $3)
           OR l.expires_at < clock_timestamp() - $3 * interval '1 microsecond')
      AND l.waiters = 0 AND l.used = 0 AND ",
    is_unpaused!("l."),
    "
    ORDER BY l.name
    FOR UPDATE OF l SKIP LOCKED
), gone AS (
    DELETE FROM rowlock_lock l USING idle i
    WHERE l.name = i.name AND l.fence < (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM seen),
       (SELECT name FROM seen ORDER BY name DESC LIMIT 1)"
);

#[async_trait]
impl CleanStore for PgConnection {
    async fn lock_clean(&mut self, after: &[u8], limit: u32) -> Result<CleanedLocks, Fault> {
        let orphaned: Vec<(Vec<u8>, bool)> = query_as(ORPHANED)
            .bind(after)
            .bind(i64::from(limit))
            .fetch_all(&mut *self)
            .await?;
        for (name, has_permits) in &orphaned {
            let Some(name) = Name::from_bytes(name) else {
                continue;
            };
            // A row that a transaction has locked is in use.
            pass_any(self, &name, PassWhy::Orphaned, *has_permits).await?;
        }
        let (removed, seen, last): (i64, i64, Option<Vec<u8>>) = query_as(IDLE_LOCKS)
            .bind(after)
            .bind(i64::from(limit))
            .bind(to_micros(IDLE))
            .fetch_one(self)
            .await?;
        Ok(CleanedLocks {
            removed: removed.unsigned_abs(),
            last: last.filter(|_| seen >= i64::from(limit)),
        })
    }

    async fn clean_records(&mut self, limit: u32) -> Result<CleanedRows, Fault> {
        let tokens = query(TOKENS)
            .bind(i64::from(limit))
            .execute(&mut *self)
            .await?
            .rows_affected();
        let (outcomes, records): (i64, i64) = query_as(CLEAN)
            .bind(i64::from(limit))
            .fetch_one(&mut *self)
            .await?;
        Ok(CleanedRows {
            outcomes: outcomes.unsigned_abs(),
            records: records.unsigned_abs(),
            tokens,
            sessions: 0,
        })
    }
}
