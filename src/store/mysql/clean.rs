//! Cleaning: the statements.

use async_trait::async_trait;
use sqlx::{Connection, MySqlConnection, Row};

use super::permit_reclaim::crashed_text;
use super::permit_text::{Reclaim, pass_text};
use super::record::{REMOVE, REMOVE_STEPS};
use super::statement::{fill, hex, in_one_transaction, read_as, transact};
use crate::model::{Name, RecordKey};
use crate::store::driver::json;
use crate::store::verbs::clean::{CleanStore, CleanedLocks, CleanedRows, IDLE};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::permit::{MOST, pass_any};
use crate::store::verbs::queue::{PassParams, PassWhy};
use crate::store::verbs::time::to_micros;

/// The rows that are due. `UTC_TIMESTAMP(6)` is a little early, but no index serves a comparison with `SYSDATE(6)`,
/// which changes while the statement runs. `run_in_tx` sets `clean_at` when it begins, before it keeps its outcome:
/// `retain_until` decides.
const DUE: &str = "
SELECT scope, idempotency_key, forget_at <= UTC_TIMESTAMP(6) FROM rowlock_idempotency
WHERE clean_at <= UTC_TIMESTAMP(6) AND state <> 'unknown'
  AND (state <> 'running' OR (open_step IS NULL AND lease_until <= UTC_TIMESTAMP(6)))
  AND (state <> 'done' OR retain_until <= UTC_TIMESTAMP(6))
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

const TOKENS: &str = "
DELETE t FROM (
    SELECT scope, token FROM rowlock_form_token
    WHERE expires_at <= UTC_TIMESTAMP(6)
    ORDER BY expires_at LIMIT ?
    FOR UPDATE SKIP LOCKED
) o
STRAIGHT_JOIN rowlock_form_token t FORCE INDEX (PRIMARY) ON t.scope = o.scope AND t.token = o.token";

/// The next names; whether each is idle, and whether it has permits. If it is free and has waiters: whether they wait
/// for permits. A plain read, which locks nothing.
const SEEN: &str = "
SELECT name,
       waiters = 0 AND used = 0 AND (paused_until IS NULL OR paused_until <= SYSDATE(6)) AND
       ((grant_id IS NULL AND expires_at IS NULL
         AND fence < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) - ?)
        OR COALESCE(expires_at < SYSDATE(6) - INTERVAL ? MICROSECOND, FALSE)) AS idle,
       used > 0,
       IF(waiters > 0 AND used = 0 AND (grant_id IS NULL OR expires_at <= SYSDATE(6)), capacity <> 0, NULL)
FROM rowlock_lock FORCE INDEX (PRIMARY)
WHERE name > ? ORDER BY name LIMIT ?";

/// Locks those of the names that are still idle.
const IDLE_LOCKS: &str = "
SELECT l.name
FROM JSON_TABLE(?, '$[*]' COLUMNS (name VARCHAR(576) CHARACTER SET ascii PATH '$[0]')) a
STRAIGHT_JOIN rowlock_lock l FORCE INDEX (PRIMARY) ON l.name = UNHEX(a.name)
WHERE l.waiters = 0 AND l.used = 0 AND (l.paused_until IS NULL OR l.paused_until <= SYSDATE(6))
  AND l.fence < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))
  AND ((l.grant_id IS NULL AND l.expires_at IS NULL
        AND l.fence < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) - ?)
       OR l.expires_at < SYSDATE(6) - INTERVAL ? MICROSECOND)
FOR UPDATE /*!80000 OF l */ SKIP LOCKED";

const REMOVE_LOCKS: &str = "
DELETE l
FROM JSON_TABLE(?, '$[*]' COLUMNS (name VARCHAR(576) CHARACTER SET ascii PATH '$[0]')) a
STRAIGHT_JOIN rowlock_lock l FORCE INDEX (PRIMARY) ON l.name = UNHEX(a.name)";

#[async_trait]
impl CleanStore for MySqlConnection {
    async fn lock_clean(&mut self, after: &[u8], limit: u32) -> Result<CleanedLocks, Fault> {
        let age = to_micros(IDLE);
        let mut seen = look(self, after, limit).await?;
        let mut used = Vec::new();
        let mut is_cleared = false;
        for (name, _, is_used, waits_for_permits) in &seen {
            let Some(name) = Name::from_bytes(name) else {
                continue;
            };
            if let Some(has_permits) = *waits_for_permits {
                // A row that a transaction has locked is in use.
                pass_any(self, &name, PassWhy::Orphaned, has_permits).await?;
                is_cleared = true;
            } else if *is_used {
                used.push(name);
            }
        }
        if reclaim(self, &used).await? || is_cleared {
            seen = look(self, after, limit).await?;
        }
        let last = seen.last().map(|(name, ..)| name.clone());
        let last = last.filter(|_| seen.len() >= limit as usize);
        let idle = seen.iter().filter(|(_, is_idle, ..)| *is_idle);
        let idle: Vec<&[u8]> = idle.map(|(name, ..)| name.as_slice()).collect();
        if idle.is_empty() {
            return Ok(CleanedLocks { removed: 0, last });
        }
        let mut tx = self.begin().await?;
        let locked: Vec<Vec<u8>> = sqlx::query_scalar(IDLE_LOCKS)
            .bind(json::raw_names(idle))
            .bind(age)
            .bind(age)
            .fetch_all(&mut *tx)
            .await?;
        let locked = json::raw_names(locked.iter().map(Vec::as_slice));
        let removed = sqlx::query(REMOVE_LOCKS).bind(locked).execute(&mut *tx);
        let removed = removed.await?.rows_affected();
        tx.commit().await?;
        Ok(CleanedLocks { removed, last })
    }

    async fn clean_records(&mut self, limit: u32) -> Result<CleanedRows, Fault> {
        let tokens = sqlx::query(TOKENS)
            .bind(limit)
            .execute(&mut *self)
            .await?
            .rows_affected();
        let mut tx = self.begin().await?;
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
            let keys = json::keys(&expired);
            let steps = sqlx::query(REMOVE_STEPS).bind(&keys);
            steps.execute(&mut *tx).await?;
            let expire = sqlx::query(EXPIRE).bind(&keys);
            outcomes = expire.execute(&mut *tx).await?.rows_affected();
        }
        tx.commit().await?;
        Ok(CleanedRows {
            outcomes,
            records,
            tokens,
            sessions: 0,
        })
    }
}

/// The next names, as [`SEEN`] has them.
async fn look(
    conn: &mut MySqlConnection,
    after: &[u8],
    limit: u32,
) -> Result<Vec<(Vec<u8>, bool, bool, Option<bool>)>, sqlx::Error> {
    let old = to_micros(IDLE).to_string();
    let seen = fill(SEEN, &[old.clone(), old, hex(after), limit.to_string()]);
    read_as(conn, &seen).await
}

/// Reclaims the permits of those of the names whose holders have crashed. Returns whether there was one.
async fn reclaim(conn: &mut MySqlConnection, names: &[Name]) -> Result<bool, Fault> {
    if names.is_empty() {
        return Ok(false);
    }
    let crashed = in_one_transaction(conn, &crashed_text(names)).await?;
    for row in &crashed {
        let name: Vec<u8> = row.try_get(0)?;
        let Some(name) = Name::from_bytes(&name) else {
            continue;
        };
        let why = PassWhy::Orphaned;
        // A row that a transaction has locked is not idle.
        let text = pass_text(&PassParams { name, why }, Reclaim::Now, MOST);
        transact(conn, &text).await?;
    }
    Ok(!crashed.is_empty())
}
