//! Scheduled jobs: a job that many machines start at the same minute runs once.
//!
//! # Overview
//!
//! Every machine has the same schedule, and no machine is special. When the time comes, each machine calls
//! [`Job::run`]. One of them gets the lock with the job's name and runs the job. The others skip it. The name stays
//! taken for at least [`at_least_for`](Job::at_least_for) after the job has begun, even if the job ends sooner. So a
//! machine whose clock is late finds the name taken. (`ShedLock` has this promise,
//! <https://github.com/lukas-krecan/ShedLock>, under these names.) The end of each run is recorded: `rowlock jobs` and
//! [`Admin::runs`](rowlock::Admin::runs) show when it was, how long it took, on which machine, and what came of it.
//!
//! # State model
//!
//! ```text
//!   free ── run ──► running ── the work ends ──► taken ── at_least_for is over ──► free
//!                     │                            ▲
//!                     ├── its future is dropped ───┘
//!                     └── the process dies: free after at_least_for, or after the TTL if that is longer; counted from the last renewal
//! ```
//!
//! # Trust window
//!
//! That of the lease, which is renewed while the job runs ([`Held`]). The database's clock alone measures
//! `at_least_for`. The machines' clocks only decide when each machine calls. Let the clocks differ by d at most, and
//! let the rounds be p apart. Every round runs once if `at_least_for` is longer than d and shorter than p − d. (With
//! clocks that are up to 5 s ahead or behind, d is 10 s: for a round each minute, more than 10 s and less than 50 s.)
//! A machine that calls late counts as one whose clock is behind.
//!
//! # Failure
//!
//! - *The process crashes*: the name stays taken for `at_least_for` after the last renewal of the lease, or for the
//!   TTL if that is longer. So no other machine runs the job in the same round. If the job had run for long, the name
//!   may still be taken in the next round, which then does not run. The run is shown as
//!   [abandoned](rowlock::RunState::Abandoned).
//! - *The process is paused*: the work is dropped when the process wakes. *The process is cut off from the database*:
//!   the work is dropped at the deadline of the lease. By then another machine may run the job. Pin the lease where
//!   the job writes to this database.
//! - *The work takes longer than [`at_most_for`](Job::at_most_for)*: the work is dropped at its next await point, and
//!   the run is recorded as failed.
//! - *No machine is up at that minute*, the name is [paused](rowlock::Admin::pause), or the database is in
//!   [quarantine](rowlock::Admin::quarantine): the round does not run, and nothing runs it later. A job is no queue.

mod run;

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use run::JobRun;

use crate::meter;
use rowlock::Rowlock;
use rowlock::extend::check_ttl;
use rowlock::{Busy, Error, InvalidError, Name};
use rowlock::{Held, Lock};

/// Those of [`Lock::max_hold`].
const AT_MOST_FOR: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_hours(366 * 24);

/// What became of a call of [`Job::run`].
#[derive(Debug)]
#[must_use = "it tells whether the job ran here"]
pub enum Ran<T> {
    /// The job ran here, and this is its result.
    Here(T),
    /// The name is taken, so the job did not run here: it is running, it has just run, another holder has a lock of
    /// this name, or the job [runs nowhere](Job::runs_nowhere).
    Skipped(Busy),
}

impl<T> Ran<T> {
    /// The result, if the job ran here.
    #[must_use]
    pub fn here(self) -> Option<T> {
        match self {
            Self::Here(result) => Some(result),
            Self::Skipped(_) => None,
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
/// use rowlock_recipes::{Job, job::Ran};
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
///     Ran::Skipped(busy) => println!("it does not run here: {busy}"),
/// }
/// for run in rowlock.admin().runs().await? {
///     println!("{} {} on {} since {}", run.name, run.state, run.holder, run.began_at);
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
        let name = name.try_into().map_err(Into::into);
        meter::job(&name);
        Self {
            rowlock: rowlock.clone(),
            name,
            at_least_for: Duration::ZERO,
            at_most_for: None,
            ttl: Lock::DEFAULT_TTL,
            holder: None,
        }
    }

    /// How long the name stays taken after the job has begun, however soon the job ends: at most 24 h, and at most
    /// [`at_most_for`](Self::at_most_for); 0 when not set. If the machines' clocks differ by d at most and the rounds
    /// are p apart, set it longer than d and shorter than p − d. Without it, a job that ends soon runs again on a
    /// machine whose clock is late.
    pub fn at_least_for(mut self, time: Duration) -> Self {
        self.at_least_for = time;
        self
    }

    /// How long the job may run: 100 ms to 366 days; no limit when not set. At the limit the work is dropped.
    pub fn at_most_for(mut self, time: Duration) -> Self {
        self.at_most_for = Some(time);
        self
    }

    /// As [`Lock::ttl`]: 100 ms to 24 h; 30 s when not set.
    ///
    /// While the job runs, its lease has this time or [`at_least_for`](Self::at_least_for), whichever is longer: after
    /// a crash the name stays taken for so long. So a job with a long `at_least_for` learns late of a loss: of a
    /// [forced release](rowlock::Admin::force_release) up to a third of that time later, and of being cut off from the
    /// database up to five sixths of it later.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// As [`Lock::holder`]: the machine on which the job runs, for people to read.
    pub fn holder(mut self, holder: impl Into<Arc<str>>) -> Self {
        self.holder = Some(holder.into());
        self
    }

    /// Checks the settings, for a program that checks its user's settings before it connects. [`run`](Self::run) does,
    /// too.
    ///
    /// # Errors
    ///
    /// `at_least_for` above `at_most_for`, or above 24 h; `at_most_for` or a TTL out of bounds.
    pub fn check(
        at_least_for: Duration,
        at_most_for: Option<Duration>,
        ttl: Duration,
    ) -> Result<(), Error> {
        check_ttl("ttl", ttl)?;
        if at_most_for.is_some_and(|most| most < at_least_for) {
            return Err(Error::Invalid(InvalidError::Setting {
                setting: "at_least_for",
                reason: "it is longer than at_most_for: the job would have to run for longer than it may",
            }));
        }
        if at_least_for > Duration::from_hours(24) {
            return Err(Error::Invalid(InvalidError::Duration {
                setting: "at_least_for",
                given: at_least_for,
                bounds: "at most 24 h are allowed",
            }));
        }
        if let Some(given) = at_most_for.filter(|most| !AT_MOST_FOR.contains(most)) {
            return Err(Error::Invalid(InvalidError::Duration {
                setting: "at_most_for",
                given,
                bounds: "100 ms to 366 days are allowed",
            }));
        }
        Ok(())
    }

    /// Whether a round that was skipped here is skipped by all machines: nobody has a lease of the name, and nobody
    /// gets one, because the name is paused, or because the database is in quarantine. [`run`](Self::run) logs a
    /// warning then.
    #[must_use]
    pub fn runs_nowhere(busy: &Busy) -> bool {
        busy.holder.is_none() && (busy.pause.is_some() || busy.quarantine.is_some())
    }

    /// Runs `work` if the name is free, and skips it otherwise. It never waits for the name. `work` gets the lease:
    /// pin it in transactions, or send its fence. When the lease is lost, the work is dropped at its next await point.
    ///
    /// # Errors
    ///
    /// The errors of [`begin`](Self::begin), except [`Error::WaitTimeout`]: then the run is skipped. The error of the
    /// work. [`Error::Lost`] when the lease was lost, or `at_most_for` was over, before the work was done. (Work that
    /// does not await until its end is not dropped, and its result counts.) If only the record of the run cannot be
    /// written, a warning is logged.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work. If the work has begun, the name still stays taken for `at_least_for`, and
    /// the run is shown as abandoned.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`).
    pub async fn run<T, E: From<Error> + Display>(
        &self,
        work: impl AsyncFnOnce(&Held) -> Result<T, E>,
    ) -> Result<Ran<T>, E> {
        let run = match self.begin().await {
            Ok(run) => run,
            Err(Error::WaitTimeout { busy, .. }) => {
                if Self::runs_nowhere(&busy) {
                    tracing::warn!(name = %busy.name, "this round is skipped: {busy}");
                }
                return Ok(Ran::Skipped(*busy));
            }
            Err(error) => return Err(error.into()),
        };
        let held = run.held();
        let (done, outcome) = match held.with(async || work(held).await).await {
            Ok(Ok(done)) => (Ok(done), "done"),
            Ok(Err(error)) => (Err(error), "failed"),
            Err(lost) => (Err(lost.into()), "lost"),
        };
        let message = done.as_ref().err().map(ToString::to_string);
        let message = message.unwrap_or_default();
        if let Err(error) = held.end_run(done.is_ok(), &message).await {
            tracing::warn!(name = %held.name(), %error, "the end of a job is not recorded");
        }
        run.leave_and_warn(outcome).await;
        done.map(Ran::Here)
    }

    /// Begins a run, for work that is no single future: asks once for the name. It does not watch the work: see
    /// [`Held::with`] and [`Held::lost`]. When the work is done, call [`Held::end_run`] and then [`JobRun::leave`].
    ///
    /// # Errors
    ///
    /// [`Error::WaitTimeout`] when the name is taken. Invalid settings; a database out of reach; [`Error::Lost`] when
    /// the lease is lost already. If only the begin of the run cannot be recorded, a warning is logged, and the run
    /// begins.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the name.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`).
    pub async fn begin(&self) -> Result<JobRun, Error> {
        let begun = self.begin_once().await;
        if let (Ok(name), Err(error)) = (&self.name, &begun) {
            let is_taken = matches!(error, Error::WaitTimeout { .. });
            meter::round(name, if is_taken { "skipped" } else { "error" });
        }
        begun
    }

    async fn begin_once(&self) -> Result<JobRun, Error> {
        let held = self.ask().await?;
        let began = Instant::now();
        match held.begin_run().await {
            Ok(()) => {}
            Err(error @ Error::Lost { .. }) => return Err(error),
            // The record is for people. The work matters more.
            Err(error) => {
                tracing::warn!(name = %held.name(), %error, "the begin of a job is not recorded");
            }
        }
        Ok(JobRun::new(held, began, self.at_least_for))
    }

    async fn ask(&self) -> Result<Held, Error> {
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
        lock.wait(Duration::ZERO).acquire().await
    }
}
