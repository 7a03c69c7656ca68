//! Sessions: the statements.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::mysql::{MySqlQueryResult, MySqlRow};
use sqlx::{FromRow, MySqlConnection, Row};
use uuid::Uuid;

use super::grant_rule::freed;
use super::listener::{listener_of, wake};
use super::statement::{
    answers_in_one_transaction, fill, hex, in_one_transaction, read_as, write_and_read,
};
use crate::store::driver::json;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::session::{
    LeftBehind, OpenParams, SessionRenewed, SessionRow, SessionStore,
};
use crate::store::verbs::time::to_micros;

const OPEN: &str = "
INSERT INTO rowlock_session (id, holder, opened_at, expires_at)
VALUES (?, ?, SYSDATE(6), SYSDATE(6) + INTERVAL ? MICROSECOND)";

const RENEW: &str = "
UPDATE rowlock_session
SET expires_at = GREATEST(expires_at, SYSDATE(6) + INTERVAL ? MICROSECOND)
WHERE id = ? AND expires_at > SYSDATE(6)";

const LEFT: &str = "
SELECT TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), expires_at), forced FROM rowlock_session
WHERE id = ? AND expires_at > SYSDATE(6)";

/// The index ends with the name, the primary key.
const GRANTS: &str = "
SELECT name, grant_id FROM rowlock_lock FORCE INDEX (rowlock_lock_session)
WHERE session_id = ? AND name > ? AND grant_id IS NOT NULL
ORDER BY name LIMIT ?";

/// Ends those sessions of the list that have expired.
const EXPIRE: &str = "
UPDATE (
    SELECT f.id FROM rowlock_session f FORCE INDEX (PRIMARY)
    WHERE f.id IN (?) AND f.expires_at <= SYSDATE(6)
    ORDER BY f.id LIMIT 1000000
    FOR UPDATE SKIP LOCKED
) t
STRAIGHT_JOIN rowlock_session s FORCE INDEX (PRIMARY) ON s.id = t.id
SET s.expires_at = NULL";

/// Those sessions of the list that have not ended.
const NOT_ENDED: &str = "SELECT id FROM rowlock_session WHERE id IN (?) AND expires_at IS NOT NULL";

const FREE_NAMES: &str = concat!(
    "
UPDATE (
    SELECT f.name
    FROM JSON_TABLE(?, '$[*]' COLUMNS (
        name       VARCHAR(576) CHARACTER SET ascii PATH '$[0]',
        session_id CHAR(32)     CHARACTER SET ascii PATH '$[1]'
    )) a
    STRAIGHT_JOIN rowlock_lock f FORCE INDEX (PRIMARY) ON f.name = UNHEX(a.name)
    WHERE f.session_id = UNHEX(a.session_id)
    LIMIT 1000000
    FOR UPDATE /*!80000 OF f */ SKIP LOCKED
) t
STRAIGHT_JOIN rowlock_lock l FORCE INDEX (PRIMARY) ON l.name = t.name
SET ",
    freed!("l.")
);

/// Who listens for the first waiters of the names that the session has, also those that it has permits of.
const WAITING: &str = concat!(
    "
SELECT DISTINCT ",
    listener_of!("f.session"),
    "
FROM (
    SELECT (
        SELECT HEX(w.session_id)
        FROM rowlock_lock n FORCE INDEX (PRIMARY)
        STRAIGHT_JOIN rowlock_waiter w FORCE INDEX (PRIMARY) ON w.name = n.name AND w.position > n.passed
        STRAIGHT_JOIN rowlock_session s FORCE INDEX (PRIMARY) ON s.id = w.session_id AND s.expires_at > SYSDATE(6)
        WHERE n.name = SUBSTRING_INDEX(l.name, 0x00, 1) AND n.waiters > 0
        ORDER BY w.position LIMIT 1) AS session
    FROM rowlock_lock l FORCE INDEX (rowlock_lock_session)
    WHERE l.session_id = ? LIMIT 1000
) f"
);

const END: &str = "UPDATE rowlock_session SET expires_at = NULL WHERE id = ?";

/// Frees locks of an ended session.
const FREE: &str = concat!(
    "
UPDATE (
    SELECT f.name FROM rowlock_lock f FORCE INDEX (rowlock_lock_session)
    WHERE f.session_id = ? LIMIT ?
    FOR UPDATE SKIP LOCKED
) t
STRAIGHT_JOIN rowlock_lock l FORCE INDEX (PRIMARY) ON l.name = t.name
SET ",
    freed!("l.")
);

/// A plain read: a DELETE with a subquery would wait for locked rows.
const HAS_LOCKS: &str = "SELECT name FROM rowlock_lock WHERE session_id = ? LIMIT 1";

const REMOVE: &str = "DELETE s FROM rowlock_session s WHERE s.id = ? AND s.expires_at IS NULL";

const LIST: &str = "
SELECT s.id, s.holder,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', s.opened_at),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', s.expires_at),
       TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), s.expires_at),
       (SELECT COUNT(*) FROM rowlock_lock l FORCE INDEX (rowlock_lock_session)
        WHERE l.session_id = s.id AND l.expires_at > SYSDATE(6))
FROM rowlock_session s
WHERE s.expires_at > SYSDATE(6)
ORDER BY s.opened_at, s.id";

const DUE: &str = "
SELECT id FROM rowlock_session
WHERE expires_at IS NULL OR expires_at <= SYSDATE(6)
LIMIT ?";

#[async_trait]
impl SessionStore for MySqlConnection {
    async fn session_open(&mut self, params: &OpenParams) -> Result<(), Fault> {
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
        let id = hex(id.as_bytes());
        let renew = fill(RENEW, &[to_micros(ttl).to_string(), id.clone()]);
        let rows = write_and_read(self, &renew, &fill(LEFT, &[id])).await?;
        Ok(rows.first().map(SessionRenewed::from_row).transpose()?)
    }

    async fn session_grants(
        &mut self,
        id: Uuid,
        after: &[u8],
        limit: u32,
    ) -> Result<Vec<(Vec<u8>, Uuid)>, Fault> {
        let literals = [hex(id.as_bytes()), hex(after), limit.to_string()];
        Ok(read_as(self, &fill(GRANTS, &literals)).await?)
    }

    async fn session_reclaim(&mut self, left: &[LeftBehind]) -> Result<(), Fault> {
        let sessions: Vec<String> = left.iter().map(|l| hex(l.session.as_bytes())).collect();
        let not_ended = end_expired(self, &sessions).await?;
        let ended = left.iter().filter(|l| !not_ended.contains(&l.session));
        sqlx::query(FREE_NAMES)
            .bind(json::left_behind(ended))
            .execute(self)
            .await?;
        Ok(())
    }

    async fn session_end(&mut self, id: Uuid) -> Result<u64, Fault> {
        // It waits for the session's row only. No statement that has that row locked waits for another row.
        let waiting = in_one_transaction(self, &fill(WAITING, &[hex(id.as_bytes())])).await?;
        // One round trip: if the client's machine vanished after the first statement, its rows would stay locked.
        let session = hex(id.as_bytes());
        let end = fill(END, std::slice::from_ref(&session));
        let free = fill(FREE, &[session, i64::MAX.to_string()]);
        let (_, results) = answers_in_one_transaction(self, &format!("{end}; {free}")).await?;
        let freed = results.get(1).map_or(0, MySqlQueryResult::rows_affected);
        // Locks that were granted meanwhile.
        let (late, _) = self.session_free(id, i64::MAX).await?;
        let waiting: Result<Vec<Option<i64>>, _> =
            waiting.iter().map(|row| row.try_get(0)).collect();
        wake(self, waiting?.into_iter().flatten()).await;
        Ok(freed + late)
    }

    async fn session_list(&mut self) -> Result<Vec<SessionRow>, Fault> {
        Ok(read_as(self, LIST).await?)
    }

    async fn session_due(&mut self, most: u32) -> Result<Vec<Uuid>, Fault> {
        let mut due = ids(&in_one_transaction(self, &fill(DUE, &[most.to_string()])).await?)?;
        let all: Vec<String> = due.iter().map(|id| hex(id.as_bytes())).collect();
        if all.is_empty() {
            return Ok(due);
        }
        let not_ended = end_expired(self, &all).await?;
        due.retain(|id| !not_ended.contains(id));
        Ok(due)
    }

    async fn session_free(&mut self, id: Uuid, limit: i64) -> Result<(u64, u64), Fault> {
        let freed = sqlx::query(FREE).bind(id).bind(limit);
        let freed = freed.execute(&mut *self).await?.rows_affected();
        let left = fill(HAS_LOCKS, &[hex(id.as_bytes())]);
        if !in_one_transaction(self, &left).await?.is_empty() {
            return Ok((freed, 0));
        }
        // A late grant may still come: it belongs to a session that is missing, which has ended.
        let removed = sqlx::query(REMOVE).bind(id).execute(self).await?;
        Ok((freed, removed.rows_affected()))
    }
}

/// Ends those of the sessions that have expired, and returns those that have not ended: their clients have renewed
/// them meanwhile.
async fn end_expired(
    conn: &mut MySqlConnection,
    sessions: &[String],
) -> Result<Vec<Uuid>, sqlx::Error> {
    let sessions = [sessions.join(", ")];
    let (expire, read) = (fill(EXPIRE, &sessions), fill(NOT_ENDED, &sessions));
    ids(&write_and_read(conn, &expire, &read).await?)
}

fn ids(rows: &[MySqlRow]) -> Result<Vec<Uuid>, sqlx::Error> {
    rows.iter().map(|row| row.try_get(0)).collect()
}
