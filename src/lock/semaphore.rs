//! Semaphores: permits up to a capacity.
//!
//! # Overview
//!
//! A semaphore has a capacity, and its permits have weights. The sum of the weights of all live permits is at most the capacity. Each
//! permit is a lease of its own: it is renewed while its guard lives, it may be lost, it can be [pinned](Held::pin), and it has a fence.
//! Whoever does not fit waits in one queue, in the order of arrival: the first waiter that does not fit keeps back those behind it, so that
//! a permit of a large weight does not starve.
//!
//! # Trust window
//!
//! That of a [lease](super::lease). A permit that has expired is given to others as soon as somebody asks for it; one that a
//! transaction has pinned is not, before that transaction ends.
//!
//! # Failure
//!
//! That of a [lease](super::lease). A waiter goes with the [session](crate::Builder::session_ttl) of its client.

use std::sync::Arc;
use std::time::Duration;

use super::change::change;
use super::{Held, Lock, TryAcquire};
use crate::model::{Error, Kind, Share, check_capacity};
use crate::store::Store;
use crate::store::permit::Resized;
use crate::store::row::wrong_kind;

/// A request for a permit of a semaphore: made by [`Rowlock::semaphore`](crate::Rowlock::semaphore), then given its settings.
///
/// The semaphore is shared by all clients that use its name, in whatever process.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/locks.db", dir.path().display());
/// let rowlock = rowlock::Rowlock::connect(&url).await?;
/// let exports = rowlock.semaphore("exports", 2); // two at a time, in all processes
/// let (first, second) = (exports.acquire().await?, exports.acquire().await?);
/// assert!(exports.try_acquire().await?.held().is_none());
/// let _ = first.release().await?;
/// assert!(exports.try_acquire().await?.held().is_some());
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
    pub(crate) fn new(lock: Lock, capacity: u32) -> Self {
        Self {
            lock,
            capacity,
            weight: 1,
        }
    }

    /// The part of the capacity that the permit has: 1 to the capacity; 1 when not set.
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// As [`Lock::ttl`], for the permit.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lock = self.lock.ttl(ttl);
        self
    }

    /// As [`Lock::in_session`], for the permit.
    pub fn in_session(mut self) -> Self {
        self.lock = self.lock.in_session();
        self
    }

    /// As [`Lock::wait`].
    pub fn wait(mut self, wait: Duration) -> Self {
        self.lock = self.lock.wait(wait);
        self
    }

    /// As [`Lock::max_hold`].
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.lock = self.lock.max_hold(max_hold);
        self
    }

    /// As [`Lock::holder`].
    pub fn holder(mut self, holder: impl Into<Arc<str>>) -> Self {
        self.lock = self.lock.holder(holder);
        self
    }

    /// As [`Lock::queue_limit`].
    pub fn queue_limit(mut self, waiters: u32) -> Self {
        self.lock = self.lock.queue_limit(waiters);
        self
    }

    /// Asks once for a permit. While others wait for one, they come first: the answer is [`TryAcquire::Busy`].
    ///
    /// # Errors
    ///
    /// [`Error::WrongKind`]: the name is used for something else, or the semaphore has another capacity. A weight of 0, or over the capacity.
    /// Otherwise those of [`Lock::try_acquire`].
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: a permit that it acquired is released in the background.
    pub async fn try_acquire(&self) -> Result<TryAcquire, Error> {
        self.asking().try_acquire().await
    }

    /// Waits for a permit, for at most [`wait`](Self::wait), in the queue: as [`Lock::acquire`].
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
    /// Dropping the future leaves nothing behind: in the background it leaves the queue, and a permit that it acquired is released.
    pub async fn acquire(&self) -> Result<Held, Error> {
        self.asking().acquire().await
    }

    /// Gives the semaphore the capacity of this request, for all clients, while it is in use. Returns its capacity until now; `None` if it was
    /// new.
    ///
    /// When the capacity is raised, waiters are granted at once. When it is lowered, nobody loses a permit, and there is no new one before
    /// enough were released. Clients that ask with the old capacity from now on get [`Error::WrongKind`]. Waiters stay.
    ///
    /// # Errors
    ///
    /// [`Error::WrongKind`]: the name is no semaphore. A capacity of 0; a database out of reach.
    ///
    /// # Cancel safety
    ///
    /// After dropping the future, the capacity may be changed or not. It may be called again.
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
        match change(core, name, "change the capacity of", resize).await? {
            Resized::Done { before, next } => {
                core.queue.all_passed(&next);
                Ok(before)
            }
            Resized::Mismatch(is) => Err(wrong_kind(name.clone(), is, self.kind())),
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
