//! The request for a lock: its settings, and the wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::ask::{Missed, Request};
use super::held::QuorumHeld;
use super::members::Members;
use rowlock::Lock;
use rowlock::extend::{check_ttl, check_wait};
use rowlock::{Error, Name};

/// The pause after a round that did not win: random, up to a limit that grows from the first value to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// A request for a lock in a [`Quorum`](super::Quorum); made by [`Quorum::lock`](super::Quorum::lock), then given its
/// settings.
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct QuorumLock {
    name: Result<Name, Error>,
    request: Request,
    wait: Option<Duration>,
}

impl QuorumLock {
    pub(super) fn new(members: Arc<Members>, name: Result<Name, Error>) -> Self {
        Self {
            name,
            request: Request {
                members,
                ttl: Lock::DEFAULT_TTL,
                holder: None,
            },
            wait: None,
        }
    }

    /// As [`Lock::ttl`], in each database: 100 ms to 24 h; 30 s when not set. A majority has to answer within a sixth
    /// of it in each of the two rounds, and a third of it has to be left after these.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.request.ttl = ttl;
        self
    }

    /// The longest time that [`acquire`](Self::acquire) waits: at most 366 days; for ever when not set.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// As [`Lock::holder`].
    pub fn holder(mut self, holder: impl Into<Arc<str>>) -> Self {
        self.request.holder = Some(holder.into());
        self
    }

    /// Asks once. `None`: others have the name.
    ///
    /// # Errors
    ///
    /// Invalid settings; [`Error::Unreachable`] when too few databases gave an answer in a sixth of the TTL.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: what was granted is released in the background.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`).
    pub async fn try_acquire(&self) -> Result<Option<QuorumHeld>, Error> {
        let name = self.check()?;
        match self.request.ask(name).await {
            Ok(held) => Ok(Some(held)),
            Err(Missed::Busy(_)) => Ok(None),
            Err(Missed::Failed(error)) => Err(error),
        }
    }

    /// Waits for the lock, for at most [`wait`](Self::wait): asks again and again, after random pauses. If too few
    /// databases can be reached, it tries again in that time. There is no queue: a waiter may starve.
    ///
    /// # Errors
    ///
    /// [`Error::WaitTimeout`] when the lock was not free in time, and the errors of
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: what was granted is released in the background.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`).
    pub async fn acquire(&self) -> Result<QuorumHeld, Error> {
        let name = self.check()?;
        let started = Instant::now();
        let mut limit = PAUSES.0;
        loop {
            let missed = match self.request.ask(name).await {
                Ok(held) => return Ok(held),
                Err(missed) => missed,
            };
            let waited = started.elapsed();
            let left = self.wait.map(|wait| wait.saturating_sub(waited));
            match missed {
                Missed::Busy(busy) if left == Some(Duration::ZERO) => {
                    return Err(Error::WaitTimeout {
                        name: name.clone(),
                        waited,
                        busy: Box::new(busy),
                    });
                }
                Missed::Failed(error) if left == Some(Duration::ZERO) || !error.is_transient() => {
                    return Err(error);
                }
                Missed::Busy(_) | Missed::Failed(_) => {}
            }
            let pause = limit.mul_f64(fastrand::f64());
            sleep(left.map_or(pause, |left| pause.min(left))).await;
            limit = (limit * 2).min(PAUSES.1);
        }
    }

    fn check(&self) -> Result<&Name, Error> {
        check_ttl("ttl", self.request.ttl)?;
        if let Some(wait) = self.wait {
            check_wait(wait)?;
        }
        self.name.as_ref().map_err(Clone::clone)
    }
}
