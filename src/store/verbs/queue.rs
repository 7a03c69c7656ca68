//! The queue of a name: the verbs, with their parameters and outcomes.
//!
//! A waiter is a row in `rowlock_waiter`, at a position. It belongs to the session of its client: a waiter whose
//! session has expired is passed over. The lock's row has the numbers of the queue: `waiters` (how many rows there
//! are), `next_position` (the next one to give) and `passed` (every waiter is after this position).
//!
//! Every verb but [`queue_look`](QueueStore::queue_look) locks the lock's row first, and reads the waiters after that,
//! in a statement whose snapshot is newer than the row lock. So it decides from the newest state, and positions are
//! granted in their order.
//!
//! A transaction of the application's may have the row locked, for a pin. The verbs wait for the row for a few
//! milliseconds only, and then answer `None`: nothing has changed.
//!
//! A name is *passed on* to the first waiter by the statement that releases it: the waiter gets the row with its own
//! grant id, the next fence, and an expiry after the *window*. It holds the lock only after
//! [`queue_confirm`](QueueStore::queue_confirm). If it does not confirm in the window, the next one who passes the
//! name on gives it to the next waiter.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use super::columns::read_columns;
use super::fault::Fault;
use super::quarantine::QuarantineStore;
use super::row::LockRow;
use super::time::{micros, time};
use crate::model::{Error, Kind, Name, WaiterInfo};

/// How long a waiter has to confirm a grant that was passed on to it.
///
/// For tests of the verbs it is longer: they ask one thing after the other, which takes a while on a busy machine.
pub(crate) const WINDOW: Duration = Duration::from_secs(if cfg!(test) { 20 } else { 2 });

/// The verbs for the queue of a name.
#[async_trait]
pub(crate) trait QueueStore {
    /// Grants the name, if it is free and has no waiter; otherwise puts a waiter at the end of its queue. Makes a
    /// missing row.
    ///
    /// When an earlier sending of this ask was granted the name, or has a waiter, this finds it. A live grant that it
    /// finds may have been passed on to its waiter meanwhile, so this gives it the asked TTL and session, as
    /// `queue_confirm` does, and never moves its expiry back.
    async fn queue_join(&mut self, params: &JoinParams) -> Result<Option<JoinOutcome>, Fault>;

    /// Turns a grant that was passed on to this waiter into a lease, or into a lock of its session: the row expires
    /// after the asked TTL. The commit is durable.
    async fn queue_confirm(
        &mut self,
        params: &ConfirmParams,
    ) -> Result<Option<ConfirmOutcome>, Fault>;

    /// Passes a name on to its first waiter whose session is live, and removes the waiters before it. Frees the name
    /// when there is none.
    ///
    /// Does so if the row has the grant of the ask, live or expired; if its grant has expired; or if the row is free
    /// and has waiters. A waiter that leaves is removed first. The commit need not be durable: nobody holds the name
    /// before a durable confirm.
    async fn queue_pass(&mut self, params: &PassParams) -> Result<Option<PassOutcome>, Fault>;

    /// Looks at the rows of the names for which a client waits: one answer per ask, in their order. Locks nothing.
    async fn queue_look(&mut self, all: &[LookParams]) -> Result<Vec<LookOutcome>, Fault>;

    /// Whether there is a waiter with this ticket, or a row with its grant. Locks nothing.
    async fn queue_knows(&mut self, ticket: &Ticket) -> Result<bool, Fault>;

    /// Sends [`News::Test`] to those who listen for the news of this session, if this engine sends news.
    async fn queue_test(&mut self, session: Uuid) -> Result<(), Fault> {
        let _ = session;
        Ok(())
    }

    /// Those of the names that have a waiter or are paused: a lease of them that lingers is called back.
    async fn queue_recall_due(&mut self, names: &[Name]) -> Result<Vec<Name>, Fault>;

    /// A number that changes with every commit of another connection. `None`: this engine has no such number.
    async fn queue_version(&mut self) -> Result<Option<i64>, Fault> {
        Ok(None)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct JoinParams {
    pub(crate) name: Name,
    /// The id for the new grant: fresh for every acquire.
    pub(crate) grant_id: Uuid,
    /// The session that the waiter belongs to. It was opened before.
    pub(crate) session: Uuid,
    /// The grant belongs to that session too.
    pub(crate) in_session: bool,
    /// The TTL of the row when it is granted at once.
    pub(crate) ttl: Duration,
    /// A text for people.
    pub(crate) holder: Arc<str>,
    /// The longest queue that the ask may join.
    pub(crate) most: u32,
}

#[derive(Debug, Clone)]
pub(crate) enum JoinOutcome {
    Granted {
        fence: i64,
    },
    Queued {
        position: i64,
        /// The name is free, or its grant has expired: it has to be passed on.
        is_orphaned: bool,
    },
    /// The queue is as long as the ask allows; with the row.
    Full(LockRow),
    /// The name is of this kind, which is not that of the ask. `None`: its capacity is out of range.
    Mismatch(Option<Kind>),
}

/// A full queue tells how long a quarantine lasts.
pub(crate) async fn with_quarantine(
    store: &mut impl QuarantineStore,
    joined: Option<JoinOutcome>,
) -> Result<Option<JoinOutcome>, Fault> {
    let Some(JoinOutcome::Full(row)) = joined else {
        return Ok(joined);
    };
    let quarantine = store.quarantine_left().await?;
    Ok(Some(JoinOutcome::Full(LockRow { quarantine, ..row })))
}

#[derive(Debug, Clone)]
pub(crate) struct ConfirmParams {
    pub(crate) name: Name,
    pub(crate) grant_id: Uuid,
    /// From now on, by the database's clock.
    pub(crate) ttl: Duration,
    /// The session that the lock belongs to from now on, if it belongs to one.
    pub(crate) session: Option<Uuid>,
    /// How many fences to reserve: the fence of the row rises by so many, and the grant has all of them. None is
    /// reserved while the fence is ahead of the database's clock by more than that: after the row is removed, fences
    /// go on from the clock. An engine may reserve fewer.
    pub(crate) fences: i64,
}

/// What a grant has for more than one task of its client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FenceBlock {
    /// How many fences it has beside its own.
    pub(crate) count: i64,
    /// Others wait for the name already, or it is paused.
    pub(crate) is_awaited: bool,
}

impl FenceBlock {
    /// The fences. `fence`: that of the row, which is the last one.
    pub(crate) fn fences(self, fence: i64) -> RangeInclusive<i64> {
        fence - self.count + 1..=fence
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConfirmOutcome {
    Held {
        /// The fence of the row now.
        fence: i64,
        reserved: FenceBlock,
    },
    /// The window is over, or the name was never passed on to this waiter.
    Gone,
}

impl ConfirmOutcome {
    /// The fence of the row, how many fences were reserved, and whether others wait.
    pub(crate) fn held((fence, count, is_awaited): (i64, i64, bool)) -> Self {
        let reserved = FenceBlock { count, is_awaited };
        Self::Held { fence, reserved }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct PassParams {
    pub(crate) name: Name,
    pub(crate) why: PassWhy,
}

/// Why a name is passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PassWhy {
    /// It is free and has waiters, or its grant has expired.
    Orphaned,
    /// This grant ends.
    Ended(Uuid),
    /// The waiter with this grant id leaves. The name may have been passed on to it: then that grant ends.
    Left {
        grant_id: Uuid,
        /// `None`: wherever it stands.
        at: Option<i64>,
    },
}

impl PassWhy {
    /// The grant that ends.
    pub(crate) fn grant_id(self) -> Option<Uuid> {
        match self {
            Self::Orphaned => None,
            Self::Ended(grant_id) | Self::Left { grant_id, .. } => Some(grant_id),
        }
    }

    /// Where a waiter leaves, as a function of the database takes it: -1 for wherever it stands.
    #[cfg(feature = "postgres")]
    pub(crate) fn position(self) -> Option<i64> {
        match self {
            Self::Orphaned | Self::Ended(_) => None,
            Self::Left { at, .. } => Some(at.unwrap_or(-1)),
        }
    }
}

/// What passing on did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PassOutcome {
    /// What became of the grant of the ask.
    pub(crate) ended: EndedGrant,
    /// The grant ids of the waiters that have the name, or permits of it, now.
    pub(crate) next: Vec<Uuid>,
}

impl PassOutcome {
    /// There was nothing to do. (A waiter was removed all the same.)
    pub(crate) const NOTHING: Self = Self {
        ended: EndedGrant::Nothing,
        next: Vec::new(),
    };
}

/// What became of the grant of a [`PassParams`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndedGrant {
    /// There was no such grant.
    Nothing,
    /// It had expired.
    Expired,
    /// It was live until now.
    Live,
}

impl EndedGrant {
    /// As the statements number it; `None`: a transaction has a row locked.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(crate) fn of(number: i64) -> Option<Self> {
        match number {
            0 => Some(Self::Nothing),
            1 => Some(Self::Expired),
            2 => Some(Self::Live),
            _ => None,
        }
    }
}

/// A connection on which a server tells the news of one session at once.
#[async_trait]
pub(crate) trait Listener: fmt::Debug + Send {
    /// Waits for the next news. An error: the connection is lost, with the news in between.
    async fn next(&mut self) -> Result<News, Fault>;

    /// Whether the connection can be closed at once only after a [`QueueStore::queue_test`] has woken it.
    fn sleeps(&self) -> bool {
        false
    }

    /// Ends the connection in good order.
    async fn close(self: Box<Self>);
}

/// What a [`Listener`] hears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum News {
    /// A name was passed on.
    Passed {
        /// The waiter of this grant id has it.
        to: Uuid,
        /// Not by this process: so others can reach it.
        by_another: bool,
    },
    /// The lease of a name that this client waits for ends sooner than a look has found.
    Look,
    /// [`QueueStore::queue_test`].
    Test,
    /// One of the others, or a test. Nobody tells which one, so a look is due.
    Woken,
}

/// The waiter of a grant id, and the grant that it gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) name: Name,
    pub(crate) grant_id: Uuid,
    /// What the name stands for.
    pub(crate) kind: Kind,
}

impl Ticket {
    /// The name of the row that has the grant.
    pub(crate) fn row(&self) -> Name {
        if self.kind.has_permits() {
            self.name.permit(self.grant_id)
        } else {
            self.name.clone()
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct LookParams {
    pub(crate) name: Name,
    pub(crate) grant_id: Uuid,
    pub(crate) position: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LookOutcome {
    /// The name was passed on to this waiter.
    Granted,
    /// It waits. `is_orphaned`: the name is free, or its grant has expired, and it is not paused. Otherwise the time
    /// that the grant has left (of a session's lock: the session), or the pause, if that is longer.
    Waiting {
        is_orphaned: bool,
        remaining: Duration,
    },
    /// Its row is gone: it was passed over, or its window is over.
    Gone,
}

/// Whether the name was passed on to this waiter, whether it waits, and the time that the name's grant has left.
impl From<(bool, bool, i64)> for LookOutcome {
    fn from((granted, waits, left): (bool, bool, i64)) -> Self {
        match (granted, waits) {
            (true, _) => Self::Granted,
            (false, true) => Self::Waiting {
                is_orphaned: left <= 0,
                remaining: micros(left),
            },
            (false, false) => Self::Gone,
        }
    }
}

/// A waiter, as operators see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WaiterRow {
    pub(crate) name: Vec<u8>,
    pub(crate) position: i64,
    pub(crate) holder: String,
    pub(crate) session: Uuid,
    /// Microseconds since 1970-01-01 UTC.
    pub(crate) joined_at: i64,
    /// Microseconds.
    pub(crate) waited: i64,
}

impl WaiterRow {
    /// The row as callers see it.
    pub(crate) fn info(self) -> Result<WaiterInfo, Error> {
        let damaged = |what| Error::damaged("rowlock_waiter", &self.name, what);
        let name = Name::from_bytes(&self.name)
            .ok_or_else(|| damaged("its name is not 1 to 255 bytes of UTF-8 without NUL"))?;
        let joined_at = time(self.joined_at)
            .ok_or_else(|| damaged("a time of a waiter in its queue is out of range"))?;
        Ok(WaiterInfo {
            name,
            position: self.position,
            holder: self.holder,
            session: self.session,
            joined_at,
            waited: micros(self.waited),
        })
    }
}

read_columns! {
    LookOutcome: (bool, bool, i64) => Self::from;
    WaiterRow: (Vec<u8>, i64, String, Uuid, i64, i64)
        => |(name, position, holder, session, joined_at, waited)| Self {
            name,
            position,
            holder,
            session,
            joined_at,
            waited,
        };
}
