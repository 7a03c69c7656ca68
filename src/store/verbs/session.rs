//! Sessions: the verbs, with their parameters and outcomes.
//!
//! A session is a row with an expiry. A lock of a session has no expiry of its own: it is free when its session has
//! ended.
//!
//! A session *has ended* when its row is missing, or has no expiry. That is for good: a renewal needs an expiry in the
//! future, and no verb gives an ended session an expiry again. A session that has only *expired* has not ended yet. So
//! a holder is removed in two steps: [`session_reclaim`](SessionStore::session_reclaim) ends the session first, and
//! then frees the lock.
//!
//! No statement that grants a lock decides by the session's row. Such a statement sees the newest version of the
//! lock's row that it locks, but reads other rows from its snapshot, which may be older than the session.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use super::columns::read_columns;
use super::fault::Fault;
use super::time::{micros, time};
use crate::model::{Error, Name, SessionInfo};

/// The verbs for sessions.
#[async_trait]
pub(crate) trait SessionStore: Send {
    /// Opens a session. It is sent once: a second sending has another id, so that a late one opens no session that has
    /// ended. (It opens one without locks, which expires.)
    async fn session_open(&mut self, params: &OpenParams) -> Result<(), Fault>;

    /// Extends a session that is live. An expiry never moves back. An expired session is not revived. `None`: it has
    /// expired or ended.
    async fn session_renew(
        &mut self,
        id: Uuid,
        ttl: Duration,
    ) -> Result<Option<SessionRenewed>, Fault>;

    /// The next `limit` grants that the session has, with their names, in the order of the names: after the name
    /// `after` (empty: from the first one).
    async fn session_grants(
        &mut self,
        id: Uuid,
        after: &[u8],
        limit: u32,
    ) -> Result<Vec<(Vec<u8>, Uuid)>, Fault>;

    /// Ends those sessions of `left` that have expired, then frees those names of `left` whose sessions have ended.
    /// Skips locked rows: a transaction may have the lock pinned.
    ///
    /// Each session was read from a lock's row by an earlier statement: the session was opened before.
    async fn session_reclaim(&mut self, left: &[LeftBehind]) -> Result<(), Fault>;

    /// Ends the session and frees all its locks, but those whose rows are locked: both in one transaction, so no one
    /// else finds a lock of an ended session in between, and reclaims it. Removes the session's row when no lock is
    /// left. Returns how many locks were freed.
    async fn session_end(&mut self, id: Uuid) -> Result<u64, Fault>;

    /// All live sessions, the oldest first.
    async fn session_list(&mut self) -> Result<Vec<SessionRow>, Fault>;

    /// Ends the sessions that have expired, and frees their locks: at most `most` sessions, and about as many locks.
    /// Removes the row of an ended session without locks. Returns how many locks it freed, and how many sessions it
    /// removed.
    async fn session_sweep(&mut self, most: u32) -> Result<u64, Fault> {
        let mut swept = 0;
        for id in self.session_due(most).await? {
            if swept >= u64::from(most) {
                break;
            }
            let (freed, removed) = self.session_free(id, i64::from(most)).await?;
            swept += freed + removed;
        }
        Ok(swept)
    }

    /// Ends at most `most` sessions that have expired. Returns the sessions that have ended and have a row.
    async fn session_due(&mut self, most: u32) -> Result<Vec<Uuid>, Fault>;

    /// Frees at most `limit` locks of a session that has ended, and removes its row when none is left. Returns how
    /// many locks and sessions these were.
    async fn session_free(&mut self, id: Uuid, limit: i64) -> Result<(u64, u64), Fault>;
}

#[derive(Debug, Clone)]
pub(crate) struct OpenParams {
    /// Fresh for every sending.
    pub(crate) id: Uuid,
    pub(crate) ttl: Duration,
    /// A text for people.
    pub(crate) holder: Arc<str>,
}

/// A renewed session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionRenewed {
    pub(crate) remaining: Duration,
    /// How many locks of the session were freed by force so far.
    pub(crate) forced: i64,
}

/// A lock whose session is not live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeftBehind {
    pub(crate) name: Name,
    pub(crate) session: Uuid,
}

/// A session, as operators see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionRow {
    pub(crate) id: Uuid,
    pub(crate) holder: String,
    /// Microseconds since 1970-01-01 UTC.
    pub(crate) opened_at: i64,
    /// Microseconds since 1970-01-01 UTC.
    pub(crate) expires_at: i64,
    /// Microseconds.
    pub(crate) left: i64,
    /// How many locks it has.
    pub(crate) locks: i64,
}

impl SessionRow {
    /// The row as callers see it.
    pub(crate) fn info(self) -> Result<SessionInfo, Error> {
        let (Some(opened_at), Some(expires_at)) = (time(self.opened_at), time(self.expires_at))
        else {
            let (id, what) = (self.id.to_string(), "a time of it is out of range");
            return Err(Error::damaged("rowlock_session", id.as_bytes(), what));
        };
        Ok(SessionInfo {
            id: self.id,
            holder: self.holder,
            opened_at,
            expires_at,
            remaining: micros(self.left),
            locks: self.locks.unsigned_abs(),
        })
    }
}

read_columns! {
    SessionRow: (Uuid, String, i64, i64, i64, i64)
        => |(id, holder, opened_at, expires_at, left, locks)| Self {
            id,
            holder,
            opened_at,
            expires_at,
            left,
            locks,
        };
    SessionRenewed: (i64, i64) => |(left, forced)| Self {
        remaining: micros(left),
        forced,
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::SchemaError;

    #[test]
    fn a_session_with_a_time_out_of_range_is_an_error() {
        let row = |opened_at, expires_at| SessionRow {
            id: Uuid::nil(),
            holder: "me".into(),
            opened_at,
            expires_at,
            left: 1,
            locks: 0,
        };
        assert!(row(1, 2).info().is_ok());
        for damaged in [row(i64::MAX, 2), row(1, i64::MIN)] {
            assert!(matches!(
                damaged.info(),
                Err(Error::Schema(SchemaError::Corrupt { .. }))
            ));
        }
    }
}
