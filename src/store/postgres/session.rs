//! Sessions: the statements.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{query, query_as, query_scalar};
use crate::store::fault::Fault;
use crate::store::session::{
    LeftBehind, OpenAsk, SessionColumns, SessionRenewed, SessionRow, SessionStore,
};
use crate::store::to_micros;

const OPEN: &str = "
INSERT INTO rowlock_session (id, holder, opened_at, expires_at)
VALUES ($1, $2, clock_timestamp(), clock_timestamp() + $3 * interval '1 microsecond')";

const RENEW: &str = "
UPDATE rowlock_session
SET expires_at = GREATEST(expires_at, clock_timestamp() + $2 * interval '1 microsecond')
WHERE id = $1 AND expires_at > clock_timestamp()
RETURNING (extract(epoch FROM expires_at - clock_timestamp()) * 1000000)::bigint, forced";

const GRANTS: &str = "
SELECT name, grant_id FROM rowlock_lock
WHERE session_id = $1 AND name > $2 AND grant_id IS NOT NULL
ORDER BY name LIMIT $3";

/// The statement's snapshot is newer than the sessions in it, so a session that it does not see has ended.
const BURY: &str = "
WITH ask AS (
    SELECT * FROM unnest($1::bytea[], $2::uuid[]) AS a (name, session_id)
), expired AS (
    SELECT id FROM rowlock_session
    WHERE id = ANY ($2) AND expires_at <= clock_timestamp()
    ORDER BY id
    FOR UPDATE SKIP LOCKED
), ended AS (
    UPDATE rowlock_session s SET expires_at = NULL FROM expired e WHERE s.id = e.id RETURNING s.id
), gone AS (
    SELECT id FROM ended
    UNION
    SELECT a.session_id FROM ask a
    WHERE NOT EXISTS (
        SELECT FROM rowlock_session s WHERE s.id = a.session_id AND s.expires_at IS NOT NULL
    )
), left_behind AS (
    SELECT l.name FROM rowlock_lock l
    JOIN ask a ON a.name = l.name AND a.session_id = l.session_id
    WHERE l.session_id IN (SELECT id FROM gone)
    ORDER BY l.name
    FOR UPDATE OF l SKIP LOCKED
)
UPDATE rowlock_lock l
SET grant_id = NULL, holder = NULL, acquired_at = NULL, expires_at = NULL, session_id = NULL, recall = NULL
FROM left_behind b
WHERE l.name = b.name";

/// Ends a session with its locks. It waits for the session's row only, which nobody keeps who waits for another row.
const END: &str = "
WITH ended AS (
    UPDATE rowlock_session SET expires_at = NULL WHERE id = $1
), held AS (
    SELECT name FROM rowlock_lock WHERE session_id = $1
    ORDER BY name
    FOR UPDATE SKIP LOCKED
)
UPDATE rowlock_lock l
SET grant_id = NULL, holder = NULL, acquired_at = NULL, expires_at = NULL, session_id = NULL, recall = NULL
FROM held h
WHERE l.name = h.name";

/// Frees at most `$2` locks of an ended session.
const FREE: &str = "
WITH held AS (
    SELECT name FROM rowlock_lock
    WHERE session_id = $1
      AND NOT EXISTS (SELECT FROM rowlock_session WHERE id = $1 AND expires_at IS NOT NULL)
    ORDER BY name LIMIT $2
    FOR UPDATE SKIP LOCKED
)
UPDATE rowlock_lock l
SET grant_id = NULL, holder = NULL, acquired_at = NULL, expires_at = NULL, session_id = NULL, recall = NULL
FROM held h
WHERE l.name = h.name";

const REMOVE: &str = "
DELETE FROM rowlock_session
WHERE id = $1 AND expires_at IS NULL
  AND NOT EXISTS (SELECT FROM rowlock_lock WHERE session_id = $1)";

const LIST: &str = "
SELECT s.id, s.holder,
       (extract(epoch FROM s.opened_at) * 1000000)::bigint,
       (extract(epoch FROM s.expires_at) * 1000000)::bigint,
       (extract(epoch FROM s.expires_at - clock_timestamp()) * 1000000)::bigint,
       (SELECT count(*) FROM rowlock_lock l
        WHERE l.session_id = s.id AND l.expires_at > clock_timestamp())
FROM rowlock_session s
WHERE s.expires_at > clock_timestamp()
ORDER BY s.opened_at, s.id";

/// Ends expired sessions, and returns the sessions to clean.
const EXPIRE: &str = "
WITH due AS (
    SELECT id FROM rowlock_session
    WHERE expires_at IS NULL OR expires_at <= clock_timestamp()
    LIMIT $1
    FOR UPDATE SKIP LOCKED
)
UPDATE rowlock_session s SET expires_at = NULL FROM due d WHERE s.id = d.id RETURNING s.id";

#[async_trait]
impl SessionStore for PgConnection {
    async fn session_open(&mut self, ask: &OpenAsk) -> Result<(), Fault> {
        query(OPEN)
            .bind(ask.id)
            .bind(&*ask.holder)
            .bind(to_micros(ask.ttl))
            .execute(self)
            .await?;
        Ok(())
    }

    async fn session_renew(
        &mut self,
        id: Uuid,
        ttl: Duration,
    ) -> Result<Option<SessionRenewed>, Fault> {
        let row: Option<(i64, i64)> = query_as(RENEW)
            .bind(id)
            .bind(to_micros(ttl))
            .fetch_optional(self)
            .await?;
        Ok(row.map(SessionRenewed::from))
    }

    async fn session_grants(
        &mut self,
        id: Uuid,
        after: &[u8],
        limit: u32,
    ) -> Result<Vec<(Vec<u8>, Uuid)>, Fault> {
        Ok(query_as(GRANTS)
            .bind(id)
            .bind(after)
            .bind(i64::from(limit))
            .fetch_all(self)
            .await?)
    }

    async fn session_bury(&mut self, left: &[LeftBehind]) -> Result<(), Fault> {
        query(BURY)
            .bind(left.iter().map(|l| l.name.as_bytes()).collect::<Vec<_>>())
            .bind(left.iter().map(|l| l.session).collect::<Vec<_>>())
            .execute(self)
            .await?;
        Ok(())
    }

    async fn session_end(&mut self, id: Uuid) -> Result<u64, Fault> {
        let ended = query(END).bind(id).execute(&mut *self).await?;
        // Locks that were granted meanwhile.
        let (late, _) = free(self, id, i64::MAX).await?;
        Ok(ended.rows_affected() + late)
    }

    async fn session_list(&mut self) -> Result<Vec<SessionRow>, Fault> {
        let rows: Vec<SessionColumns> = query_as(LIST).fetch_all(self).await?;
        Ok(rows.into_iter().map(SessionRow::from).collect())
    }

    async fn session_sweep(&mut self, most: u32) -> Result<u64, Fault> {
        let limit = i64::from(most);
        let due: Vec<Uuid> = query_scalar(EXPIRE)
            .bind(limit)
            .fetch_all(&mut *self)
            .await?;
        let mut swept = 0;
        for id in due {
            if swept >= u64::from(most) {
                break;
            }
            let (freed, removed) = free(self, id, limit).await?;
            swept += freed + removed;
        }
        Ok(swept)
    }
}

/// Frees locks of a session that has ended, and removes its row when none is left. Returns how many locks and sessions these were.
async fn free(conn: &mut PgConnection, id: Uuid, limit: i64) -> Result<(u64, u64), Fault> {
    let freed = query(FREE).bind(id).bind(limit).execute(&mut *conn).await?;
    let removed = query(REMOVE).bind(id).execute(conn).await?;
    Ok((freed.rows_affected(), removed.rows_affected()))
}
