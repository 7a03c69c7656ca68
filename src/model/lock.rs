//! The data of a lock that callers can read, and the ways in which a lease ends.

use std::fmt::{self, Write as _};
use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{Kind, Mode, Name, PauseInfo, Printable};

/// A lease, as its row in the database describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The lock.
    pub name: Name,
    /// The id of the grant. Every grant has a new id.
    pub grant_id: Uuid,
    /// The fence of the grant: greater than the fence of every earlier grant of this name. Readers of a read/write
    /// lock share the fence of the last write. While tasks of one client hand the lease on
    /// ([`Lock::acquire`](crate::Lock::acquire)), it is the last one of the fences that they may have.
    pub fence: i64,
    /// Who holds it, for people to read.
    pub holder: String,
    /// When the lease was granted, by the database's clock.
    pub acquired_at: DateTime<Utc>,
    /// When the lease ends unless it is renewed, by the database's clock. For a lock in a session: when the session
    /// ends.
    pub expires_at: DateTime<Utc>,
    /// The time from the reading of the row to `expires_at`.
    pub remaining: Duration,
    /// The session that the lock belongs to, if it belongs to one: then it ends with the session.
    pub session: Option<Uuid>,
    /// How it is held.
    pub mode: Mode,
}

/// A waiter in the queue of a lock, as its row in the database describes it. Tasks of one client that wait together
/// have one row.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaiterInfo {
    /// The lock.
    pub name: Name,
    /// Its position in the queue: the name is passed on to the waiter with the lowest position. Positions of a name
    /// rise, and have gaps.
    pub position: i64,
    /// Who waits, for people to read.
    pub holder: String,
    /// The session of its client.
    pub session: Uuid,
    /// When it joined the queue, by the database's clock.
    pub joined_at: DateTime<Utc>,
    /// The time from `joined_at` to the reading of the row.
    pub waited: Duration,
}

/// A session of a client, as its row in the database describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionInfo {
    /// The id of the session.
    pub id: Uuid,
    /// The client that opened it, for people to read.
    pub holder: String,
    /// When the session was opened, by the database's clock.
    pub opened_at: DateTime<Utc>,
    /// When the session ends unless it is renewed, by the database's clock.
    pub expires_at: DateTime<Utc>,
    /// The time from the reading of the row to `expires_at`.
    pub remaining: Duration,
    /// How many locks it holds.
    pub locks: u64,
}

/// The name was not free.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Busy {
    /// The lock.
    pub name: Name,
    /// What it is.
    pub kind: Kind,
    /// Who holds it. `None` for a read/write lock or a semaphore, while the name changes hands, or while a transaction
    /// has its row locked. [`Admin::holders`](crate::Admin::holders) lists the holders of a read/write lock or a
    /// semaphore.
    pub holder: Option<LockInfo>,
    /// How many wait for the name in its queue, as far as is known. (The waiters of a crashed process count until
    /// their session has expired and their turn comes.)
    pub waiters: u32,
    /// How much longer the database is in [quarantine](crate::Admin::quarantine), if that is why the name was not
    /// granted.
    pub quarantine: Option<Duration>,
    /// The [pause](crate::Admin::pause) of the name, if it is paused.
    pub pause: Option<Box<PauseInfo>>,
}

impl Busy {
    /// How long a lease or a pause is in the way, if it does not end before. `None`: neither is.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        let pause = self.pause.as_ref();
        let pause = pause.map(|pause| pause.remaining.unwrap_or(Duration::MAX));
        let holder = self.holder.as_ref().map(|holder| holder.remaining);
        holder.into_iter().chain(pause).min()
    }

    /// The database is in quarantine for this time.
    pub(crate) fn in_quarantine(name: Name, left: Duration) -> Self {
        Self {
            name,
            kind: Kind::Lock,
            holder: None,
            waiters: 0,
            quarantine: Some(left),
            pause: None,
        }
    }
}

/// One line: what others have written is in it without control characters.
impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let f = &mut Printable(f);
        match &self.holder {
            None if let Some(pause) = &self.pause => {
                write!(f, "{pause}; `rowlock resume NAME` ends the pause")
            }
            None if let Some(left) = self.quarantine => write!(
                f,
                "the database is in quarantine for another {left:.0?}, because it may have forgotten leases, and grants nothing"
            ),
            Some(held) => write!(
                f,
                "held by {} since {}, until {} unless renewed",
                held.holder,
                held.acquired_at.format("%F %T UTC"),
                held.expires_at.format("%F %T UTC"),
            ),
            None => match self.kind {
                Kind::Lock => {
                    f.write_str("it is changing hands, or a transaction has its row locked")
                }
                Kind::ReadWrite => {
                    f.write_str("readers or a writer have it (`rowlock show NAME` lists them)")
                }
                Kind::Semaphore { capacity } => write!(
                    f,
                    "others have too much of its capacity of {capacity} (`rowlock show NAME` lists them)"
                ),
            },
        }?;
        if let (Some(_), Some(pause)) = (&self.holder, &self.pause) {
            write!(f, "; {pause}")?;
        }
        match self.waiters {
            0 => Ok(()),
            1 => f.write_str("; 1 waits for it"),
            many => write!(f, "; {many} wait for it"),
        }
    }
}

/// How a lease was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// No renewal was confirmed before the deadline: the database did not answer, or this process
    /// was paused.
    Expired,
    /// Another holder was granted the name, or the lease was released by force.
    TakenOver,
    /// The lease was held for its [`Lock::max_hold`](crate::Lock::max_hold).
    MaxHold,
    /// [`Rowlock::end_session`](crate::Rowlock::end_session) ended the session that the lock belonged to.
    SessionEnded,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "no renewal was confirmed before its deadline",
            Self::TakenOver => "it was taken over, or released by force",
            Self::MaxHold => {
                "it was held for as long as it may be (max_hold; at_most_for of a job)"
            }
            Self::SessionEnded => "its session was ended",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_in_the_way_is_said_in_words() {
        let name = Name::new("a").unwrap();
        let holder = LockInfo {
            name: name.clone(),
            grant_id: Uuid::nil(),
            fence: 1,
            holder: "worker-7".into(),
            acquired_at: DateTime::UNIX_EPOCH,
            expires_at: DateTime::UNIX_EPOCH + Duration::from_secs(30),
            remaining: Duration::ZERO,
            session: None,
            mode: Mode::Lock,
        };
        let mut busy = Busy {
            name,
            kind: Kind::Lock,
            holder: Some(holder.clone()),
            waiters: 0,
            quarantine: None,
            pause: None,
        };
        assert_eq!(
            busy.to_string(),
            "held by worker-7 since 1970-01-01 00:00:00 UTC, until 1970-01-01 00:00:30 UTC unless \
             renewed"
        );
        (busy.holder, busy.waiters) = (None, 2);
        let said = busy.to_string();
        assert!(
            said.contains("changing hands") && said.ends_with("; 2 wait for it"),
            "{said}"
        );
        busy.holder = Some(LockInfo {
            holder: "x\n\x1b[31m\"y\"".into(),
            ..holder
        });
        let said = busy.to_string();
        assert!(
            said.starts_with("held by x\\n\\u{1b}[31m\"y\" since"),
            "{said}"
        );
        busy.holder = None;
        busy.kind = Kind::ReadWrite;
        let said = busy.to_string();
        assert!(said.starts_with("readers or a writer have it"), "{said}");
        busy.kind = Kind::Semaphore { capacity: 2 };
        assert_eq!(
            busy.to_string(),
            "others have too much of its capacity of 2 (`rowlock show NAME` lists them); 2 wait for it"
        );
        busy.pause = Some(Box::new(PauseInfo {
            name: busy.name.clone(),
            by: "ops".into(),
            why: "a move".into(),
            until: None,
            remaining: None,
        }));
        assert_eq!(
            busy.to_string(),
            "paused by ops until it is resumed (a move); `rowlock resume NAME` ends the pause; 2 wait for it"
        );
    }
}
