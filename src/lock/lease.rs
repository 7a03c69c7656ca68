//! Lease locks: a grant id and an expiry in the name's row.
//!
//! # Overview
//!
//! One statement grants a lease if the row has no live lease: it sets the grant id, the fence and the
//! expiry. While the guard lives, a background thread extends the expiry. Dropping the guard frees the
//! row. A crashed holder stops extending the expiry, so the name is free within the TTL.
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
//! Released and lost are final. A lost lease is never revived, even if the name is free.
//!
//! # Trust window
//!
//! Two clocks decide, each for its own side. The *database's* clock decides whether a name may be granted to another
//! holder. This process reports "held" until its *deadline* on the local boot-time clock. The deadline counts from
//! before the last confirmed request was sent, so it is always earlier than the expiry in the row. It is earlier by a
//! sixth of the lease and by [`clock_error`](crate::Builder::clock_error), because the two clocks run apart. rowlock
//! never reads the wall clock of an application.
//!
//! # Failure
//!
//! - *The database does not answer*: renewals are tried again until the deadline; then the lease is lost.
//! - *The process is paused* (SIGSTOP, a suspended laptop): the name may be granted to another holder during the
//!   pause. When the process wakes, [`Held::is_held`] is false at once, and the loss is announced. **This does not
//!   stop a write that is already in flight**: write in a transaction of the same database and [pin](Held::pin) the
//!   lease in it, or have the resource refuse a smaller [fence](Held::fence).
//! - *The virtual machine is paused* (for a migration or a restored snapshot): all its clocks stand still.
//!   [`Held::is_held`] may be true until the next renewal is answered, although the lease is over.
//! - *The clock of the database's host is set forward* by more than the margin: the name may be granted to another
//!   holder while the first holder still trusts its lease. The pin and the fence protect in both cases.
//! - *The process crashes*: the name is free within the TTL.
//! - *The runtime is blocked*: nothing happens; renewals run on a thread of their own.
//! - *The connection breaks after a statement was sent*: rowlock re-reads the outcome by the grant's id.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::model::{Deadline, Error, Loss, Moment, Name};
use crate::runtime::Core;
use crate::runtime::held::guard::Guard;

/// A lease that is held: renewed in the background until it is released, dropped or lost.
///
/// # Promise
///
/// A lock has at most one live grant at any instant of the database's clock. (A [read/write lock](crate::RwLock) has
/// one writer or many readers; the weights of a [semaphore](crate::Semaphore)'s live permits add up to its capacity at
/// most.) [`is_held`](Self::is_held) is true only while the grant is live.
///
/// # Drop
///
/// Dropping returns at once and releases in the background. Renewals stop, and the name is free as soon as the release
/// reaches the database, or else within the TTL (in a session: after the next looks at it, within two of its TTLs).
/// Call [`Rowlock::flush`](crate::Rowlock::flush) before the process exits: it waits for the release.
#[must_use = "a lease is released when it is dropped, and `let _` drops it at once: give it a name, such as `held`"]
pub struct Held {
    pub(super) guard: Guard,
    pub(super) core: Arc<Core>,
    /// The fence under which its run is recorded: the one that it had then.
    pub(super) run: OnceLock<i64>,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("name", self.name())
            .field("fence", &self.fence())
            .field("is_held", &self.is_held())
            .finish_non_exhaustive()
    }
}

impl Held {
    pub(crate) fn new(guard: Guard, core: &Arc<Core>) -> Self {
        Self {
            guard,
            core: Arc::clone(core),
            run: OnceLock::new(),
        }
    }

    /// The lock.
    #[must_use]
    #[allow(clippy::misnamed_getters, reason = "the other name is not for callers")]
    pub fn name(&self) -> &Name {
        &self.guard.grant().shown
    }

    /// The fence of this grant. It is greater than the fence of every earlier grant of the name, for ever. A reader of
    /// a [read/write lock](crate::RwLock) is the exception: it has the fence of the last write.
    ///
    /// Send it with every write to a resource outside of the database, and have the resource refuse a smaller fence
    /// than it has seen. For writes to the database, see [`pin`](Self::pin).
    #[must_use]
    pub fn fence(&self) -> i64 {
        self.guard.fence()
    }

    /// The moment until which this process trusts the lease without another renewal. Renewals move it. After a release
    /// or a loss the deadline has passed, however early that was.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        let deadline = self.guard.grant().status().deadline;
        Deadline(if self.is_held() {
            deadline
        } else {
            deadline.min(Moment::now())
        })
    }

    /// The time until the [`deadline`](Self::deadline); zero after a release or a loss.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if self.is_held() {
            self.deadline().remaining()
        } else {
            Duration::ZERO
        }
    }

    /// Whether this guard holds the lease now. Never true after the deadline, even if the process was
    /// paused and has not announced the loss yet. Never true after this guard was released (other guards
    /// of its [owner](crate::Owner) may still hold the lease).
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    /// How the lease was lost, if it was lost before this guard was released.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.guard.loss()
    }

    /// Resolves when the lease is lost: at its deadline at the latest, even if the database does not
    /// answer. Never resolves if this guard is released instead.
    ///
    /// Cancel safe.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`): the waiting task looks at the clock by itself.
    pub async fn lost(&self) -> Loss {
        self.guard.lost().await
    }

    /// Resolves when the lease is at risk, with a third of its trusted time left: a renewal is overdue, or
    /// [`max_hold`](crate::Lock::max_hold) is near. Stop the work then. Also resolves when the lease is
    /// lost.
    ///
    /// Cancel safe. The risk may pass: call it again to wait for the next warning.
    ///
    /// # Panics
    ///
    /// As [`lost`](Self::lost) does.
    pub async fn at_risk(&self) {
        self.guard.at_risk().await;
    }

    /// Releases the lease. `Ok`: it was held until now, or an earlier call has released it.
    ///
    /// When the lease goes on to another task of this client, or [lingers](crate::Lock::linger), no statement is sent:
    /// the answer is what this client knows. A forced release that it has not seen yet is not reported then.
    ///
    /// After an error of the database, a second call asks it again. If the first call may have released the lease, the
    /// second returns `Ok` before the lease's deadline, and [`Loss::Expired`] after it, because the release may have
    /// come too late. (A forced release in between, or a failover that lost the grant, looks like a successful first
    /// call.) No call touches the grant of another holder.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]: the lease was lost before this call, and work after the loss was not protected by the lock.
    ///
    /// The database is out of reach, or the outcome is unknown. In both cases renewals have stopped, so that the name
    /// is free within the TTL (in a session: within two of its TTLs). Call it again to free the name earlier.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop the release. The next call gets its answer.
    /// [`flush`](crate::Rowlock::flush) waits for all releases.
    pub async fn release(&self) -> Result<(), Error> {
        let outcome = self.guard.release().await?;
        outcome.or_lost(self.name())
    }
}
