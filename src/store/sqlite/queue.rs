//! The queue of a name: the statements. Their times follow the rules of `lease.rs`.
//!
//! A writer has the whole file to itself, so a decision is a transaction that begins with the write lock: it reads the
//! row, and then changes the row and the waiters. When the file stays busy, nothing has happened.

use async_trait::async_trait;
use sqlx::{Row, SqliteConnection};
use uuid::Uuid;

use super::grant_rule::{freed, next_fence};
use super::listener::{PassedTo, tell_after_commit, wake};
use super::lock_row::{make_row, read, row_ends};
use super::quarantine::is_quarantined;
use super::waiter;
use super::writing::in_a_transaction;
use crate::model::{Kind, Name};
use crate::store::driver::{json, write_turn};
use crate::store::verbs::fault::{Fault, unlocked};
use crate::store::verbs::queue::{
    ConfirmOutcome, ConfirmParams, EndedGrant, JoinOutcome, JoinParams, LookOutcome, LookParams,
    PassOutcome, PassParams, QueueStore, Ticket, WINDOW, with_quarantine,
};
use crate::store::verbs::session::{LeftBehind, SessionStore};
use crate::store::verbs::time::to_micros;

const STATE: &str = "
SELECT l.grant_id, l.fence, coalesce(l.expires_at > now.us, FALSE), l.session_id,
       l.session_id IS NOT NULL AND coalesce(s.expires_at <= now.us, TRUE),
       l.waiters, l.next_position, l.passed, l.capacity, now.us, coalesce(l.paused_until > now.us, FALSE)
FROM rowlock_lock l
LEFT JOIN rowlock_session s ON s.id = l.session_id,
     (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now
WHERE l.name = ?1";

const GRANT: &str = concat!(
    "
UPDATE rowlock_lock
SET grant_id = ?2, fence = ",
    next_fence!("?3 + 1000"),
    ", holder = ?4, acquired_at = ?3, expires_at = ?5,
    session_id = ?6
WHERE name = ?1
RETURNING fence"
);

/// For a grant that an earlier sending made. It may have been passed on: then it has to be confirmed.
const KEEP: &str = "
UPDATE rowlock_lock SET expires_at = max(expires_at, ?2 + ?3 + 1000), session_id = ?4 WHERE name = ?1";

/// How many fences the confirm of a grant may reserve. Only another grant changes the fence before that. (A fence of
/// SQLite's clock is the end of its millisecond, which may be that of the next one.)
const BLOCK: &str = "
SELECT CASE WHEN fence <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 + 2000 + ?3 THEN ?3 ELSE 0 END
FROM rowlock_lock WHERE name = ?1 AND grant_id = ?2";

/// A transaction waits until the clock has passed the fences that were reserved, and has the file meanwhile: that must
/// not take long.
const BLOCK_LIMIT: i64 = 2_000;

/// A grant in its window has an expiry of `acquired_at` and the window (`First::window`) at most. Otherwise this is a
/// second sending: the expiry never moves back, and the session stays.
const CONFIRM: &str = "
UPDATE rowlock_lock
SET expires_at = max(
        CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 + ?3 + 1000,
        CASE WHEN expires_at > acquired_at + ?6 + 1000 THEN expires_at ELSE 0 END
    ),
    session_id = CASE WHEN expires_at > acquired_at + ?6 + 1000 THEN session_id ELSE ?4 END, fence = fence + ?5
WHERE name = ?1 AND grant_id = ?2
  AND expires_at > CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
RETURNING fence, waiters > 0 OR coalesce(paused_until > CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000, FALSE)";

const FREE: &str = concat!(
    "
UPDATE rowlock_lock
SET ",
    freed!(),
    "
WHERE name = ?1"
);

/// The waiter's grant is in the row; its waiter is there; and the time that the row's grant has left, or a pause of
/// the name.
const LOOK: &str = concat!(
    "
SELECT coalesce(l.grant_id = ?2 AND l.expires_at > now.us, FALSE),
       EXISTS (SELECT 1 FROM rowlock_waiter w WHERE w.name = ?1 AND w.position = ?3 AND w.grant_id = ?2),
       max(coalesce(",
    row_ends!(),
    " - now.us - 1000, 0), coalesce(l.paused_until - now.us - 1000, 0))
FROM rowlock_lock l
LEFT JOIN rowlock_session s ON s.id = l.session_id,
     (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now
WHERE l.name = ?1"
);

const AWAITED: &str = "
SELECT name FROM rowlock_lock
WHERE (waiters > 0 OR paused_until > CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)
  AND name IN (SELECT unhex(value ->> 0) FROM json_each(?1))";

/// A lock's row, by the clock `now`.
#[derive(Debug)]
struct NameRow {
    grant_id: Option<Uuid>,
    fence: i64,
    is_live: bool,
    session_id: Option<Uuid>,
    /// The lock belongs to a session that is not live.
    is_left: bool,
    waiters: i64,
    next_position: i64,
    passed: i64,
    kind: Option<Kind>,
    now: i64,
    is_paused: bool,
}

/// What passing on found.
enum PassFound {
    Done(PassOutcome),
    /// The lock belongs to this session, which is not live.
    LeftBehind(Uuid),
}

const KNOWS: &str = "
SELECT EXISTS (SELECT 1 FROM rowlock_waiter WHERE name = ?1 AND grant_id = ?2)
    OR EXISTS (SELECT 1 FROM rowlock_lock WHERE name = ?3 AND grant_id = ?2)";

#[async_trait]
impl QueueStore for SqliteConnection {
    async fn queue_join(&mut self, params: &JoinParams) -> Result<Option<JoinOutcome>, Fault> {
        let joined = in_a_transaction(self, async |conn| join(conn, params).await).await;
        joined_or_full(self, &params.name, joined).await
    }

    async fn queue_confirm(
        &mut self,
        params: &ConfirmParams,
    ) -> Result<Option<ConfirmOutcome>, Fault> {
        let _turn = write_turn::turn().await;
        let count = if params.fences > 0 {
            let block = sqlx::query_scalar(BLOCK)
                .bind(params.name.as_bytes())
                .bind(params.grant_id)
                .bind(params.fences.min(BLOCK_LIMIT));
            block.fetch_optional(&mut *self).await?.unwrap_or(0)
        } else {
            0
        };
        let fence: Result<Vec<(i64, bool)>, sqlx::Error> = sqlx::query_as(CONFIRM)
            .bind(params.name.as_bytes())
            .bind(params.grant_id)
            .bind(to_micros(params.ttl))
            .bind(params.session)
            .bind(count)
            .bind(to_micros(WINDOW))
            .fetch_all(self)
            .await;
        let confirmed = |fences: Vec<(i64, bool)>| match fences[..] {
            [(fence, is_awaited)] => ConfirmOutcome::held((fence, count, is_awaited)),
            _ => ConfirmOutcome::Gone,
        };
        Ok(unlocked(fence)?.map(confirmed))
    }

    async fn queue_pass(&mut self, params: &PassParams) -> Result<Option<PassOutcome>, Fault> {
        for _ in 0..2 {
            let mut passed_to = Vec::new();
            let pass = async |conn: &mut _| pass(conn, params, &mut passed_to).await;
            let passed = in_a_transaction(self, pass).await;
            match tell_after_commit(passed, &passed_to)? {
                Some(PassFound::Done(passed)) => return Ok(Some(passed)),
                Some(PassFound::LeftBehind(session)) => {
                    let name = params.name.clone();
                    let reclaimed = self.session_reclaim(&[LeftBehind { name, session }]).await;
                    if unlocked(reclaimed)?.is_none() {
                        return Ok(None);
                    }
                }
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    async fn queue_look(&mut self, all: &[LookParams]) -> Result<Vec<LookOutcome>, Fault> {
        let mut looked = Vec::with_capacity(all.len());
        for params in all {
            let row = sqlx::query_as(LOOK)
                .bind(params.name.as_bytes())
                .bind(params.grant_id)
                .bind(params.position)
                .fetch_optional(&mut *self)
                .await?;
            looked.push(row.unwrap_or(LookOutcome::Gone));
        }
        Ok(looked)
    }

    async fn queue_recall_due(&mut self, names: &[Name]) -> Result<Vec<Name>, Fault> {
        let awaited: Vec<Vec<u8>> = sqlx::query_scalar(AWAITED)
            .bind(json::names(names))
            .fetch_all(self)
            .await?;
        Ok(Name::all_of(&awaited))
    }

    async fn queue_test(&mut self, session: Uuid) -> Result<(), Fault> {
        wake(session);
        Ok(())
    }

    async fn queue_version(&mut self) -> Result<Option<i64>, Fault> {
        let version = sqlx::query_scalar("PRAGMA data_version");
        Ok(Some(version.fetch_one(self).await?))
    }

    async fn queue_knows(&mut self, ticket: &Ticket) -> Result<bool, Fault> {
        Ok(sqlx::query_scalar(KNOWS)
            .bind(ticket.name.as_bytes())
            .bind(ticket.grant_id)
            .bind(ticket.row().as_bytes())
            .fetch_one(self)
            .await?)
    }
}

/// `None`: the queue is full.
async fn join(
    conn: &mut SqliteConnection,
    params: &JoinParams,
) -> Result<Option<JoinOutcome>, sqlx::Error> {
    let name = params.name.as_bytes();
    let mut found = state(conn, &params.name).await?;
    if found.is_none() {
        make_row(conn, &params.name, Kind::Lock).await?;
        found = state(conn, &params.name).await?;
    }
    let Some(row) = found else {
        return Err(sqlx::Error::RowNotFound);
    };
    if row.kind != Some(Kind::Lock) {
        return Ok(Some(JoinOutcome::Mismatch(row.kind)));
    }
    let session = params.in_session.then_some(params.session);
    if row.is_live && row.grant_id == Some(params.grant_id) {
        let keep = sqlx::query(KEEP).bind(name).bind(row.now);
        let keep = keep.bind(to_micros(params.ttl)).bind(session);
        keep.execute(conn).await?;
        return Ok(Some(JoinOutcome::Granted { fence: row.fence }));
    }
    if !row.is_live && row.waiters == 0 && !row.is_paused && !is_quarantined(conn).await? {
        let fence = grant(
            conn,
            name,
            (params.grant_id, &params.holder),
            (row.now, row.now + to_micros(params.ttl) + 1000),
            session,
        );
        let fence = fence.await?;
        return Ok(Some(JoinOutcome::Granted { fence }));
    }
    let is_orphaned = !row.is_paused && (!row.is_live || row.is_left);
    let numbers = waiter::Numbers {
        waiters: row.waiters,
        next_position: row.next_position,
        passed: row.passed,
        now: row.now,
    };
    let position = waiter::queue(conn, params, 0, numbers).await?;
    Ok(position.map(|position| JoinOutcome::Queued {
        position,
        is_orphaned,
    }))
}

async fn pass(
    conn: &mut SqliteConnection,
    params: &PassParams,
    passed_to: &mut Vec<PassedTo>,
) -> Result<PassFound, sqlx::Error> {
    let name = params.name.as_bytes();
    let Some(mut row) = state(conn, &params.name).await? else {
        return Ok(PassFound::Done(PassOutcome::NOTHING));
    };
    if row.kind != Some(Kind::Lock) {
        // Its waiters are for permits, and it never has a grant.
        return Ok(PassFound::Done(PassOutcome::NOTHING));
    }
    if waiter::leave(conn, name, row.passed, params.why).await? {
        row.waiters -= 1;
    }
    let is_mine = row.grant_id.is_some() && row.grant_id == params.why.grant_id();
    if row.is_live && !is_mine {
        let left = row.session_id.filter(|_| row.is_left);
        return Ok(left.map_or(PassFound::Done(PassOutcome::NOTHING), PassFound::LeftBehind));
    }
    if row.grant_id.is_none() && row.waiters == 0 {
        return Ok(PassFound::Done(PassOutcome::NOTHING));
    }
    let ended = match (is_mine, row.is_live) {
        (false, _) => EndedGrant::Nothing,
        (true, false) => EndedGrant::Expired,
        (true, true) => EndedGrant::Live,
    };
    if row.waiters > 0 && (row.is_paused || is_quarantined(conn).await?) {
        // The waiters stay, and the name is orphaned after the pause or the quarantine.
        sqlx::query(FREE).bind(name).execute(conn).await?;
        let next = Vec::new();
        return Ok(PassFound::Done(PassOutcome { ended, next }));
    }
    let first = waiter::first(conn, name, row.passed, row.now).await?;
    let passed = first.as_ref().map(|first| first.position);
    let passed = passed.unwrap_or(row.next_position - 1);
    waiter::consume(conn, name, row.passed, passed).await?;
    let next = if let Some(first) = first {
        let window = (row.now, first.window(row.now));
        let whose = (first.grant_id, &*first.holder);
        grant(conn, name, whose, window, None).await?;
        let next = vec![first.grant_id];
        passed_to.push(PassedTo {
            session: first.session,
            grant_id: first.grant_id,
        });
        next
    } else {
        sqlx::query(FREE).bind(name).execute(conn).await?;
        Vec::new()
    };
    Ok(PassFound::Done(PassOutcome { ended, next }))
}

async fn state(conn: &mut SqliteConnection, name: &Name) -> Result<Option<NameRow>, sqlx::Error> {
    let row = sqlx::query(STATE).bind(name.as_bytes());
    let Some(row) = row.fetch_optional(conn).await? else {
        return Ok(None);
    };
    Ok(Some(NameRow {
        grant_id: row.try_get(0)?,
        fence: row.try_get(1)?,
        is_live: row.try_get(2)?,
        session_id: row.try_get(3)?,
        is_left: row.try_get(4)?,
        waiters: row.try_get(5)?,
        next_position: row.try_get(6)?,
        passed: row.try_get(7)?,
        kind: Kind::of(row.try_get(8)?),
        now: row.try_get(9)?,
        is_paused: row.try_get(10)?,
    }))
}

/// Grants the row to a grant id and its holder, from a time on and until another. Returns the fence.
async fn grant(
    conn: &mut SqliteConnection,
    name: &[u8],
    (grant_id, holder): (Uuid, &str),
    (now, until): (i64, i64),
    session: Option<Uuid>,
) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(GRANT)
        .bind(name)
        .bind(grant_id)
        .bind(now)
        .bind(holder)
        .bind(until)
        .bind(session)
        .fetch_one(conn)
        .await
}

/// The outcome of a join, for a lock or a permit; the transaction of a join answers `None` when the queue is full.
/// `None`: the file stayed busy, or the row was removed just now.
pub(super) async fn joined_or_full(
    conn: &mut SqliteConnection,
    name: &Name,
    joined: Result<Option<JoinOutcome>, Fault>,
) -> Result<Option<JoinOutcome>, Fault> {
    let Some(joined) = unlocked(joined)? else {
        return Ok(None);
    };
    if joined.is_some() {
        return Ok(joined);
    }
    let row = read(conn, std::iter::once(name)).await?;
    with_quarantine(conn, row.into_values().next().map(JoinOutcome::Full)).await
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
