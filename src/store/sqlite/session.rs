//! Sessions: the statements. Their times follow the rules of `lease.rs`.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::grant_rule::freed;
use super::listener::{first_sessions, wake};
use super::writing::in_a_transaction;
use crate::store::driver::{json, write_turn};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::session::{
    LeftBehind, OpenParams, SessionRenewed, SessionRow, SessionStore,
};
use crate::store::verbs::time::to_micros;

const OPEN: &str = "
INSERT INTO rowlock_session (id, holder, opened_at, expires_at)
SELECT ?1, ?2, now.us, now.us + ?3 + 1000
FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now";

const RENEW: &str = "
UPDATE rowlock_session
SET expires_at = max(expires_at, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 + ?2 + 1000)
WHERE id = ?1 AND expires_at > CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
RETURNING expires_at - CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 - 1000, forced";

const GRANTS: &str = "
SELECT name, grant_id FROM rowlock_lock
WHERE session_id = ?1 AND name > ?2 AND grant_id IS NOT NULL
ORDER BY name LIMIT ?3";

/// Ends those sessions of the list that have expired.
const EXPIRE: &str = "
UPDATE rowlock_session SET expires_at = NULL
WHERE id IN (SELECT unhex(a.value ->> 1) FROM json_each(?1) a)
  AND expires_at <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000";

const FREE_NAMES: &str = concat!(
    "
UPDATE rowlock_lock
SET ",
    freed!(),
    "
FROM (
    SELECT unhex(a.value ->> 0) AS name, unhex(a.value ->> 1) AS session_id FROM json_each(?1) a
) ask
WHERE rowlock_lock.name = ask.name AND rowlock_lock.session_id = ask.session_id
  AND NOT EXISTS (
      SELECT 1 FROM rowlock_session s WHERE s.id = ask.session_id AND s.expires_at IS NOT NULL
  )"
);

const END: &str = "UPDATE rowlock_session SET expires_at = NULL WHERE id = ?1";

/// Frees locks of an ended session.
const FREE: &str = concat!(
    "
UPDATE rowlock_lock
SET ",
    freed!(),
    "
WHERE name IN (SELECT name FROM rowlock_lock WHERE session_id = ?1 LIMIT ?2)"
);

const REMOVE: &str = "
DELETE FROM rowlock_session
WHERE id = ?1 AND expires_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM rowlock_lock WHERE session_id = ?1)";

const LIST: &str = "
SELECT s.id, s.holder, s.opened_at, s.expires_at,
       s.expires_at - CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 - 1000,
       (SELECT count(*) FROM rowlock_lock l
        WHERE l.session_id = s.id
          AND l.expires_at > CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)
FROM rowlock_session s
WHERE s.expires_at > CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
ORDER BY s.opened_at, s.id";

/// Ends expired sessions, and returns the sessions to clean.
const DUE: &str = "
UPDATE rowlock_session SET expires_at = NULL
WHERE id IN (
    SELECT id FROM rowlock_session
    WHERE expires_at IS NULL
       OR expires_at <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
    LIMIT ?1
)
RETURNING id";

#[async_trait]
impl SessionStore for SqliteConnection {
    async fn session_open(&mut self, params: &OpenParams) -> Result<(), Fault> {
        let _turn = write_turn::turn().await;
        sqlx::query(OPEN)
            .bind(params.id)
            .bind(&*params.holder)
            .bind(to_micros(params.ttl))
            .execute(self)
            .await?;
        Ok(())
    }

    async fn session_renew(
        &mut self,
        id: Uuid,
        ttl: Duration,
    ) -> Result<Option<SessionRenewed>, Fault> {
        let _turn = write_turn::turn().await;
        let mut rows: Vec<SessionRenewed> = sqlx::query_as(RENEW)
            .bind(id)
            .bind(to_micros(ttl))
            .fetch_all(self)
            .await?;
        Ok(rows.pop())
    }

    async fn session_grants(
        &mut self,
        id: Uuid,
        after: &[u8],
        limit: u32,
    ) -> Result<Vec<(Vec<u8>, Uuid)>, Fault> {
        Ok(sqlx::query_as(GRANTS)
            .bind(id)
            .bind(after)
            .bind(limit)
            .fetch_all(self)
            .await?)
    }

    async fn session_reclaim(&mut self, left: &[LeftBehind]) -> Result<(), Fault> {
        let _turn = write_turn::turn().await;
        let left = json::left_behind(left);
        for step in [EXPIRE, FREE_NAMES] {
            sqlx::query(step).bind(&left).execute(&mut *self).await?;
        }
        Ok(())
    }

    async fn session_end(&mut self, id: Uuid) -> Result<u64, Fault> {
        let (freed, waiting) = in_a_transaction(self, async |conn| {
            sqlx::query(END).bind(id).execute(&mut *conn).await?;
            let waiting = first_sessions(conn, id).await?;
            let (freed, _) = free(conn, id, i64::MAX).await?;
            Ok((freed, waiting))
        })
        .await?;
        for session in waiting {
            wake(session);
        }
        Ok(freed)
    }

    async fn session_list(&mut self) -> Result<Vec<SessionRow>, Fault> {
        Ok(sqlx::query_as(LIST).fetch_all(self).await?)
    }

    async fn session_due(&mut self, most: u32) -> Result<Vec<Uuid>, Fault> {
        let _turn = write_turn::turn().await;
        let due = sqlx::query_scalar(DUE).bind(most);
        Ok(due.fetch_all(self).await?)
    }

    async fn session_free(&mut self, id: Uuid, limit: i64) -> Result<(u64, u64), Fault> {
        let _turn = write_turn::turn().await;
        Ok(free(self, id, limit).await?)
    }
}

/// Frees locks of a session that has ended, and removes its row when none is left. Returns how many locks and sessions
/// these were.
async fn free(
    conn: &mut SqliteConnection,
    id: Uuid,
    limit: i64,
) -> Result<(u64, u64), sqlx::Error> {
    let freed = sqlx::query(FREE)
        .bind(id)
        .bind(limit)
        .execute(&mut *conn)
        .await?;
    let removed = sqlx::query(REMOVE).bind(id).execute(conn).await?;
    Ok((freed.rows_affected(), removed.rows_affected()))
}
