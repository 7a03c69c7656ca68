//! Lease locks: a grant id and an expiry in the name's row.
//!
//! # Overview
//!
//! A lease is granted where the row has no live one, by one statement that sets grant id, fence and
//! expiry. While the guard lives, a background thread extends the expiry; when it is dropped, the
//! row is freed. A holder that crashes frees the name by not extending it: within the TTL.
//!
//! # State model
//!
//! ```text
//!             granted               a third of the trusted time left
//!   (nothing) ───────► held ◄───────────────────────────────────► at risk
//!                       │              a renewal is confirmed        │
//!              release, │                                            │ deadline,
//!              drop     ▼                                            ▼ taken over, max_hold
//!                    released                                       lost
//! ```
//!
//! Released and lost are final. A lost lease is never revived, even if nobody has taken the name.
//!
//! # Trust window
//!
//! Two clocks decide, each for its own side. The *database's* clock decides whether a name may be
//! granted to somebody else. This process says "held" until its *deadline* on the local boot-time
//! clock, counted from before the last confirmed request was sent: so the deadline is always earlier
//! than the expiry in the row. It is earlier by a sixth of the lease, and by
//! [`clock_error`](crate::Builder::clock_error), because the two clocks do not run alike. No wall clock of an application
//! is ever read.
//!
//! # Failure
//!
//! - *The database is silent*: renewals are tried again until the deadline; then the lease is lost.
//! - *The process is paused* (SIGSTOP, a suspended laptop): it notices nothing while
//!   it is paused, and the name may be granted to somebody else meanwhile. When it wakes,
//!   [`Held::is_held`] is false at once, and the loss is announced. **A write that was already under
//!   way is not stopped by that**: write in a transaction of the same database and [pin](Held::pin) the lease in it,
//!   or have the resource refuse a smaller [fence](Held::fence).
//! - *The virtual machine is paused* (for a migration, or a snapshot that is restored): all its clocks stand still.
//!   [`Held::is_held`] may be true in it until the next renewal is answered, although the lease is over.
//! - *The clock of the database's host is set forward* by more than the margin: the name may be granted to somebody else
//!   while its holder still trusts the lease. Against both the pin and the fence hold.
//! - *The process crashes*: the name is free within the TTL.
//! - *The runtime is blocked*: nothing happens; renewals run on a thread of their own.
//! - *The connection breaks after a statement was sent*: what became of it is re-read by the grant's
//!   own id.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::model::{Deadline, Error, Loss, Moment, Name, ReleaseOutcome};
use crate::runtime::lease_guard::Guard;

/// A lease that is held: renewed in the background until it is released, dropped or lost.
///
/// # Promise
///
/// At any instant of the database's clock there is at most one live grant of a name, and its
/// [`fence`](Self::fence) is greater than that of every grant before. [`is_held`](Self::is_held) is
/// true only while that grant is live.
///
/// # Drop
///
/// Dropping releases in the background and returns at once: the lease is not renewed any more, and
/// the name is free as soon as the database has been told (or, when it cannot be told, within the
/// TTL). Before a process exits, [`Rowlock::flush`](crate::Rowlock::flush) waits for that.
#[derive(Debug)]
#[must_use = "a lease that is dropped is released"]
pub struct Held {
    pub(super) guard: Guard,
}

impl Held {
    pub(crate) fn new(guard: Guard) -> Self {
        Self { guard }
    }

    /// The lock.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.guard.grant().name
    }

    /// The fence of this grant: greater than that of every earlier grant of the name, for ever.
    ///
    /// Pass it on with every write to a resource that cannot take part in a transaction (for what can, see
    /// [`pin`](Self::pin)), and have it refuse a smaller one than it has seen.
    #[must_use]
    pub fn fence(&self) -> i64 {
        self.guard.grant().fence
    }

    /// Until when the lease may be trusted without another word from the database. Renewals move it. It has passed when
    /// this guard is not [held](Self::is_held) any more: released, or lost, however early.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        let deadline = self.guard.grant().status().deadline;
        Deadline(if self.is_held() {
            deadline
        } else {
            deadline.min(Moment::now())
        })
    }

    /// The time until the [`deadline`](Self::deadline); zero when the lease is not held any more.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if self.is_held() {
            self.deadline().remaining()
        } else {
            Duration::ZERO
        }
    }

    /// Whether it is held right now. Never true after the deadline, even when nothing in this process
    /// has been awake to announce the loss, nor after this guard was released (other guards of its
    /// [owner](crate::Owner) may hold the lease still).
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    /// How it was lost, if it was, before this guard was released.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.guard.loss()
    }

    /// Resolves when the lease is lost: at its deadline at the latest, even when the database is
    /// silent. Never resolves when this guard is released instead.
    ///
    /// Cancel safe.
    ///
    /// # Panics
    ///
    /// It looks at the clock in the task that waits: outside of a runtime of tokio's with timers (`enable_time`) it panics.
    pub async fn lost(&self) -> Loss {
        self.guard.lost().await
    }

    /// Resolves when the lease is at risk, with a third of its trusted time left: a renewal is overdue, or
    /// [`max_hold`](crate::Lock::max_hold) is near. It is the time to stop. Also resolves when the
    /// lease is lost.
    ///
    /// Cancel safe. The risk may pass: call it again to wait for the next one.
    ///
    /// # Panics
    ///
    /// As [`lost`](Self::lost) does.
    pub async fn at_risk(&self) {
        self.guard.at_risk().await;
    }

    /// Runs `work` for as long as the lease is held: when it is lost, `work` is dropped at its next
    /// await point.
    ///
    /// The lease is not released afterwards.
    ///
    /// The result of work that was finished is always returned, also when the lease was lost meanwhile: code that does not
    /// await is not interrupted, and a transaction that has [pinned](Self::pin) the lease commits however long that
    /// takes. So `Ok` says that the work is done, not that the lease is still held: what is done with the result
    /// needs a check of its own ([`is_held`](Self::is_held), a pin, or the [`fence`](Self::fence)).
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: the lease was lost before `work` was done, and nothing had pinned it since `work` began.
    ///   (Statements that commit by themselves, or in a transaction without a pin, may have happened all the same.)
    /// - [`Error::CutOff`]: it was lost when something had pinned it since `work` began. The commit may have been under way,
    ///   or after it: look what has happened before you do the work again.
    ///
    /// # Panics
    ///
    /// As [`lost`](Self::lost) does.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`; the lease stays with the guard.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/locks.db", dir.path().display());
    /// # let rowlock = rowlock::Rowlock::connect(&url).await?;
    /// let held = rowlock.lock("report").acquire().await?;
    /// let lines = held.with(async || "work that awaits".len()).await?;
    /// let _ = held.release().await?;
    /// # assert_eq!(lines, 16);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn with<T>(&self, work: impl AsyncFnOnce() -> T) -> Result<T, Error> {
        let (name, grant) = (|| self.name().clone(), self.guard.grant());
        if self.guard.is_released() {
            return Err(Error::Released {
                doing: "work under",
                name: name(),
            });
        }
        if let Some(loss) = self.loss() {
            return Err(Error::Lost { name: name(), loss });
        }
        let before = grant.pins();
        let pinned = || grant.pins() != before;
        let (mut lost, mut work) = (pin!(self.lost()), pin!(work()));
        poll_fn(|cx| {
            // Work without a pin does not go on after the loss. With one it may just have been committed.
            if !pinned()
                && let Poll::Ready(loss) = lost.as_mut().poll(cx)
            {
                return Poll::Ready(Err(Error::Lost { name: name(), loss }));
            }
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Ok(done));
            }
            if pinned()
                && let Poll::Ready(loss) = lost.as_mut().poll(cx)
            {
                return Poll::Ready(Err(Error::CutOff { name: name(), loss }));
            }
            Poll::Pending
        })
        .await
    }

    /// Releases, and tells whether the lease was held until now.
    ///
    /// A second call is [`ReleaseOutcome::AlreadyReleased`]. After an error, the second call asks the database again. Where the
    /// first one may have released the lease, the second is [`ReleaseOutcome::Released`] until the lease's deadline, and
    /// [`Loss::Expired`] later: nobody can tell then whether the release came in time. (A forced release in between, or a
    /// failover that lost the grant, looks the same as the first call's success.) No call touches what another holder has
    /// by then.
    ///
    /// # Errors
    ///
    /// The database is out of reach, or the outcome is unknown. The lease is not renewed any more in
    /// either case, so that the name is free within the TTL. Call it again to free the name earlier.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop the release. The next call gets its answer.
    /// [`flush`](crate::Rowlock::flush) waits for all releases.
    pub async fn release(&self) -> Result<ReleaseOutcome, Error> {
        self.guard.release().await
    }
}
