//! Locks, as callers see them: the request, its settings and its outcomes.

mod call;
mod lease;
mod optimistic;
mod owner;
mod pessimistic;
mod pin;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

pub use lease::Held;
pub use optimistic::{Advance, Version, one_changed};
pub use owner::Owner;
pub use pessimistic::{InTx, LockInTx, Locked, TryLock};

use crate::model::bounds::{MAX_WAIT, MIN_TTL, check_holder, check_ttl, check_wait, within};
use crate::model::{Busy, Error, Moment, Name};
use crate::runtime::Core;
use crate::runtime::timer::sleep_until;
use crate::runtime::verbs::take::{Acquired, Take};
use crate::store::lease::TakeAsk;

const DEFAULT_TTL: Duration = Duration::from_secs(30);
/// The outcome of [`Lock::try_acquire`].
#[derive(Debug)]
#[must_use = "a lease that is dropped is released"]
pub enum TryAcquire {
    /// The lease was granted.
    Held(Held),
    /// Another holder has it.
    Busy(Busy),
}

impl TryAcquire {
    /// The lease, if it was granted.
    #[must_use = "a lease that is dropped is released"]
    pub fn held(self) -> Option<Held> {
        match self {
            Self::Held(held) => Some(held),
            Self::Busy(_) => None,
        }
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
/// use rowlock::{Rowlock, TryAcquire};
///
/// let rowlock = Rowlock::connect(&url).await?;
/// match rowlock.lock("nightly-report").ttl(Duration::from_secs(10)).try_acquire().await? {
///     TryAcquire::Held(held) => {
///         println!("ours, with fence {}", held.fence());
///         let _ = held.release().await?;
///     }
///     TryAcquire::Busy(busy) => println!("not now: {busy}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    core: Arc<Core>,
    name: Result<Name, Error>,
    ttl: Duration,
    wait: Option<Duration>,
    max_hold: Option<Duration>,
    holder: Option<Arc<str>>,
    owner: Option<Owner>,
}

impl Lock {
    pub(crate) fn new(core: Arc<Core>, name: Result<Name, Error>) -> Self {
        Self {
            core,
            name,
            ttl: DEFAULT_TTL,
            wait: None,
            max_hold: None,
            holder: None,
            owner: None,
        }
    }

    /// How long the lease lasts without a renewal: a crashed or paused holder keeps the name that long. 100 ms to 24 h,
    /// and more than twice the client's [`clock_error`](crate::Builder::clock_error); 30 s when not set. The holder trusts the lease
    /// for five sixths of this time, and renews it in the background with two thirds of the trusted time left.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The longest time that [`acquire`](Self::acquire) waits: at most 366 days; for ever when not set.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// The longest time that the lease is held, renewals included: 100 ms to 366 days, and more than twice the client's
    /// [`clock_error`](crate::Builder::clock_error); no limit when not set. At the limit the lease is lost, after a warning.
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

    /// Checks a value for [`ttl`](Self::ttl), for a program that checks its user's settings before it connects. A client with a
    /// larger [`clock_error`](crate::Builder::clock_error) may require a longer TTL.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidDuration`].
    pub fn check_ttl(ttl: Duration) -> Result<(), Error> {
        check_ttl("ttl", ttl)
    }

    /// Checks a value for [`wait`](Self::wait), for a program that checks its user's settings before it connects.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidDuration`].
    pub fn check_wait(wait: Duration) -> Result<(), Error> {
        check_wait(wait)
    }

    /// Asks once for the lease.
    ///
    /// # Errors
    ///
    /// Invalid settings; a database that is out of reach or gives no answer within the client's
    /// [`operation_timeout`](crate::Builder::operation_timeout); a damaged row. Contention is not
    /// an error.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`), when it must wait for another task of its owner.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: a lease that it acquired is released in the background.
    pub async fn try_acquire(&self) -> Result<TryAcquire, Error> {
        let name = self.check()?;
        Ok(match self.ask(name).await? {
            Acquired::Held(guard) => TryAcquire::Held(Held::new(guard)),
            Acquired::Busy(busy) => TryAcquire::Busy(busy),
        })
    }

    /// Waits for the lease, for at most [`wait`](Self::wait). If the database is out of reach, it tries again in that
    /// time.
    ///
    /// It polls, and has no place in the database's queue of waiting transactions. On a name that
    /// [transactions](crate::Rowlock::in_tx) lock one right after the other, it may wait for ever. Use only transactions for
    /// such a name.
    ///
    /// # Errors
    ///
    /// [`Error::WaitTimeout`] when the lock was not free in time, and the errors of
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`), when it must wait.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: a lease that it acquired is released in the background.
    pub async fn acquire(&self) -> Result<Held, Error> {
        let name = self.check()?;
        let lock = CheckedLock { lock: self, name };
        let granted = wait::acquire(&self.core, name, self.wait, &lock);
        let guard = match &self.owner {
            // Re-entry bypasses the queue: all waiters in the queue wait for this owner.
            Some(owner) => tokio::select! {
                biased;
                entered = owner.entered(&self.core, name) => entered,
                granted = granted => granted?,
            },
            None => granted.await?,
        };
        Ok(Held::new(guard))
    }

    /// Checks all settings, before the database is asked.
    fn check(&self) -> Result<&Name, Error> {
        let name = self.name.as_ref().map_err(Clone::clone)?;
        Self::check_ttl(self.ttl)?;
        self.core.settings.check_lease("ttl", self.ttl)?;
        if let Some(wait) = self.wait {
            check_wait(wait)?;
        }
        if let Some(max_hold) = self.max_hold {
            let bounds = MIN_TTL..=MAX_WAIT;
            within(
                "max_hold",
                max_hold,
                bounds,
                "100 ms to 366 days are allowed",
            )?;
            self.core.settings.check_lease("max_hold", max_hold)?;
        }
        if let Some(holder) = &self.holder {
            check_holder(holder)?;
        }
        if let Some(owner) = &self.owner {
            owner.check(&self.core)?;
        }
        Ok(name)
    }

    async fn ask(&self, name: &Name) -> Result<Acquired, Error> {
        let give_up = Moment::now() + self.core.settings.operation_timeout;
        let Some(owner) = &self.owner else {
            return self.take(name, give_up).await;
        };
        if let Some(guard) = owner.enter(&self.core, name) {
            return Ok(Acquired::Held(guard));
        }
        let _asking = tokio::select! {
            biased;
            asking = owner.asking(name) => asking,
            // This operation's time is over, and the owner's earlier tasks have no answer yet.
            () = sleep_until(give_up) => return Err(Error::Unreachable {
                target: self.core.target.to_string(),
                detail: "another task of the same owner asked for the same name, and has no answer yet".into(),
            }),
        };
        // Another task of this owner may have got the lease meanwhile.
        if let Some(guard) = owner.enter(&self.core, name) {
            return Ok(Acquired::Held(guard));
        }
        let acquired = self.take(name, give_up).await?;
        if let Acquired::Held(guard) = &acquired {
            owner.granted(guard.grant());
        }
        Ok(acquired)
    }

    /// Asks for a fresh grant.
    async fn take(&self, name: &Name, give_up: Moment) -> Result<Acquired, Error> {
        let (core, max_hold) = (&self.core, self.max_hold);
        let holder = self.holder.as_ref().unwrap_or(&core.settings.holder);
        let ask = TakeAsk {
            name: name.clone(),
            grant_id: Uuid::new_v4(),
            ttl: max_hold.map_or(self.ttl, |max_hold| self.ttl.min(max_hold)),
            holder: Arc::clone(holder),
        };
        core.answer(|reply| Take::task(core, ask, max_hold, reply, give_up))
            .await
    }
}

/// A lock with checked settings.
struct CheckedLock<'a> {
    lock: &'a Lock,
    name: &'a Name,
}

impl wait::Asker for CheckedLock<'_> {
    async fn ask(&self) -> Result<Acquired, Error> {
        self.lock.ask(self.name).await
    }
}
