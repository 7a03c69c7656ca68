//! Several names at once, all or nothing.
//!
//! # Overview
//!
//! A multi-lock is a lease on each of its names, with one guard. It asks for all its names at once. If a name is busy,
//! it keeps the names that sort before that name, frees those after it, and waits in the queue of the busy name. So a
//! waiting multi-lock holds smaller names only, and multi-locks never wait for each other in a circle.
//!
//! # Trust window
//!
//! The earliest deadline of its [leases](super::lease). When one of them is lost, the multi-lock is lost.
//!
//! # Failure
//!
//! Each lease fails by itself, as a [lease](super::lease) does. A multi-lock that cannot get all names, or whose
//! caller has gone, frees what it has got. A caller that holds other locks beside a multi-lock can still deadlock:
//! take all names in one call.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use tokio::select;

use super::patience::Patience;
use super::with::{check, first_lost, while_held};
use super::{Held, Lock, TryAcquire};
use crate::model::names::sorted;
use crate::model::{Busy, Deadline, Error, Loss, Moment, Name};
use crate::runtime::Core;
use crate::runtime::base::backoff;
use crate::runtime::base::timer::sleep_until;
use crate::runtime::base::wait_log::WaitLog;
use crate::transaction::Transaction;

/// A request for several locks, all or nothing: made by [`Rowlock::multi_lock`](crate::Rowlock::multi_lock), then
/// given its settings.
///
/// Multi-locks never deadlock with each other, in whatever order their names are given: a multi-lock that waits for a
/// name holds smaller names only. A caller that holds other locks beside a multi-lock can still deadlock: take all
/// names in one call.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/locks.db", dir.path().display());
/// let rowlock = rowlock::Rowlock::connect(&url).await?;
/// // A transfer needs both accounts. Another one, from 2 to 1, may run at the same time: no deadlock.
/// let held = rowlock.multi_lock(["account:1", "account:2"]).acquire().await?;
/// for (name, fence) in held.fences() {
///     println!("{name}: fence {fence}");
/// }
/// held.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct MultiLock {
    /// In the order of the names; or the reason why there is none.
    names: Result<Vec<Name>, Error>,
    /// The settings for each.
    lock: Lock,
}

impl MultiLock {
    pub(crate) fn new(core: &Arc<Core>, names: Result<Vec<Name>, Error>) -> Self {
        let names = names.and_then(sorted);
        // Each name replaces it.
        let first = names.as_ref().map(|names| names[0].clone());
        let lock = Lock::new(Arc::clone(core), first.map_err(Clone::clone));
        Self { names, lock }
    }

    as_lock_settings!(lock);

    /// Asks once for all names.
    ///
    /// # Errors
    ///
    /// No name, an invalid one, or one that is given twice. Otherwise those of [`Lock::try_acquire`].
    ///
    /// # Panics
    ///
    /// As [`Lock::try_acquire`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: what it acquired is released in the background.
    pub async fn try_acquire(&self) -> Result<Option<MultiHeld>, Error> {
        let names = self.names.as_ref().map_err(Clone::clone)?;
        let (held, busy) = self.ask(names).await?;
        Ok(busy.is_none().then_some(MultiHeld { held }))
    }

    /// Waits for all names, for at most [`wait`](Self::wait). If the database is out of reach, it tries again in that
    /// time.
    ///
    /// A multi-lock has no owner: a caller that holds one of the names already waits for itself.
    ///
    /// # Errors
    ///
    /// [`Error::WaitTimeout`], with the name that was not free in time; [`Error::Lost`], if a lease was lost while
    /// this waited for another one; [`Error::QueueFull`]; and those of [`try_acquire`](Self::try_acquire). No name is
    /// kept.
    ///
    /// # Panics
    ///
    /// As [`Lock::acquire`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: in the background it leaves the queue, and what it acquired is
    /// released.
    pub async fn acquire(&self) -> Result<MultiHeld, Error> {
        let mut names = self.names.as_ref().map_err(Clone::clone)?.as_slice();
        // What is refused now would be refused again and again.
        self.lock.check()?;
        let (patience, mut backoff) = (Patience::new(&self.lock), backoff::poll());
        let mut log = WaitLog::default();
        let mut multi = MultiHeld { held: Vec::new() };
        loop {
            let (granted, busy) = match self.ask(names).await {
                Ok(asked) => {
                    log.over(&format_args!("{names:?}"));
                    asked
                }
                Err(error) if error.is_transient() && !patience.is_over() => {
                    log.trouble(&format_args!("{names:?}"), &error);
                    let pause = backoff.next().unwrap_or_default();
                    multi.or_lost(sleep_until(patience.wake(pause))).await?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            names = &names[granted.len()..];
            multi.held.extend(granted);
            let (Some(_), [name, rest @ ..]) = (busy, names) else {
                break;
            };
            let mut lock = self.lock(name);
            if let Some(limit) = patience.limit {
                lock = lock.wait(limit.remaining());
            }
            match multi.or_lost(lock.acquire()).await? {
                Ok(held) => multi.held.push(held),
                Err(Error::WaitTimeout { busy, .. }) => return Err(patience.timed_out(*busy)),
                Err(error) => return Err(error),
            }
            names = rest;
        }
        check(&multi.held, "acquire")?;
        Ok(multi)
    }

    /// Asks once for each name, for all at the same time. Keeps those before the first one that is busy.
    async fn ask(&self, names: &[Name]) -> Result<(Vec<Held>, Option<Busy>), Error> {
        let locks: Vec<Lock> = names.iter().map(|name| self.lock(name)).collect();
        let mut held = Vec::with_capacity(names.len());
        let mut first = None;
        let tried = join_all(locks.iter().map(Lock::try_or_busy)).await;
        for tried in tried {
            match tried? {
                TryAcquire::Held(granted) if first.is_none() => held.push(granted),
                TryAcquire::Held(_) => {}
                TryAcquire::Busy(busy) => drop(first.get_or_insert(busy)),
            }
        }
        Ok((held, first))
    }

    fn lock(&self, name: &Name) -> Lock {
        Lock {
            name: Ok(name.clone()),
            ..self.lock.clone()
        }
    }
}

/// Several leases that are held. Dropping it releases all of them in the background.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/locks.db", dir.path().display());
/// # let rowlock = rowlock::Rowlock::connect(&url).await?;
/// let held = rowlock.multi_lock(["account:1", "account:2"]).acquire().await?;
/// let moved = held.with(async || "work on both accounts").await?;
/// let pool = sqlx::SqlitePool::connect(&url).await?;
/// let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
/// held.pin(&mut tx).await?; // both leases, until the commit
/// tx.commit().await?;
/// # assert_eq!(moved, "work on both accounts");
/// # Ok(())
/// # }
/// ```
#[must_use = "leases are released when they are dropped, and `let _` drops them at once: give them a name, such as `held`"]
pub struct MultiHeld {
    held: Vec<Held>,
}

impl fmt::Debug for MultiHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.held).finish()
    }
}

impl MultiHeld {
    /// Waits for `then`, while all leases are held.
    async fn or_lost<T>(&self, then: impl Future<Output = T>) -> Result<T, Error> {
        if self.held.is_empty() {
            return Ok(then.await);
        }
        select! {
            biased;
            (name, loss) = self.lost() => Err(Error::Lost { name, loss }),
            done = then => Ok(done),
        }
    }

    /// The names, sorted, with the fence of each.
    pub fn fences(&self) -> impl Iterator<Item = (&Name, i64)> {
        self.held.iter().map(|held| (held.name(), held.fence()))
    }

    /// The moment until which all leases are trusted; see [`Held::deadline`].
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        let deadlines = self.held.iter().map(Held::deadline);
        deadlines.min().unwrap_or_else(|| Deadline(Moment::now()))
    }

    /// Whether all leases are held now; see [`Held::is_held`].
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held.iter().all(Held::is_held)
    }

    /// The time until the [`deadline`](Self::deadline); zero when a lease was released or lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let remaining = self.held.iter().map(Held::remaining);
        remaining.min().unwrap_or_default()
    }

    /// The first lease, by its name, that was lost; see [`Held::loss`].
    #[must_use]
    pub fn loss(&self) -> Option<(Name, Loss)> {
        let lost = |held: &Held| Some((held.name().clone(), held.loss()?));
        self.held.iter().find_map(lost)
    }

    /// Resolves when the first lease is at risk; see [`Held::at_risk`].
    ///
    /// Cancel safe.
    ///
    /// # Panics
    ///
    /// As [`Held::lost`].
    pub async fn at_risk(&self) {
        select_all(self.held.iter().map(Held::at_risk).map(Box::pin)).await;
    }

    /// Resolves when the first lease is lost; see [`Held::lost`].
    ///
    /// Cancel safe.
    ///
    /// # Panics
    ///
    /// As [`Held::lost`].
    pub async fn lost(&self) -> (Name, Loss) {
        first_lost(&self.held).await
    }

    /// Runs `work` while all leases are held. When one is lost, drops `work` at its next await point; see
    /// [`Held::with`].
    ///
    /// # Errors
    ///
    /// Those of [`Held::with`], for the first lease that was released or lost.
    ///
    /// # Panics
    ///
    /// As [`Held::lost`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`; the leases stay with the guard.
    pub async fn with<T>(&self, work: impl AsyncFnOnce() -> T) -> Result<T, Error> {
        while_held(&self.held, work).await
    }

    /// [Pins](Held::pin) all leases in `tx`.
    ///
    /// # Errors
    ///
    /// Those of [`Held::pin`]. After any error, roll `tx` back.
    ///
    /// # Panics
    ///
    /// As [`Held::pin`].
    ///
    /// # Cancel safety
    ///
    /// After dropping the future, roll `tx` back.
    pub async fn pin<T: Transaction>(&self, tx: &mut T) -> Result<(), Error> {
        for held in &self.held {
            held.pin(tx).await?;
        }
        Ok(())
    }

    /// Releases all leases. See [`Held::release`].
    ///
    /// # Errors
    ///
    /// Those of [`Held::release`], for the first lease that fails. The others are released all the same. It may be
    /// called again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop the release.
    pub async fn release(&self) -> Result<(), Error> {
        let released = join_all(self.held.iter().map(Held::release)).await;
        released.into_iter().collect()
    }
}
