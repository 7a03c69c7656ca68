//! `rowlock run` as a scheduled job, and `rowlock jobs`.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::Args;
use comfy_table::{Table, presets};
use rowlock::compose::Job;
use rowlock::{Error, Held, Name, ReleaseOutcome, Rowlock, RunInfo, TryAcquire};
use serde::Serialize;

use crate::out::{say, tell};
use crate::show::{for_people, print_json, rfc3339};
use crate::{Failure, LOST, duration};

#[derive(Debug, Args)]
pub(crate) struct Scheduled {
    /// Run a job that other machines start at the same time, too. It runs on one of them, and the name stays taken for this long after
    /// the job has begun, even if the command ends sooner. Set it longer than the machines' clocks differ. If the name is taken,
    /// this command does not wait: it prints nothing (unless standard error is a terminal) and exits with 0. `rowlock jobs` shows the last run.
    #[arg(long, value_parser = duration::parse, value_name = "DURATION", allow_hyphen_values = true, conflicts_with_all = WAITS)]
    at_least_for: Option<Duration>,
    /// Run a job, as with --at-least-for, and end it when it has run for this long, as if the lock were lost (exit code 76).
    #[arg(long, value_parser = duration::parse, value_name = "DURATION", allow_hyphen_values = true, conflicts_with_all = WAITS)]
    at_most_for: Option<Duration>,
}

/// The options that a job refuses: it neither waits nor shares its name.
const WAITS: [&str; 6] = [
    "wait",
    "no_wait",
    "barging",
    "shared",
    "exclusive",
    "permits",
];

/// A job that runs here.
pub(crate) struct Running {
    /// After the grant.
    began: Instant,
    at_least_for: Duration,
}

impl Scheduled {
    pub(crate) fn check(&self, ttl: Duration) -> Result<(), Error> {
        Job::check(self.at_least_for.unwrap_or_default(), self.at_most_for, ttl)
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.at_least_for.is_some() || self.at_most_for.is_some()
    }

    /// Asks once. `None`: another machine runs it, or has just run it.
    pub(crate) async fn begin(
        &self,
        rowlock: &Rowlock,
        name: &Name,
        ttl: Duration,
    ) -> Result<Option<(Held, Running)>, Error> {
        let at_least_for = self.at_least_for.unwrap_or_default();
        // If this process is killed, the name stays taken for that long.
        let mut lock = rowlock.lock(name.clone()).ttl(ttl.max(at_least_for));
        if let Some(most) = self.at_most_for {
            lock = lock.max_hold(most);
        }
        let held = match lock.try_acquire().await? {
            TryAcquire::Held(held) => held,
            TryAcquire::Busy(busy) => {
                // cron mails what a job prints.
                if std::io::stderr().is_terminal() {
                    tell(format_args!(
                        "{name:?} does not run here, because the name is taken: {busy}"
                    ));
                }
                return Ok(None);
            }
        };
        let running = Running {
            began: Instant::now(),
            at_least_for,
        };
        held.begin_run().await?;
        Ok(Some((held, running)))
    }
}

impl Running {
    /// Records the end of the run, and leaves the name taken.
    pub(crate) async fn end(
        self,
        held: &Held,
        code: &Result<u8, Failure>,
    ) -> Result<ReleaseOutcome, Error> {
        let message = match code {
            Ok(0) => String::new(),
            Ok(LOST) if held.loss().is_some() => "its lock was lost".into(),
            Ok(code) => format!("exit code {code}"),
            Err(failure) => failure.message(),
        };
        if let Err(error) = held.end_run(matches!(code, Ok(0)), &message).await {
            tell(format_args!("the end of this run is not recorded: {error}"));
        }
        let rest = self.at_least_for.saturating_sub(self.began.elapsed());
        if rest.is_zero() {
            held.release().await
        } else {
            held.release_in(rest).await
        }
    }
}

/// A run in JSON.
#[derive(Debug, Serialize)]
struct JsonRun<'a> {
    name: &'a str,
    state: &'static str,
    began_at: String,
    took_ms: u64,
    holder: &'a str,
    fence: i64,
    message: &'a str,
}

impl<'a> From<&'a RunInfo> for JsonRun<'a> {
    fn from(run: &'a RunInfo) -> Self {
        Self {
            name: run.name.as_str(),
            state: run.state.name(),
            began_at: rfc3339(run.began_at),
            took_ms: u64::try_from(run.took.as_millis()).unwrap_or(u64::MAX),
            holder: &run.holder,
            fence: run.fence,
            message: &run.message,
        }
    }
}

pub(crate) fn print_runs(runs: &[RunInfo], json: bool) -> Result<(), Failure> {
    if json {
        return print_json(&runs.iter().map(JsonRun::from).collect::<Vec<_>>());
    }
    if runs.is_empty() {
        return say!("no job has run (`rowlock run NAME --at-least-for 50s -- CMD` runs one)");
    }
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_header(["JOB", "LAST RUN", "TOOK", "RESULT", "BY", "MESSAGE"]);
    for run in runs {
        table.add_row([
            run.name.as_str().escape_debug().to_string(),
            for_people(run.began_at),
            format!("{:.1?}", run.took),
            run.state.to_string(),
            run.holder.escape_debug().to_string(),
            run.message.escape_debug().to_string(),
        ]);
    }
    say!("{table}")
}
