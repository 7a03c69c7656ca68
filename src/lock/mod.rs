//! Locks, as callers see them: the request, its outcomes, and what can be read about a lock.

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
    /// Somebody else has it.
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

/// A lock to be acquired: made by [`Rowlock::lock`](crate::Rowlock::lock), then given its settings.
///
/// A setting that is out of its bounds is refused when the lock is acquired, before the database is
/// asked.
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

    /// How long the lease outlives its holder when that one crashes or is paused. 100 ms to 24 h;
    /// 30 s when not set, and more than twice the client's [`clock_error`](crate::Builder::clock_error). The holder trusts it for
    /// five sixths of its time, and renews it in the background with two thirds of these left.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long [`acquire`](Self::acquire) waits, at most 366 days. For ever when not set.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// The longest time that the lease is held, renewals included: 100 ms to 366 days, and more than twice the client's
    /// [`clock_error`](crate::Builder::clock_error); without end when not set. When it is reached, the lease is lost, with a warning before.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Who holds it, for people to read: at most 200 bytes without NUL. Program, process id and host
    /// when not set.
    pub fn holder(mut self, holder: impl Into<Arc<str>>) -> Self {
        self.holder = Some(holder.into());
        self
    }

    /// Acquires on behalf of `owner`, who may enter a lock that it holds again; see [`Owner`].
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    /// Whether [`ttl`](Self::ttl) takes `ttl`: for a program that refuses its user's settings before it connects. A client with a
    /// larger [`clock_error`](crate::Builder::clock_error) may ask for a longer one.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidDuration`].
    pub fn check_ttl(ttl: Duration) -> Result<(), Error> {
        check_ttl("ttl", ttl)
    }

    /// Whether [`wait`](Self::wait) takes `wait`: for a program that refuses its user's settings before it connects.
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
    /// Refused settings; the database out of reach or silent for longer than the client's
    /// [`operation_timeout`](crate::Builder::operation_timeout); a damaged row. Contention is not
    /// an error.
    ///
    /// # Panics
    ///
    /// Outside of a runtime of tokio's with timers (`enable_time`), when it has to wait for another task of its owner.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves nothing behind: what it acquired is released in the background.
    pub async fn try_acquire(&self) -> Result<TryAcquire, Error> {
        let name = self.check()?;
        Ok(match self.ask(name).await? {
            Acquired::Held(guard) => TryAcquire::Held(Held::new(guard)),
            Acquired::Busy(busy) => TryAcquire::Busy(busy),
        })
    }

    /// Waits for the lease, as long as [`wait`](Self::wait) says.
    ///
    /// While the database is out of reach it tries again, as long as it may wait.
    ///
    /// It looks again and again, and takes no place in the queue of transactions that wait in the database: on a name that
    /// [transactions](crate::Rowlock::in_tx) lock one right after the other, it may wait for ever. Such a name is one for
    /// transactions alone.
    ///
    /// # Errors
    ///
    /// [`Error::WaitTimeout`] when it was not free in time, and those of
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// # Panics
    ///
    /// Outside of a runtime of tokio's with timers (`enable_time`), when it has to wait.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves nothing behind: what it acquired is released in the background.
    pub async fn acquire(&self) -> Result<Held, Error> {
        let name = self.check()?;
        let lock = CheckedLock { lock: self, name };
        let granted = wait::acquire(&self.core, name, self.wait, &lock);
        let guard = match &self.owner {
            // Entering again waits for nobody: all tasks in the queue wait for this owner.
            Some(owner) => tokio::select! {
                biased;
                entered = owner.entered(&self.core, name) => entered,
                granted = granted => granted?,
            },
            None => granted.await?,
        };
        Ok(Held::new(guard))
    }

    /// All that is refused before the database is asked.
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
            // All that this one may take: those before it have no answer yet.
            () = sleep_until(give_up) => return Err(Error::Unreachable {
                target: self.core.target.to_string(),
                detail: "no answer to another task of the same owner, which asks for the same name".into(),
            }),
        };
        // Another task may have been granted it meanwhile.
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

/// A lock whose settings have been checked.
struct CheckedLock<'a> {
    lock: &'a Lock,
    name: &'a Name,
}

impl wait::Asker for CheckedLock<'_> {
    async fn ask(&self) -> Result<Acquired, Error> {
        self.lock.ask(self.name).await
    }
}
