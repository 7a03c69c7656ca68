//! Locks, as callers see them: the request, its settings and its outcomes.

/// The settings of requests that have those of a [`Lock`], which is in the field `$lock`.
macro_rules! as_lock_settings {
    ($lock:tt) => {
        /// As [`Lock::ttl`](crate::Lock::ttl), for each lease.
        pub fn ttl(mut self, ttl: ::std::time::Duration) -> Self {
            self.$lock = self.$lock.ttl(ttl);
            self
        }

        /// As [`Lock::in_session`](crate::Lock::in_session).
        pub fn in_session(mut self) -> Self {
            self.$lock = self.$lock.in_session();
            self
        }

        /// As [`Lock::wait`](crate::Lock::wait): for everything that one call waits for, in all.
        pub fn wait(mut self, wait: ::std::time::Duration) -> Self {
            self.$lock = self.$lock.wait(wait);
            self
        }

        /// As [`Lock::max_hold`](crate::Lock::max_hold), for each lease.
        pub fn max_hold(mut self, max_hold: ::std::time::Duration) -> Self {
            self.$lock = self.$lock.max_hold(max_hold);
            self
        }

        /// As [`Lock::holder`](crate::Lock::holder).
        pub fn holder(mut self, holder: impl Into<::std::sync::Arc<str>>) -> Self {
            self.$lock = self.$lock.holder(holder);
            self
        }

        /// As [`Lock::queue_limit`](crate::Lock::queue_limit).
        pub fn queue_limit(mut self, waiters: u32) -> Self {
            self.$lock = self.$lock.queue_limit(waiters);
            self
        }
    };
}

mod acquire;
mod call;
mod cohort;
mod hold;
mod lease;
mod locked;
#[cfg(feature = "testing")]
mod lose;
mod multi;
mod optimistic;
mod owner;
mod patience;
mod pessimistic;
mod pin;
mod poll;
mod queue;
mod run;
mod rw_lock;
mod semaphore;
mod with;

use std::sync::Arc;
use std::time::Duration;

pub use hold::raise_fence;
pub use lease::Held;
pub use locked::Locked;
pub use multi::{MultiHeld, MultiLock};
pub use optimistic::{Advance, Version, one_changed};
pub use owner::Owner;
pub use pessimistic::{InTx, LockInTx};
pub use rw_lock::{RwHeld, RwLock};
pub use semaphore::Semaphore;

use crate::model::{Busy, Error, Name, Share};
use crate::runtime::Core;
use crate::runtime::wait::cohort::delegate::Delegation;

/// The longest queue that an acquire joins, when not set.
const QUEUE_LIMIT: u32 = 10_000;

/// The outcome of asking once: a guard, or what is in the way.
#[derive(Debug)]
pub(crate) enum TryAcquire<H = Held> {
    /// It was granted.
    Held(H),
    /// Others have the name, or wait for it. Nothing was granted.
    Busy(Busy),
}

impl<H> TryAcquire<H> {
    pub(crate) fn held(self) -> Option<H> {
        match self {
            Self::Held(held) => Some(held),
            Self::Busy(_) => None,
        }
    }

    pub(crate) fn as_held(&self) -> Option<&H> {
        match self {
            Self::Held(held) => Some(held),
            Self::Busy(_) => None,
        }
    }

    /// The guard, or an error that tells who is in the way of a call that did not wait.
    pub(crate) fn or_timed_out(self) -> Result<H, Error> {
        match self {
            Self::Held(held) => Ok(held),
            Self::Busy(busy) => Err(timed_out(busy, Duration::ZERO)),
        }
    }
}

/// The end of a wait.
fn timed_out(busy: Busy, waited: Duration) -> Error {
    Error::WaitTimeout {
        name: busy.name.clone(),
        waited,
        busy: Box::new(busy),
    }
}

/// A request for a lock: made by [`Rowlock::lock`](crate::Rowlock::lock), then given its settings.
///
/// Acquiring refuses a setting that is out of bounds, before it asks the database.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/locks.db", dir.path().display());
/// use std::time::Duration;
/// use rowlock::{Error, Rowlock};
///
/// let rowlock = Rowlock::connect(&url).await?;
/// let lock = rowlock.lock("nightly-report").ttl(Duration::from_secs(10));
/// if let Some(held) = lock.try_acquire().await? {
///     println!("ours, with fence {}", held.fence());
///     held.release().await?;
/// }
/// // To learn who has it:
/// match lock.wait(Duration::ZERO).acquire().await {
///     Ok(held) => held.release().await?,
///     Err(Error::WaitTimeout { busy, .. }) => println!("not now: {busy}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    core: Arc<Core>,
    name: Result<Name, Error>,
    /// `None`: the default, or the session's.
    ttl: Option<Duration>,
    wait: Option<Duration>,
    max_hold: Option<Duration>,
    holder: Option<Arc<str>>,
    owner: Option<Owner>,
    in_session: bool,
    queue_limit: u32,
    linger: Option<Duration>,
    /// The part of the name that is asked for; `None`: all of a lock.
    share: Option<Share>,
    /// For the tasks of a cohort; `None`: for itself.
    delegation: Option<Arc<Delegation>>,
}

impl Lock {
    /// The [TTL](Self::ttl) of a lock that sets none: 30 s.
    pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

    pub(crate) fn new(core: Arc<Core>, name: Result<Name, Error>) -> Self {
        Self {
            core,
            name,
            ttl: None,
            wait: None,
            max_hold: None,
            holder: None,
            owner: None,
            in_session: false,
            queue_limit: QUEUE_LIMIT,
            linger: None,
            share: None,
            delegation: None,
        }
    }

    /// How long the lease lasts without a renewal: a crashed or paused holder keeps the name that long. 100 ms to 24
    /// h, and more than twice the client's [`clock_error`](crate::Builder::clock_error); 30 s when not set. The holder
    /// trusts the lease for five sixths of this time, and renews it in the background with two thirds of the trusted
    /// time left.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Takes the lock in the client's session. It has no TTL of its own and is not renewed: it lives as long as the
    /// session, which one short statement renews for all its locks. (ZooKeeper calls such a lock ephemeral.) Use it to
    /// hold many locks for a long time.
    ///
    /// The lock ends when it is released, when [`Rowlock::end_session`](crate::Rowlock::end_session) is called, when
    /// the last handle of the client is dropped, and with the session: when the process has crashed or was paused for
    /// longer than the [`session_ttl`](crate::Builder::session_ttl), or could not reach the database for that time. A
    /// session that has expired is never revived: all its locks are lost at once.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/locks.db", dir.path().display());
    /// let rowlock = rowlock::Rowlock::connect(&url).await?;
    /// let mut shards = Vec::new();
    /// for shard in 0..100 {
    ///     let lock = rowlock.lock(format!("shard:{shard}")).in_session();
    ///     shards.push(lock.acquire().await?); // one renewal for all of them
    /// }
    /// assert_eq!(rowlock.end_session().await?, 100);
    /// assert!(!shards[0].is_held());
    /// # Ok(())
    /// # }
    /// ```
    pub fn in_session(mut self) -> Self {
        self.in_session = true;
        self
    }

    /// The longest time that [`acquire`](Self::acquire) waits: at most 366 days; for ever when not set. When the
    /// database gives no answer, it may take up to two [`operation_timeout`s](crate::Builder::operation_timeout)
    /// longer.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// The longest queue that [`acquire`](Self::acquire) joins: 10,000 when not set. When so many wait already, it
    /// fails with [`Error::QueueFull`]. Tasks of this client that wait together are one waiter in the queue; so many
    /// of them may wait, too. With 0, it never waits in a queue.
    pub fn queue_limit(mut self, waiters: u32) -> Self {
        self.queue_limit = waiters;
        self
    }

    /// After a release, if the name has no waiter, this client keeps the name for this time, so that its next acquire
    /// under the same settings costs no statement: 1 ms to 1 min; it keeps nothing when not set. Use it for names that
    /// one process takes again and again, such as the partitions that it works on.
    ///
    /// When a task in another client waits for the name, this client gives it back in about a tenth of a
    /// second: while it keeps names, it looks ten times a second who waits for them, and less often if a look takes
    /// longer than 10 ms.
    /// [`flush`](crate::Rowlock::flush) and [`shutdown`](crate::Rowlock::shutdown) give all such names back.
    ///
    /// The price: while it is kept,
    ///
    /// - a process that crashes binds a name that it had released, until the lease expires after its TTL;
    /// - a [`try_acquire`](Self::try_acquire) and a [transaction](crate::Rowlock::in_tx) of another client find the
    ///   name busy, and do not call it back;
    /// - after a [`force_release`](crate::Admin::force_release) by another client, this client goes on giving the
    ///   lease to its tasks, until its next renewal or a pin shows the loss;
    /// - `list` and `inspect` show it as held, and it is renewed;
    /// - a client whose last handle is dropped without a shutdown lives on, until its names are given back.
    ///
    /// Each guard has a fence of its own, as always. These leases are not kept: a lease that a transaction has
    /// [pinned](crate::Held::pin), a lease with less than half of its trusted time left, the lease of an
    /// [owner](Self::owner), a lease with a [`max_hold`](Self::max_hold), and any lease on a Galera cluster.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = Some(linger);
        self
    }

    /// The longest time that the lease is held, renewals included: 100 ms to 366 days, and more than twice the
    /// client's [`clock_error`](crate::Builder::clock_error); no limit when not set. At the limit the lease is lost,
    /// after a warning.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// The holder, for people to read: at most 200 bytes without NUL. The client's
    /// [`holder`](crate::Builder::holder) when not set.
    pub fn holder(mut self, holder: impl Into<Arc<str>>) -> Self {
        self.holder = Some(holder.into());
        self
    }

    /// Acquires for `owner`, which can enter again a lock that it holds; see [`Owner`].
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }
}
