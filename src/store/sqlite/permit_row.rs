//! The row of a name with permits, in a transaction that has the write lock: the statements of `permit.rs`.
//!
//! There is one time in such a transaction: that of its first look at the row.

use sqlx::{Row, SqliteConnection};
use uuid::Uuid;

use super::grant_rule::next_fence;
use super::listener::PassedTo;
use super::lock_row::row_ends;
use super::quarantine::is_quarantined;
use super::waiter;
use crate::model::bounds::MIN_TTL;
use crate::model::{Kind, Name};
use crate::store::verbs::permit::MOST;
use crate::store::verbs::queue::EndedGrant;
use crate::store::verbs::time::to_micros;

const STATE: &str = "
SELECT l.capacity, l.used, l.waiters, l.next_position, l.passed, now.us, coalesce(l.paused_until > now.us, FALSE),
       coalesce(l.reclaim_at > now.us AND l.reclaim_at <= now.us + ?2, FALSE)
FROM rowlock_lock l, (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now
WHERE l.name = ?1";

/// For a permit that an earlier sending was granted. It may have been passed on: then it has to be confirmed.
const KEEP: &str = "
UPDATE rowlock_lock SET expires_at = max(expires_at, ?4), session_id = ?5
WHERE name = ?1 AND grant_id = ?2 AND expires_at > ?3
RETURNING fence";

/// Whatever has become of it.
const REMOVE: &str = "
DELETE FROM rowlock_lock WHERE name = ?1
RETURNING weight, grant_id IS NOT NULL, coalesce(expires_at > ?2, FALSE)";

const USE: &str = "UPDATE rowlock_lock SET used = max(used + ?2, 0) WHERE name = ?1";

const NEXT_FENCE: &str = concat!(
    "UPDATE rowlock_lock SET fence = ",
    next_fence!("?2 + 1000"),
    " WHERE name = ?1 RETURNING fence"
);

const FENCE: &str = "SELECT fence FROM rowlock_lock WHERE name = ?1";

const MAKE: &str = "
INSERT INTO rowlock_lock (name, grant_id, fence, holder, acquired_at, expires_at, session_id, capacity, weight)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";

/// When the first permit ends, and whether one belongs to a session: that may end at any time.
const FIRST_END: &str = concat!(
    "
SELECT min(iif(l.grant_id IS NULL, 0, ",
    row_ends!(),
    ")), max(l.session_id) IS NOT NULL FROM rowlock_lock l LEFT JOIN rowlock_session s ON s.id = l.session_id
WHERE l.name > ?1 AND l.name < ?2"
);

const NONE_ENDS: &str = "UPDATE rowlock_lock SET reclaim_at = ?2 WHERE name = ?1";

/// Ends the sessions of permits that have expired: no renewal in flight revives them.
const END_SESSIONS: &str = "
UPDATE rowlock_session SET expires_at = NULL
WHERE expires_at <= ?3 AND id IN (
    SELECT p.session_id FROM rowlock_lock p WHERE p.name > ?1 AND p.name < ?2 AND p.session_id IS NOT NULL)";

const RECLAIM: &str = "
DELETE FROM rowlock_lock
WHERE name > ?1 AND name < ?2
  AND (grant_id IS NULL OR expires_at <= ?3
       OR (session_id IS NOT NULL AND NOT EXISTS (
           SELECT 1 FROM rowlock_session s WHERE s.id = rowlock_lock.session_id AND s.expires_at IS NOT NULL)))";

const SUM: &str = "SELECT coalesce(sum(weight), 0) FROM rowlock_lock WHERE name > ?1 AND name < ?2";

/// A row that is not changed is not written.
const USED: &str = "UPDATE rowlock_lock SET used = ?2 WHERE name = ?1 AND used <> ?2";

/// The row of a name in a transaction that has the write lock.
#[derive(Debug)]
pub(super) struct PermitName<'a> {
    pub(super) conn: &'a mut SqliteConnection,
    name: &'a Name,
    pub(super) capacity: i64,
    used: i64,
    pub(super) waiters: i64,
    pub(super) next_position: i64,
    pub(super) passed: i64,
    pub(super) now: i64,
    is_paused: bool,
    /// Its permits were read in this transaction, or a note says that none has ended.
    is_read: bool,
}

/// What a new permit belongs to.
pub(super) struct PermitRequest<'a> {
    pub(super) grant_id: Uuid,
    pub(super) holder: &'a str,
    pub(super) weight: i64,
    pub(super) until: i64,
    pub(super) session: Option<Uuid>,
}

impl<'a> PermitName<'a> {
    pub(super) async fn read(
        conn: &'a mut SqliteConnection,
        name: &'a Name,
    ) -> Result<Option<Self>, sqlx::Error> {
        let row = sqlx::query(STATE)
            .bind(name.as_bytes())
            .bind(to_micros(MIN_TTL));
        let Some(row) = row.fetch_optional(&mut *conn).await? else {
            return Ok(None);
        };
        Ok(Some(Self {
            conn,
            name,
            capacity: row.try_get(0)?,
            used: row.try_get(1)?,
            waiters: row.try_get(2)?,
            next_position: row.try_get(3)?,
            passed: row.try_get(4)?,
            now: row.try_get(5)?,
            is_paused: row.try_get(6)?,
            is_read: row.try_get(7)?,
        }))
    }

    pub(super) fn has_permits(&self) -> bool {
        Kind::of(self.capacity).is_some_and(Kind::has_permits)
    }

    /// Whether the name is not paused, and the database is in no quarantine.
    pub(super) async fn may_grant(&mut self) -> Result<bool, sqlx::Error> {
        Ok(!self.is_paused && !is_quarantined(self.conn).await?)
    }

    /// The fence of the grant's permit, if it is live: it lasts as long as the ask wants.
    pub(super) async fn keep(
        &mut self,
        wanted: &PermitRequest<'_>,
    ) -> Result<Option<i64>, sqlx::Error> {
        let kept: Vec<i64> = sqlx::query_scalar(KEEP)
            .bind(self.name.permit(wanted.grant_id).as_bytes())
            .bind(wanted.grant_id)
            .bind(self.now)
            .bind(wanted.until)
            .bind(wanted.session)
            .fetch_all(&mut *self.conn)
            .await?;
        Ok(kept.first().copied())
    }

    /// Removes the grant's permit. Returns what it was until now.
    pub(super) async fn remove(&mut self, grant_id: Uuid) -> Result<EndedGrant, sqlx::Error> {
        let removed: Vec<(i64, bool, bool)> = sqlx::query_as(REMOVE)
            .bind(self.name.permit(grant_id).as_bytes())
            .bind(self.now)
            .fetch_all(&mut *self.conn)
            .await?;
        let Some(&(weight, is_granted, is_live)) = removed.first() else {
            return Ok(EndedGrant::Nothing);
        };
        self.take(-weight).await?;
        Ok(match (is_granted, is_live) {
            (true, true) => EndedGrant::Live,
            (true, false) => EndedGrant::Expired,
            // Its session has ended.
            (false, _) => EndedGrant::Nothing,
        })
    }

    /// Whether so much more fits. Reclaims if it does not, and a permit has ended.
    pub(super) async fn fits(&mut self, more: i64) -> Result<bool, sqlx::Error> {
        if self.used + more > self.capacity && !self.is_read {
            let (after, before) = permits_of(self.name);
            let first = sqlx::query_as(FIRST_END).bind(after).bind(before);
            let first: (Option<i64>, bool) = first.fetch_one(&mut *self.conn).await?;
            let (first_end, in_session) = (first.0.unwrap_or(i64::MAX), first.1);
            if first_end <= self.now {
                self.reclaim().await?;
            } else if !in_session {
                // A grant or a renewal from now on ends later than the shortest lease that begins now.
                let none_before = first_end.min(self.now + to_micros(MIN_TTL));
                let note = sqlx::query(NONE_ENDS).bind(self.name.as_bytes());
                note.bind(none_before).execute(&mut *self.conn).await?;
            }
            self.is_read = true;
        }
        Ok(self.used + more <= self.capacity)
    }

    /// Counts what the permits weigh, if someone waits for what is used, or no one waits: one may have been removed by
    /// hand.
    pub(super) async fn recount(&mut self) -> Result<(), sqlx::Error> {
        self.is_read = false;
        let name = self.name.as_bytes();
        let first = waiter::first(self.conn, name, self.passed, self.now).await?;
        if first.is_none_or(|first| self.used + first.weight > self.capacity) {
            self.reclaim().await?;
            self.is_read = true;
        }
        Ok(())
    }

    /// Removes the permits that have ended.
    async fn reclaim(&mut self) -> Result<(), sqlx::Error> {
        let (after, before) = permits_of(self.name);
        for step in [END_SESSIONS, RECLAIM] {
            let step = sqlx::query(step).bind(&after).bind(&before);
            step.bind(self.now).execute(&mut *self.conn).await?;
        }
        let sum = sqlx::query_scalar(SUM).bind(after).bind(before);
        self.used = sum.fetch_one(&mut *self.conn).await?;
        let used = sqlx::query(USED).bind(self.name.as_bytes());
        used.bind(self.used).execute(&mut *self.conn).await?;
        Ok(())
    }

    /// Takes so much more of the capacity.
    pub(super) async fn take(&mut self, more: i64) -> Result<(), sqlx::Error> {
        let take = sqlx::query(USE).bind(self.name.as_bytes()).bind(more);
        take.execute(&mut *self.conn).await?;
        self.used = (self.used + more).max(0);
        Ok(())
    }

    pub(super) async fn next_fence(&mut self) -> Result<i64, sqlx::Error> {
        let next = sqlx::query_scalar(NEXT_FENCE).bind(self.name.as_bytes());
        next.bind(self.now).fetch_one(&mut *self.conn).await
    }

    /// Makes a permit, which fits. Returns its fence.
    pub(super) async fn make(&mut self, wanted: &PermitRequest<'_>) -> Result<i64, sqlx::Error> {
        let reads = Kind::of(self.capacity) == Some(Kind::ReadWrite)
            && wanted.weight < i64::from(Kind::ALL);
        let fence = if reads {
            // Readers share the fence of the last write.
            let fence = sqlx::query_scalar(FENCE).bind(self.name.as_bytes());
            fence.fetch_one(&mut *self.conn).await?
        } else {
            self.next_fence().await?
        };
        sqlx::query(MAKE)
            .bind(self.name.permit(wanted.grant_id).as_bytes())
            .bind(wanted.grant_id)
            .bind(fence)
            .bind(wanted.holder)
            .bind(self.now)
            .bind(wanted.until)
            .bind(wanted.session)
            .bind(self.capacity)
            .bind(wanted.weight)
            .execute(&mut *self.conn)
            .await?;
        self.take(wanted.weight).await?;
        Ok(fence)
    }

    /// Grants permits to the first waiters, as many as fit, but at most [`MOST`]. The first one that does not fit
    /// blocks those after it.
    pub(super) async fn grant_waiters(
        &mut self,
        passed_to: &mut Vec<PassedTo>,
    ) -> Result<Vec<Uuid>, sqlx::Error> {
        let mut next = Vec::new();
        let name = self.name.as_bytes();
        if self.waiters > 0 && !self.may_grant().await? {
            return Ok(next);
        }
        while self.waiters > 0 && next.len() < MOST {
            let first = waiter::first(self.conn, name, self.passed, self.now).await?;
            let Some(first) = first else {
                self.consume(self.next_position - 1).await?;
                break;
            };
            if !self.fits(first.weight).await? {
                break;
            }
            self.consume(first.position).await?;
            self.make(&PermitRequest {
                grant_id: first.grant_id,
                holder: &first.holder,
                weight: first.weight,
                until: first.window(self.now),
                session: None,
            })
            .await?;
            next.push(first.grant_id);
            passed_to.push(PassedTo {
                session: first.session,
                grant_id: first.grant_id,
            });
        }
        Ok(next)
    }

    /// Removes the waiters up to a position.
    async fn consume(&mut self, until: i64) -> Result<(), sqlx::Error> {
        let consumed = waiter::consume(self.conn, self.name.as_bytes(), self.passed, until).await?;
        self.waiters -= consumed;
        self.passed = until;
        Ok(())
    }
}

/// The names of all permits of a lock are between these.
pub(super) fn permits_of(name: &Name) -> (Vec<u8>, Vec<u8>) {
    let and = |byte| [name.as_bytes(), &[byte]].concat();
    (and(0), and(1))
}
