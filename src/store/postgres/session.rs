//! Sessions: the statements.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::PgConnection;
use uuid::Uuid;

use super::grant_rule::freed;
use super::{each, query, query_as, query_scalar};
use crate::model::Name;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::permit::PermitStore;
use crate::store::verbs::queue::{PassParams, PassWhy, QueueStore};
use crate::store::verbs::session::{
    LeftBehind, OpenParams, SessionRenewed, SessionRow, SessionStore,
};
use crate::store::verbs::time::to_micros;

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
const RECLAIM: &str = concat!(
    "
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
SET ",
    freed!(),
    "
FROM left_behind b
WHERE l.name = b.name"
);

/// Ends a session with its locks. It waits for the session's row only. No statement that has that row locked waits
/// for another row.
const END: &str = concat!(
    "
WITH ended AS (
    UPDATE rowlock_session SET expires_at = NULL WHERE id = $1
), held AS (
    SELECT name FROM rowlock_lock WHERE session_id = $1
    ORDER BY name
    FOR UPDATE SKIP LOCKED
)
UPDATE rowlock_lock l
SET ",
    freed!(),
    "
FROM held h
WHERE l.name = h.name
RETURNING l.name, l.waiters > 0"
);

/// Frees at most `$2` locks of an ended session.
const FREE: &str = concat!(
    "
WITH held AS (
    SELECT name FROM rowlock_lock
    WHERE session_id = $1
      AND NOT EXISTS (SELECT FROM rowlock_session WHERE id = $1 AND expires_at IS NOT NULL)
    ORDER BY name LIMIT $2
    FOR UPDATE SKIP LOCKED
)
UPDATE rowlock_lock l
SET ",
    freed!(),
    "
FROM held h
WHERE l.name = h.name
RETURNING l.name, l.waiters > 0"
);

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

/// The name of a lock that was freed, and whether somebody waits for it.
type FreedName = (Vec<u8>, bool);

#[async_trait]
impl SessionStore for PgConnection {
    async fn session_open(&mut self, params: &OpenParams) -> Result<(), Fault> {
        query(OPEN)
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
        Ok(query_as(RENEW)
            .bind(id)
            .bind(to_micros(ttl))
            .fetch_optional(self)
            .await?)
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

    async fn session_reclaim(&mut self, left: &[LeftBehind]) -> Result<(), Fault> {
        query(RECLAIM)
            .bind(each(left, |l| l.name.as_bytes()))
            .bind(each(left, |l| l.session))
            .execute(self)
            .await?;
        Ok(())
    }

    async fn session_end(&mut self, id: Uuid) -> Result<u64, Fault> {
        let ended: Vec<FreedName> = query_as(END).bind(id).fetch_all(&mut *self).await?;
        pass_on(self, &ended).await?;
        // Locks that were granted meanwhile.
        let (late, _) = self.session_free(id, i64::MAX).await?;
        Ok(ended.len() as u64 + late)
    }

    async fn session_list(&mut self) -> Result<Vec<SessionRow>, Fault> {
        Ok(query_as(LIST).fetch_all(self).await?)
    }

    async fn session_due(&mut self, most: u32) -> Result<Vec<Uuid>, Fault> {
        let due = query_scalar(EXPIRE).bind(i64::from(most));
        Ok(due.fetch_all(self).await?)
    }

    async fn session_free(&mut self, id: Uuid, limit: i64) -> Result<(u64, u64), Fault> {
        let freed = query_as(FREE).bind(id).bind(limit);
        let freed: Vec<FreedName> = freed.fetch_all(&mut *self).await?;
        pass_on(self, &freed).await?;
        let removed = query(REMOVE).bind(id).execute(self).await?;
        Ok((freed.len() as u64, removed.rows_affected()))
    }
}

/// Passes on what was freed and is waited for: else its waiters would not be told. What is locked by now is found by
/// their looks.
async fn pass_on(conn: &mut PgConnection, freed: &[FreedName]) -> Result<(), Fault> {
    let why = PassWhy::Orphaned;
    let mut shared = BTreeSet::new();
    for (name, is_awaited) in freed {
        let Some(name) = Name::from_bytes(name) else {
            continue;
        };
        if let Some(of) = name.of_permit() {
            shared.insert(of);
        } else if *is_awaited {
            conn.queue_pass(&PassParams { name, why }).await?;
        }
    }
    for name in shared {
        conn.permit_pass(&PassParams { name, why }).await?;
    }
    Ok(())
}
