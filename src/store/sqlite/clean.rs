//! Cleaning: the statements.

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::grant_rule::is_unpaused;
use super::lock_row::row_ends;
use super::permit_row::permits_of;
use super::record::FORGET_STEPS;
use super::writing::in_a_transaction;
use crate::model::Name;
use crate::store::driver::json;
use crate::store::verbs::clean::{CleanStore, CleanedLocks, CleanedRows, IDLE};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::permit::pass_any;
use crate::store::verbs::queue::PassWhy;
use crate::store::verbs::time::to_micros;

/// The rows that are due.
const DUE: &str = "
SELECT r.rowid, r.scope, r.idempotency_key, r.forget_at <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
FROM rowlock_idempotency r
WHERE r.clean_at <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AND r.state <> 'unknown'
  AND (r.state <> 'running'
       OR (r.open_step IS NULL AND r.lease_until <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000))
ORDER BY r.clean_at LIMIT ?1";

const REMOVE: &str = "DELETE FROM rowlock_idempotency WHERE rowid = ?1";

const EXPIRE: &str = "
UPDATE rowlock_idempotency SET state = 'expired', outcome = NULL, content_type = NULL, clean_at = forget_at
WHERE rowid = ?1";

const TOKENS: &str = "
DELETE FROM rowlock_form_token
WHERE rowid IN (
    SELECT t.rowid FROM rowlock_form_token t
    WHERE t.expires_at <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
    ORDER BY t.expires_at LIMIT ?1
)";

/// The next names; whether each is idle, and whether it has permits. If it is free and has waiters: whether they wait
/// for permits. It does not take the write lock.
const SEEN: &str = concat!(
    "
SELECT name,
       ((grant_id IS NULL AND expires_at IS NULL AND fence < now.us - ?1)
       OR COALESCE(expires_at < now.us - ?1, FALSE)) AND waiters = 0 AND used = 0 AND ",
    is_unpaused!("now.us"),
    ",
       used > 0,
       CASE WHEN waiters > 0 AND used = 0 AND (grant_id IS NULL OR expires_at <= now.us) THEN capacity <> 0 END
FROM rowlock_lock, (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now
WHERE name > ?2 ORDER BY name LIMIT ?3"
);

/// Whether more of a name is used than its live permits weigh: a holder has crashed.
const CRASHED: &str = concat!(
    "
SELECT k.used > (
    SELECT coalesce(sum(l.weight), 0)
    FROM rowlock_lock l LEFT JOIN rowlock_session s ON s.id = l.session_id
    WHERE l.name > ?2 AND l.name < ?3
      AND ",
    row_ends!(),
    " > CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
)
FROM rowlock_lock k WHERE k.name = ?1 AND k.capacity <> 0"
);

/// Those of the names that are still idle.
const IDLE_LOCKS: &str = concat!(
    "
DELETE FROM rowlock_lock
WHERE name IN (SELECT unhex(a.value ->> 0) FROM json_each(?1) a)
  AND fence < CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
  AND waiters = 0 AND used = 0 AND ",
    is_unpaused!(),
    "
  AND ((grant_id IS NULL AND expires_at IS NULL
        AND fence < CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 - ?2)
       OR expires_at < CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 - ?2)"
);

#[async_trait]
impl CleanStore for SqliteConnection {
    async fn lock_clean(&mut self, after: &[u8], limit: u32) -> Result<CleanedLocks, Fault> {
        let age = to_micros(IDLE);
        let mut seen = look(self, after, limit).await?;
        let mut is_cleared = false;
        for (name, _, is_used, waits_for_permits) in &seen {
            let Some(name) = Name::from_bytes(name) else {
                continue;
            };
            let has_permits = match waits_for_permits {
                None if *is_used && has_crashed(self, &name).await? => true,
                None => continue,
                Some(has_permits) => *has_permits,
            };
            // A row that a transaction has locked is in use.
            pass_any(self, &name, PassWhy::Orphaned, has_permits).await?;
            is_cleared = true;
        }
        if is_cleared {
            seen = look(self, after, limit).await?;
        }
        let last = seen.last().map(|(name, ..)| name.clone());
        let last = last.filter(|_| seen.len() >= limit as usize);
        let idle = seen.iter().filter(|(_, is_idle, ..)| *is_idle);
        let idle: Vec<&[u8]> = idle.map(|(name, ..)| name.as_slice()).collect();
        if idle.is_empty() {
            return Ok(CleanedLocks { removed: 0, last });
        }
        let removed = sqlx::query(IDLE_LOCKS)
            .bind(json::raw_names(idle))
            .bind(age);
        let removed = removed.execute(self).await?.rows_affected();
        Ok(CleanedLocks { removed, last })
    }

    async fn clean_records(&mut self, limit: u32) -> Result<CleanedRows, Fault> {
        let tokens = sqlx::query(TOKENS)
            .bind(limit)
            .execute(&mut *self)
            .await?
            .rows_affected();
        in_a_transaction(self, async |conn| {
            let due: Vec<(i64, Vec<u8>, Vec<u8>, bool)> = sqlx::query_as(DUE)
                .bind(limit)
                .fetch_all(&mut *conn)
                .await?;
            let mut cleaned = CleanedRows {
                tokens,
                ..CleanedRows::default()
            };
            for (row, scope, key, over) in &due {
                let steps = sqlx::query(FORGET_STEPS).bind(scope).bind(key);
                steps.execute(&mut *conn).await?;
                if *over {
                    sqlx::query(REMOVE).bind(row).execute(&mut *conn).await?;
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
}

/// The next names, as [`SEEN`] has them.
async fn look(
    conn: &mut SqliteConnection,
    after: &[u8],
    limit: u32,
) -> Result<Vec<(Vec<u8>, bool, bool, Option<bool>)>, sqlx::Error> {
    let seen = sqlx::query_as(SEEN).bind(to_micros(IDLE)).bind(after);
    seen.bind(limit).fetch_all(conn).await
}

/// Whether a holder of a permit of the name has crashed.
async fn has_crashed(conn: &mut SqliteConnection, name: &Name) -> Result<bool, Fault> {
    let (after, before) = permits_of(name);
    let crashed = sqlx::query_scalar(CRASHED).bind(name.as_bytes());
    let crashed = crashed.bind(after).bind(before);
    let crashed: Option<bool> = crashed.fetch_optional(conn).await?;
    Ok(crashed == Some(true))
}
