//! Read/write locks: many readers, or one writer.
//!
//! # Overview
//!
//! Each reader and each writer has a lease of its own: it is renewed while its guard lives, it may be lost, and it can
//! be [pinned](Held::pin). All wait in one queue, in the order of arrival. A writer that waits keeps back the readers
//! behind it, so it does not starve; readers that wait side by side are granted together.
//!
//! # State model
//!
//! ```text
//!            read                    downgrade: at once, without a gap
//!   (nothing) ───► reader ◄────────────────────────────────────────── writer
//!                    │     ────────────────────────────────────────►   ▲
//!                    │      try_upgrade: if there is no other reader   │
//!                    ▼                                          write  │
//!            released, or lost                              (nothing) ─┘
//! ```
//!
//! # Fences
//!
//! A writer has a new fence, greater than every earlier one. Readers have the fence of the last write.
//!
//! # Trust window
//!
//! That of a [lease](super::lease), for each reader and writer alone. The permit of a reader that a transaction has
//! pinned lasts until that transaction ends. It delays no other reader, and no renewal of theirs.
//!
//! # Failure
//!
//! That of a [lease](super::lease). A waiter goes with the [session](crate::Builder::session_ttl) of its client.

use std::fmt;
use std::ops::Deref;

use super::{Held, Lock};
use crate::model::{Error, Kind, Mode, Share, Subject};
use crate::store::verbs::Store;
use crate::store::verbs::permit::{WeighOutcome, WeighParams};

/// A request for a read/write lock: made by [`Rowlock::rw_lock`](crate::Rowlock::rw_lock), then given its settings.
///
/// The lock has many readers or one writer, of all clients that use its name. Each reader and each writer has a lease
/// of its own: it is renewed while its guard lives, may be lost, and can be [pinned](Held::pin).
///
/// # Order
///
/// Readers and writers wait in one queue, in the order in which they joined. A writer that waits keeps back the
/// readers behind it, so it does not starve. Readers that wait side by side are granted together.
///
/// # Fences
///
/// A writer has a new [fence](Held::fence), greater than every earlier one. Readers have the fence of the last write.
///
/// # Failure
///
/// A crashed process keeps the lock until its TTL is over, or that of its [session](crate::Builder::session_ttl). A
/// reader that a transaction has pinned keeps writers out until that transaction ends. It delays no other reader.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/locks.db", dir.path().display());
/// let rowlock = rowlock::Rowlock::connect(&url).await?;
/// let catalog = rowlock.rw_lock("catalog");
/// let (one, other) = (catalog.read().await?, catalog.read().await?); // side by side
/// assert!(catalog.try_write().await?.is_none());
/// one.release().await?;
/// other.release().await?;
/// let mut writer = catalog.write().await?;
/// // … write, then let readers in, and keep other writers out:
/// writer.downgrade().await?;
/// assert!(catalog.try_read().await?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a read/write lock does nothing until it is acquired"]
pub struct RwLock(Lock);

impl RwLock {
    pub(crate) fn new(lock: Lock) -> Self {
        Self(lock)
    }

    as_lock_settings!(0);

    /// Waits until no writer holds the lock, and no writer waits ahead of this reader, for at most
    /// [`wait`](Self::wait).
    ///
    /// A read/write lock has no owner. **Do not read or write again in a task that reads or writes already**: if a
    /// writer waits meanwhile, the second reader waits behind it, and it waits for the first. To write after reading,
    /// use [`try_upgrade`](RwHeld::try_upgrade).
    ///
    /// # Errors
    ///
    /// [`Error::WrongKind`]: the name is used for something else. Otherwise those of [`Lock::acquire`].
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: in the background it leaves the queue, and what it acquired is
    /// released.
    pub async fn read(&self) -> Result<RwHeld, Error> {
        let held = self.asking(Mode::Read).acquire().await?;
        Ok(RwHeld::new(held, Mode::Read))
    }

    /// Waits until the lock has no other holder, for at most [`wait`](Self::wait).
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read).
    ///
    /// # Panics
    ///
    /// As [`read`](Self::read).
    ///
    /// # Cancel safety
    ///
    /// As [`read`](Self::read).
    pub async fn write(&self) -> Result<RwHeld, Error> {
        let held = self.asking(Mode::Write).acquire().await?;
        Ok(RwHeld::new(held, Mode::Write))
    }

    /// Asks once to read. `None`: a writer holds the lock, or others wait for it.
    ///
    /// # Errors
    ///
    /// [`Error::WrongKind`]: the name is used for something else. Otherwise those of [`Lock::try_acquire`].
    ///
    /// # Panics
    ///
    /// As [`read`](Self::read).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: what it acquired is released in the background.
    pub async fn try_read(&self) -> Result<Option<RwHeld>, Error> {
        let tried = self.asking(Mode::Read).try_acquire().await?;
        Ok(tried.map(|held| RwHeld::new(held, Mode::Read)))
    }

    /// Asks once to write. `None`: others hold the lock, or wait for it.
    ///
    /// # Errors
    ///
    /// Those of [`try_read`](Self::try_read).
    ///
    /// # Panics
    ///
    /// As [`read`](Self::read).
    ///
    /// # Cancel safety
    ///
    /// As [`try_read`](Self::try_read).
    pub async fn try_write(&self) -> Result<Option<RwHeld>, Error> {
        let tried = self.asking(Mode::Write).try_acquire().await?;
        Ok(tried.map(|held| RwHeld::new(held, Mode::Write)))
    }

    fn asking(&self, mode: Mode) -> Lock {
        let (kind, weight) = (Kind::ReadWrite, weight(mode));
        Lock {
            share: Some(Share { kind, weight }),
            ..self.0.clone()
        }
    }
}

fn weight(mode: Mode) -> u32 {
    if mode == Mode::Write { Kind::ALL } else { 1 }
}

/// A read/write lock that is held, by a reader or a writer. It is a [`Held`]: it is renewed, can be pinned, and is
/// released when it is dropped.
#[must_use = "a lock is released when it is dropped, and `let _` drops it at once: give it a name, such as `held`"]
pub struct RwHeld {
    held: Held,
    mode: Mode,
}

impl fmt::Debug for RwHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let debug = &mut f.debug_struct("RwHeld");
        debug.field("held", &self.held).field("mode", &self.mode);
        debug.finish()
    }
}

impl From<RwHeld> for Held {
    /// This value has no `downgrade` and no `try_upgrade`.
    fn from(held: RwHeld) -> Self {
        held.held
    }
}

impl Deref for RwHeld {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

impl RwHeld {
    fn new(held: Held, mode: Mode) -> Self {
        Self { held, mode }
    }

    /// [`Mode::Read`] or [`Mode::Write`].
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Makes a reader of a writer, without a gap: no other writer holds the lock in between. Readers that wait are let
    /// in, up to the next writer. A reader stays a reader.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]; [`Error::Released`]; a database that is out of reach. After any error this counts as a reader,
    /// because the database may have let other readers in. It may be called again.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`), when a transaction has a row locked.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves a reader here. The database lets other readers in, or it does not.
    pub async fn downgrade(&mut self) -> Result<(), Error> {
        self.mode = Mode::Read;
        let (core, name) = (&self.held.core, &self.held.guard.grant().shown);
        match self.weigh(Mode::Read, "downgrade").await? {
            Some(_) => Ok(()),
            // A weight of 1 always fits, and nothing else changes the fence of this permit twice.
            None => Err(Error::Unreachable {
                target: core.lanes.target.to_string(),
                detail: format!("downgrade {name:?}: its permit was changed meanwhile"),
            }),
        }
    }

    /// Makes a writer of a reader, if no other reader holds the lock. Waiters do not count. Returns whether this is a
    /// writer now; then it has a new [`fence`](Held::fence). A writer stays a writer.
    ///
    /// Never waits for other readers: two readers that waited for each other would wait for ever. If others read too,
    /// release, and ask for [`write`](RwLock::write). Another writer may be first: read again what you have read
    /// before.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/locks.db", dir.path().display());
    /// # let rowlock = rowlock::Rowlock::connect(&url).await?;
    /// let catalog = rowlock.rw_lock("catalog");
    /// let mut held = catalog.read().await?;
    /// // … read, and see that something has to be written:
    /// if !held.try_upgrade().await? {
    ///     held.release().await?;
    ///     held = catalog.write().await?; // read again
    /// }
    /// assert_eq!(held.mode(), rowlock::Mode::Write);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]; [`Error::Released`]; a database that is out of reach. After any error this counts as a reader.
    /// The database may keep other readers out until you call this again or release.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`), when a transaction has a row locked.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves a reader here, although the database may keep others out.
    pub async fn try_upgrade(&mut self) -> Result<bool, Error> {
        if self.mode == Mode::Write && self.held.is_held() {
            return Ok(true);
        }
        let Some(fence) = self.weigh(Mode::Write, "upgrade").await? else {
            return Ok(false);
        };
        self.held.guard.grant().set_fence(fence);
        self.mode = Mode::Write;
        Ok(true)
    }

    /// Changes the weight in the database. Returns the fence; `None`: there are other readers, or the permit is being
    /// changed.
    async fn weigh(&self, mode: Mode, doing: &'static str) -> Result<Option<i64>, Error> {
        let (core, guard) = (&self.held.core, &self.held.guard);
        let grant = guard.grant();
        let name = &grant.shown;
        guard.check(doing)?;
        let weigh = async |fence| {
            let params = WeighParams {
                name: name.clone(),
                grant_id: grant.id,
                fence,
                weight: weight(mode),
            };
            let weigh = async move |store: &mut dyn Store| store.permit_weigh(&params).await;
            let subject = Subject::Lock(name.clone());
            core.lanes
                .until_unlocked((subject, name), doing, weigh)
                .await
        };
        let mut weighed = weigh(grant.fence()).await?;
        // An upgrade whose answer is missing has given it another fence.
        if let WeighOutcome::Stale(fence) = weighed {
            weighed = weigh(fence).await?;
        }
        match weighed {
            WeighOutcome::Done { fence, next } => {
                core.queue.all_passed(&next);
                // It may have been lost while the database was asked.
                guard.check(doing).map(|()| Some(fence))
            }
            WeighOutcome::Full | WeighOutcome::Stale(_) => Ok(None),
            WeighOutcome::Gone => Err(guard.taken_over()),
        }
    }
}
