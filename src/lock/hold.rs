//! What a holder changes in its own lease, besides renewing and releasing it.

use std::time::Duration;

use super::Held;
use crate::model::bounds::{MAX_WAIT, within};
use crate::model::{Error, InvalidError};

/// A greater fence would leave too few numbers for later grants.
const HIGHEST: i64 = 4_000_000_000_000_000_000;

impl Held {
    /// Ends this guard, and keeps the name from all others for `time` more, by the database's clock: 0 to 366 days.
    /// During that time the name has no guard. It becomes free by itself, even if this process crashes. Until then,
    /// lists show it with this holder.
    ///
    /// For work that must not be done again too soon, such as a scheduled job (`rowlock_recipes::Job`). Other guards
    /// of the same [owner](crate::Owner) keep the lease: then this only ends this guard.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]: the lease was lost before. A time out of bounds: the guard still holds the lease.
    /// [`Error::RowLocked`] when a transaction has the lease pinned for the whole
    /// [`operation_timeout`](crate::Builder::operation_timeout); a database out of reach. In both cases the name is
    /// free after the TTL, which may be sooner than `time`.
    ///
    /// # Cancel safety
    ///
    /// After dropping the future, the name is free after `time` or after the TTL.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/locks.db", dir.path().display());
    /// # let rowlock = rowlock::Rowlock::connect(&url).await?;
    /// use std::time::Duration;
    ///
    /// let held = rowlock.lock("send-reminders").acquire().await?;
    /// // … they are sent …
    /// held.release_in(Duration::from_secs(50)).await?;
    /// assert!(rowlock.lock("send-reminders").try_acquire().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release_in(&self, time: Duration) -> Result<(), Error> {
        let allowed = Duration::ZERO..=MAX_WAIT;
        within("release_in", time, allowed, "at most 366 days are allowed")?;
        let outcome = self.guard.release_in(time).await?;
        outcome.or_lost(self.name())
    }
}

/// Gives the grant of `held` a new fence: the next one of the name, and at least `at_least` (0 to 4 × 10^18). Returns
/// it; [`Held::fence`] is the same from then on. Every later grant has a greater one.
///
/// For names that are locked in several databases, whose clocks are not ordered: propose the highest fence of all
/// to each of them. The quorum (`rowlock_recipes::Quorum`) does so.
///
/// This grant is not handed on to other tasks of the client in memory. While the fence is ahead of the database's
/// clock, the cleaner does not [remove](crate::Builder::clean_every) the name, and two
/// [transactions](crate::Rowlock::in_tx) may get the same fence if the first one rolls back.
///
/// # Errors
///
/// A fence out of bounds; a permit of a semaphore or a read/write lock; [`Error::Lost`], [`Error::Released`];
/// [`Error::RowLocked`] when a transaction has the lease pinned for the whole
/// [`operation_timeout`](crate::Builder::operation_timeout); a database out of reach. After an error, the row may
/// have a new fence that this guard does not know: release the guard, or call this again.
///
/// # Cancel safety
///
/// Dropping the future does not stop it: the fence may be raised.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/locks.db", dir.path().display());
/// # let rowlock = rowlock::Rowlock::connect(&url).await?;
/// let held = rowlock.lock("stock:42").acquire().await?;
/// let elsewhere = held.fence() + 1_000_000;
/// assert_eq!(rowlock::extend::raise_fence(&held, elsewhere).await?, elsewhere);
/// assert_eq!(held.fence(), elsewhere);
/// # Ok(())
/// # }
/// ```
pub async fn raise_fence(held: &Held, at_least: i64) -> Result<i64, Error> {
    if !(0..=HIGHEST).contains(&at_least) {
        return Err(Error::Invalid(InvalidError::Setting {
            setting: "at_least",
            reason: "a fence from 0 to 4,000,000,000,000,000,000 is allowed",
        }));
    }
    if held.guard.grant().name.of_permit().is_some() {
        return Err(Error::Invalid(InvalidError::Setting {
            setting: "raise_fence",
            reason: "a permit shares the fences of its semaphore or read/write lock",
        }));
    }
    held.guard.raise_fence(at_least).await
}
