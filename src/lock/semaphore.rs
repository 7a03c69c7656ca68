//! Semaphores: permits up to a capacity.
//!
//! # Overview
//!
//! A semaphore has a capacity, and its permits have weights. The sum of the weights of all live permits is at most the
//! capacity. Each permit is a lease of its own: it is renewed while its guard lives, it may be lost, it can be
//! [pinned](Held::pin), and it has a fence. A request that does not fit waits in one queue, in the order of arrival:
//! the first waiter that does not fit blocks the waiters after it, so that a permit of a large weight does not starve.
//!
//! # Trust window
//!
//! That of a [lease](super::lease). An expired permit is removed when another request needs its weight. If a
//! transaction has pinned the permit, that happens only after the transaction has ended.
//!
//! # Failure
//!
//! That of a [lease](super::lease). A waiter goes with the [session](crate::Builder::session_ttl) of its client.

use super::{Held, Lock};
use crate::model::{Error, Kind, Share, Subject, check_capacity};
use crate::store::verbs::Store;
use crate::store::verbs::permit::ResizeOutcome;
use crate::store::verbs::row::wrong_kind;

/// A request for a permit of a semaphore: made by [`Rowlock::semaphore`](crate::Rowlock::semaphore), then given its
/// settings.
///
/// The semaphore is shared by all clients that use its name, in whatever process. The weights of its live permits add
/// up to its capacity at most. Each permit is a lease of its own: it is renewed while its guard lives, may be lost,
/// can be [pinned](Held::pin), and has a fence.
///
/// # Order
///
/// Waiters are granted in the order in which they joined. The first waiter that does not fit keeps back those behind
/// it, even those that would fit: so a permit of a large weight does not starve.
///
/// # Failure
///
/// The permits of a crashed process are given to others after their TTL, or after that of its
/// [session](crate::Builder::session_ttl). A permit that a transaction has pinned is not given to others before that
/// transaction ends.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/locks.db", dir.path().display());
/// let rowlock = rowlock::Rowlock::connect(&url).await?;
/// let exports = rowlock.semaphore("exports", 2); // two at a time, in all processes
/// let (first, second) = (exports.acquire().await?, exports.acquire().await?);
/// assert!(exports.try_acquire().await?.is_none());
/// first.release().await?;
/// assert!(exports.try_acquire().await?.is_some());
/// # drop(second);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a semaphore does nothing until a permit is acquired"]
pub struct Semaphore {
    lock: Lock,
    capacity: u32,
    weight: u32,
}

impl Semaphore {
    /// The largest capacity.
    pub const MAX_CAPACITY: u32 = Kind::ALL - 1;

    pub(crate) fn new(lock: Lock, capacity: u32) -> Self {
        Self {
            lock,
            capacity,
            weight: 1,
        }
    }

    /// The part of the capacity that the permit has: 1 to the capacity; 1 when not set. As the
    /// [`Semaphore`](tokio::sync::Semaphore) of tokio gives several permits at once.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/locks.db", dir.path().display());
    /// # let rowlock = rowlock::Rowlock::connect(&url).await?;
    /// let memory = rowlock.semaphore("memory-gb", 16);
    /// let large = memory.clone().weight(12).acquire().await?;
    /// assert!(memory.clone().weight(8).try_acquire().await?.is_none());
    /// assert!(memory.weight(4).try_acquire().await?.is_some());
    /// # drop(large);
    /// # Ok(())
    /// # }
    /// ```
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    as_lock_settings!(lock);

    /// Asks once for a permit. While others wait for one, they come first. `None`: not now. The
    /// client opens its [session](crate::Builder::session_ttl) for this, as for every wait.
    ///
    /// # Errors
    ///
    /// [`Error::WrongKind`]: the name is used for something else, or the semaphore has another capacity. A weight of
    /// 0, or over the capacity. Otherwise those of [`Lock::try_acquire`].
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: a permit that it acquired is released in the background.
    pub async fn try_acquire(&self) -> Result<Option<Held>, Error> {
        self.asking().try_acquire().await
    }

    /// Waits for a permit, for at most [`wait`](Self::wait), in the queue: as [`Lock::acquire`].
    ///
    /// A semaphore has no owner. A task that holds a permit and waits for another one may wait for itself: ask for the
    /// whole [`weight`](Self::weight) at once.
    ///
    /// The [fences](Held::fence) of permits tell the order of the grants. Permits are held side by side, so a resource
    /// must not refuse a smaller fence.
    ///
    /// # Errors
    ///
    /// [`Error::WaitTimeout`], [`Error::QueueFull`], and those of [`try_acquire`](Self::try_acquire).
    ///
    /// # Panics
    ///
    /// As [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: in the background it leaves the queue, and a permit that it acquired
    /// is released.
    pub async fn acquire(&self) -> Result<Held, Error> {
        self.asking().acquire().await
    }

    /// Sets the semaphore's capacity to that of this request, for all clients, also while permits are held. Returns
    /// the old capacity; `None` if the semaphore was new.
    ///
    /// A larger capacity grants waiters at once. A smaller one takes no permit away: no permit is granted until the
    /// live weights fit again. Clients that ask with the old capacity from now on get [`Error::WrongKind`]. Waiters
    /// stay.
    ///
    /// # Errors
    ///
    /// [`Error::WrongKind`]: the name is no semaphore. A capacity of 0, or over [`MAX_CAPACITY`](Self::MAX_CAPACITY);
    /// a database out of reach.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`), when a transaction has a row locked.
    ///
    /// # Cancel safety
    ///
    /// After dropping the future, the capacity may be changed or not. It may be called again: then the old capacity
    /// that it returns may be the new one. When the network is slow, a call that was given up may arrive late, after a
    /// later call.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/locks.db", dir.path().display());
    /// let rowlock = rowlock::Rowlock::connect(&url).await?;
    /// let permit = rowlock.semaphore("exports", 2).acquire().await?;
    /// assert_eq!(rowlock.semaphore("exports", 4).set_capacity().await?, Some(2));
    /// # drop(permit);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn set_capacity(&self) -> Result<Option<u32>, Error> {
        check_capacity(self.capacity)?;
        let name = self.lock.name.as_ref().map_err(Clone::clone)?;
        let core = &self.lock.core;
        let (of, capacity) = (name.clone(), self.capacity);
        let resize = async move |store: &mut dyn Store| store.permit_resize(&of, capacity).await;
        let row = (Subject::Lock(name.clone()), name);
        let doing = "change the capacity of";
        match core.lanes.until_unlocked(row, doing, resize).await? {
            ResizeOutcome::Done { before, next } => {
                core.queue.all_passed(&next);
                Ok(before)
            }
            ResizeOutcome::Mismatch(is) => Err(wrong_kind(name.clone(), is, self.kind())),
        }
    }

    fn kind(&self) -> Kind {
        let capacity = self.capacity;
        Kind::Semaphore { capacity }
    }

    fn asking(&self) -> Lock {
        let (kind, weight) = (self.kind(), self.weight);
        Lock {
            share: Some(Share { kind, weight }),
            ..self.lock.clone()
        }
    }
}
