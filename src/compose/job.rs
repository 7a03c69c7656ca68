//! Scheduled jobs: a job that many machines start at the same minute runs once.
//!
//! # Overview
//!
//! Every machine has the same schedule, and no machine is special. When the time comes, each one calls [`Job::run`]. One of them gets the lock of the job's name, and runs it; the others skip it.
//! The name stays taken for [`at_least_for`](Job::at_least_for) after the begin, also when the job is done sooner. So a machine whose clock is late finds it taken. (`ShedLock` has this
//! promise, <https://github.com/lukas-krecan/ShedLock>, under these names.) The end of each run is recorded: `rowlock jobs` and [`Rowlock::runs`] show when it was, how long it took,
//! on which machine, and what came of it.
//!
//! # State model
//!
//! ```text
//!   free ── run ──► running ── the work ends ──► taken ── at_least_for is over ──► free
//!                     │                            ▲
//!                     ├── its future is dropped ───┘
//!                     └── the process dies: free at_least_for, or the TTL if that is longer, after the last renewal
//! ```
//!
//! # Trust window
//!
//! That of the lease, which is renewed while the job runs ([`Held`]). The database's clock alone measures `at_least_for`. The clocks of the machines only say when each of them calls: if
//! they differ by less than `at_least_for`, and this is shorter than the time between two rounds less that difference, every round runs once.
//!
//! # Failure
//!
//! - *The process crashes*: the name stays taken for `at_least_for`, or for the TTL if that is longer, after the last renewal of the lease. So no other machine runs the job in the same round.
//!   If the job had run for long, its name may still be taken in the next round too, which then does not run. The run is shown as [vanished](crate::RunState::Vanished).
//! - *The process is paused, or cut off from the database*: its work is dropped when it wakes, or at the deadline of its lease. Another machine may run the job by then. Pin
//!   the lease where the job writes to this database.
//! - *The work takes longer than [`at_most_for`](Job::at_most_for)*: it is dropped at its next await point, and has failed.
//! - *No machine is up at that minute*: the round does not run. A job is no queue.

use std::fmt::Display;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::client::Rowlock;
use crate::lock::{Held, Lock, TryAcquire};
use crate::model::{Busy, Error, Name, ReleaseOutcome};

const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// What became of a call of [`Job::run`].
#[derive(Debug)]
#[must_use = "it tells whether the job ran here"]
pub enum Ran<T> {
    /// The job ran here, and this is its result.
    Here(T),
    /// It runs on another machine, or has run there just now.
    Elsewhere(Busy),
}

impl<T> Ran<T> {
    /// The result, if the job ran here.
    #[must_use]
    pub fn here(self) -> Option<T> {
        match self {
            Self::Here(result) => Some(result),
            Self::Elsewhere(_) => None,
        }
    }
}

/// A job that runs once for each round of its schedule, on one of many machines; see the [module](self).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/locks.db", dir.path().display());
/// # let rowlock = rowlock::Rowlock::connect(&url).await?;
/// use std::time::Duration;
/// use rowlock::compose::{Job, job::Ran};
///
/// let job = Job::new(&rowlock, "send-reminders")
///     .at_least_for(Duration::from_secs(50)) // every minute, with clocks that differ by some seconds
///     .at_most_for(Duration::from_secs(600));
/// // each machine calls this at the full minute
/// let ran = job.run(async |_held| {
///     // … the reminders are sent …
///     Ok::<_, rowlock::Error>(17)
/// });
/// match ran.await? {
///     Ran::Here(sent) => println!("{sent} reminders"),
///     Ran::Elsewhere(busy) => println!("another machine does it: {busy}"),
/// }
/// for run in rowlock.runs().await? {
///     println!("{} {} on {}, in {:?}", run.name, run.state, run.holder, run.took);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a job does nothing until it is run"]
pub struct Job {
    rowlock: Rowlock,
    name: Result<Name, Error>,
    at_least_for: Duration,
    at_most_for: Option<Duration>,
    ttl: Duration,
    holder: Option<Arc<str>>,
}

impl Job {
    /// The job of this name. Its lock has the same name.
    pub fn new<N>(rowlock: &Rowlock, name: N) -> Self
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        Self {
            rowlock: rowlock.clone(),
            name: name.try_into().map_err(Into::into),
            at_least_for: Duration::ZERO,
            at_most_for: None,
            ttl: DEFAULT_TTL,
            holder: None,
        }
    }

    /// How long the name stays taken after the begin, however soon the job is done: at most 24 h, and at most [`at_most_for`](Self::at_most_for); 0 when not set. Set it to more than the
    /// clocks of the machines differ, and to less than the time between two rounds less that difference.
    pub fn at_least_for(mut self, time: Duration) -> Self {
        self.at_least_for = time;
        self
    }

    /// How long the job may run: 100 ms to 366 days; no limit when not set. Then it is dropped.
    pub fn at_most_for(mut self, time: Duration) -> Self {
        self.at_most_for = Some(time);
        self
    }

    /// As [`Lock::ttl`]: how long the name stays taken after the last renewal when the process crashes, if that is longer than [`at_least_for`](Self::at_least_for). 30 s when not set.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// As [`Lock::holder`]: on which machine the job runs, for people to read.
    pub fn holder(mut self, holder: impl Into<Arc<str>>) -> Self {
        self.holder = Some(holder.into());
        self
    }

    /// Checks the settings, for a program that checks its user's settings before it connects. [`run`](Self::run) does, too.
    ///
    /// # Errors
    ///
    /// `at_least_for` above `at_most_for`, or above 24 h; a TTL out of bounds.
    pub fn check(
        at_least_for: Duration,
        at_most_for: Option<Duration>,
        ttl: Duration,
    ) -> Result<(), Error> {
        Lock::check_ttl(ttl)?;
        if at_most_for.is_some_and(|most| most < at_least_for) {
            return Err(Error::InvalidSetting {
                setting: "at_least_for",
                reason: "it is longer than at_most_for: the job would have to run for longer than it may",
            });
        }
        if at_least_for > Duration::from_hours(24) {
            return Err(Error::InvalidDuration {
                setting: "at_least_for",
                given: at_least_for,
                bounds: "at most 24 h are allowed",
            });
        }
        Ok(())
    }

    /// Runs `work`, unless it runs on another machine or has run there just now. It does not wait. The work has the lease: pin it in transactions, or send its fence. When the lease is lost,
    /// the work is dropped at its next await point.
    ///
    /// # Errors
    ///
    /// Invalid settings; a database out of reach; the error of the work. [`Error::Lost`] when the lease was lost, or `at_most_for` was over, before the work was done. If only the
    /// record of the run cannot be written, a warning is logged.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work. The name stays taken for `at_least_for`, as after its end; the run is shown as vanished.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`).
    pub async fn run<T, E: From<Error> + Display>(
        &self,
        work: impl AsyncFnOnce(&Held) -> Result<T, E>,
    ) -> Result<Ran<T>, E> {
        let held = match self.ask().await? {
            TryAcquire::Held(held) => held,
            TryAcquire::Busy(busy) => return Ok(Ran::Elsewhere(busy)),
        };
        let running = Running {
            held: Arc::new(held),
            began: Instant::now(),
            at_least_for: self.at_least_for,
        };
        let done = running.work(work).await;
        running.end(&done).await;
        done.map(Ran::Here)
    }

    async fn ask(&self) -> Result<TryAcquire, Error> {
        Self::check(self.at_least_for, self.at_most_for, self.ttl)?;
        // If the process crashes, the name stays taken for that long.
        let ttl = self.ttl.max(self.at_least_for);
        let name = self.name.clone()?;
        let mut lock = self.rowlock.lock(name).ttl(ttl);
        if let Some(most) = self.at_most_for {
            lock = lock.max_hold(most);
        }
        if let Some(holder) = &self.holder {
            lock = lock.holder(Arc::clone(holder));
        }
        lock.try_acquire().await
    }
}

/// A job that runs here. When it is dropped, the name stays taken.
struct Running {
    held: Arc<Held>,
    /// After the grant.
    began: Instant,
    at_least_for: Duration,
}

impl Running {
    async fn work<T, E: From<Error>>(
        &self,
        work: impl AsyncFnOnce(&Held) -> Result<T, E>,
    ) -> Result<T, E> {
        let held = &*self.held;
        held.begin_run().await?;
        held.with(async || work(held).await).await?
    }

    /// Records the end, and leaves the name.
    async fn end<T, E: Display>(&self, done: &Result<T, E>) {
        let held = &self.held;
        let message = done.as_ref().err().map(ToString::to_string);
        let message = message.unwrap_or_default();
        if let Err(error) = held.end_run(done.is_ok(), &message).await {
            tracing::warn!(name = %held.name(), %error, "the end of a job is not recorded");
        }
        leave(held, self.rest()).await;
    }

    /// How much longer the name has to stay taken.
    fn rest(&self) -> Duration {
        self.at_least_for.saturating_sub(self.began.elapsed())
    }
}

impl Drop for Running {
    /// The future of the run was dropped, or the work has panicked. (After the end, the name has been left.)
    fn drop(&mut self) {
        let rest = self.rest();
        if rest.is_zero() {
            return;
        }
        let held = Arc::clone(&self.held);
        let mut leaving = Box::pin(async move { leave(&held, rest).await });
        // The first poll sends it, also where no runtime goes on.
        let sent = leaving
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        if sent.is_pending()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(leaving);
        }
    }
}

/// Leaves the name taken for `rest`.
async fn leave(held: &Held, rest: Duration) {
    let left = if rest.is_zero() {
        held.release().await
    } else {
        held.release_in(rest).await
    };
    match left {
        Ok(ReleaseOutcome::Lost(loss)) => {
            tracing::warn!(name = %held.name(), %loss, "the lease of a job was lost before its end");
        }
        Ok(_) => {}
        Err(error) => {
            tracing::warn!(name = %held.name(), %error, "the name of a job stays taken until its TTL is over");
        }
    }
}
