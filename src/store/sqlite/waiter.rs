//! The rows of waiters: the statements. Each is a part of a transaction that has the write lock.

use sqlx::{Row, SqliteConnection};
use uuid::Uuid;

use crate::store::verbs::queue::{JoinParams, PassWhy, WINDOW};
use crate::store::verbs::time::to_micros;

const FIND: &str = "
SELECT position FROM rowlock_waiter WHERE name = ?1 AND position > ?2 AND grant_id = ?3";

const ADD: &str = "
INSERT INTO rowlock_waiter (name, position, grant_id, session_id, holder, joined_at, weight)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";

const ADDED: &str = "
UPDATE rowlock_lock SET waiters = waiters + 1, next_position = next_position + 1 WHERE name = ?1";

const LEAVE: &str =
    "DELETE FROM rowlock_waiter WHERE name = ?1 AND position = ?2 AND grant_id = ?3";

const LEFT: &str = "UPDATE rowlock_lock SET waiters = waiters - 1 WHERE name = ?1";

/// CROSS JOIN keeps the sessions from becoming the outer loop.
const FIRST: &str = "
SELECT w.position, w.grant_id, w.holder, w.weight, s.expires_at, w.session_id
FROM rowlock_waiter w CROSS JOIN rowlock_session s ON s.id = w.session_id
WHERE w.name = ?1 AND w.position > ?2 AND s.expires_at > ?3
ORDER BY w.position LIMIT 1";

/// Removes the waiters up to a position.
const CONSUME: &str =
    "DELETE FROM rowlock_waiter WHERE name = ?1 AND position > ?2 AND position <= ?3";

/// When all are consumed, none is left. (A waiter whose row was deleted by hand was still counted.)
const CONSUMED: &str = "
UPDATE rowlock_lock
SET waiters = CASE WHEN ?3 = next_position - 1 THEN 0 ELSE max(waiters - ?2, 0) END, passed = ?3
WHERE name = ?1";

const TOO_HEAVY: &str = "DELETE FROM rowlock_waiter WHERE name = ?1 AND weight > ?2";

/// A waiter whose session is live.
#[derive(Debug)]
pub(super) struct First {
    pub(super) position: i64,
    pub(super) grant_id: Uuid,
    pub(super) holder: String,
    pub(super) weight: i64,
    pub(super) session: Uuid,
    /// When its session expires.
    ends: i64,
}

impl First {
    /// When its window is over: with its session, if that is sooner. A waiter that has died keeps nobody waiting for
    /// longer.
    pub(super) fn window(&self, now: i64) -> i64 {
        self.ends.min(now + to_micros(WINDOW) + 1000)
    }
}

/// The position of a grant's waiter.
async fn find(
    conn: &mut SqliteConnection,
    name: &[u8],
    passed: i64,
    grant_id: Uuid,
) -> Result<Option<i64>, sqlx::Error> {
    let find = sqlx::query_scalar(FIND).bind(name).bind(passed);
    find.bind(grant_id).fetch_optional(conn).await
}

/// The numbers of a queue, and the time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Numbers {
    pub(super) waiters: i64,
    pub(super) next_position: i64,
    pub(super) passed: i64,
    pub(super) now: i64,
}

/// Finds the waiter of an earlier sending, or puts a new one at the end of the queue. `None`: the queue is full.
pub(super) async fn queue(
    conn: &mut SqliteConnection,
    params: &JoinParams,
    weight: u32,
    numbers: Numbers,
) -> Result<Option<i64>, sqlx::Error> {
    let name = params.name.as_bytes();
    let found = find(conn, name, numbers.passed, params.grant_id).await?;
    if found.is_some() || numbers.waiters >= i64::from(params.most) {
        return Ok(found);
    }
    let position = numbers.next_position;
    add(conn, params, weight, (position, numbers.now)).await?;
    Ok(Some(position))
}

/// Puts a waiter at the end of the queue.
async fn add(
    conn: &mut SqliteConnection,
    params: &JoinParams,
    weight: u32,
    (position, now): (i64, i64),
) -> Result<(), sqlx::Error> {
    let name = params.name.as_bytes();
    sqlx::query(ADD)
        .bind(name)
        .bind(position)
        .bind(params.grant_id)
        .bind(params.session)
        .bind(&*params.holder)
        .bind(now)
        .bind(weight)
        .execute(&mut *conn)
        .await?;
    sqlx::query(ADDED).bind(name).execute(conn).await?;
    Ok(())
}

/// Removes the waiter that leaves, if one does. Returns whether it was there.
pub(super) async fn leave(
    conn: &mut SqliteConnection,
    name: &[u8],
    passed: i64,
    why: PassWhy,
) -> Result<bool, sqlx::Error> {
    let PassWhy::Left { grant_id, at } = why else {
        return Ok(false);
    };
    let position = match at {
        Some(at) => Some(at),
        None => find(conn, name, passed, grant_id).await?,
    };
    let leave = sqlx::query(LEAVE).bind(name).bind(position).bind(grant_id);
    let was_there = leave.execute(&mut *conn).await?.rows_affected() > 0;
    if was_there {
        sqlx::query(LEFT).bind(name).execute(conn).await?;
    }
    Ok(was_there)
}

/// The first waiter whose session is live.
pub(super) async fn first(
    conn: &mut SqliteConnection,
    name: &[u8],
    passed: i64,
    now: i64,
) -> Result<Option<First>, sqlx::Error> {
    let first = sqlx::query(FIRST).bind(name).bind(passed).bind(now);
    let Some(row) = first.fetch_optional(conn).await? else {
        return Ok(None);
    };
    Ok(Some(First {
        position: row.try_get(0)?,
        grant_id: row.try_get(1)?,
        holder: row.try_get(2)?,
        weight: row.try_get(3)?,
        ends: row.try_get(4)?,
        session: row.try_get(5)?,
    }))
}

/// Removes the waiters after the position `passed`, up to `until`. Returns how many these were.
pub(super) async fn consume(
    conn: &mut SqliteConnection,
    name: &[u8],
    passed: i64,
    until: i64,
) -> Result<i64, sqlx::Error> {
    let consume = sqlx::query(CONSUME).bind(name).bind(passed).bind(until);
    let consumed = consume.execute(&mut *conn).await?.rows_affected();
    let consumed = consumed.cast_signed();
    let note = sqlx::query(CONSUMED).bind(name).bind(consumed).bind(until);
    note.execute(conn).await?;
    Ok(consumed)
}

/// Removes the waiters with a larger weight. Returns how many these were. (The caller writes it into the row.)
pub(super) async fn remove_heavier(
    conn: &mut SqliteConnection,
    name: &[u8],
    weight: u32,
) -> Result<i64, sqlx::Error> {
    let remove = sqlx::query(TOO_HEAVY).bind(name).bind(weight);
    let removed = remove.execute(conn).await?.rows_affected();
    Ok(removed.cast_signed())
}
