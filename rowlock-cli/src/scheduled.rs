//! `rowlock run` as a scheduled job, and `rowlock jobs`.

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use rowlock::{Error, Loss, Name, Rowlock};
use rowlock_recipes::Job;
use rowlock_recipes::job::JobRun;

use crate::duration::span;
use crate::out::tell;
use crate::{Failure, LOST, USAGE, duration};

#[derive(Debug, Args)]
pub(crate) struct Scheduled {
    /// Run a job that other machines start at the same time, too. It runs on one of them, and the name stays taken for
    /// this long after the job has begun, even if the command ends sooner: 0s to 24h, more than the machines' clocks
    /// differ, and less than the time between two rounds less that difference. If the name is taken, this command does
    /// not wait: it prints nothing (unless standard error is a terminal) and exits with 0. `rowlock jobs` shows the
    /// last run.
    #[arg(long, value_parser = duration::parse, value_name = "DURATION", allow_hyphen_values = true, conflicts_with_all = WAITS)]
    at_least_for: Option<Duration>,
    /// End the job when it has run for this long, as if the lock were lost (exit code 76): 100ms to 8784h.
    #[arg(long, value_parser = duration::parse, value_name = "DURATION", allow_hyphen_values = true, requires = "at_least_for")]
    at_most_for: Option<Duration>,
}

/// The options that a job refuses: it neither waits nor shares its name.
const WAITS: [&str; 5] = ["wait", "no_wait", "shared", "exclusive", "permits"];

impl Scheduled {
    pub(crate) fn check(&self, ttl: Duration) -> Result<(), Failure> {
        let at_least_for = self.at_least_for.unwrap_or_default();
        if let Some(most) = self.at_most_for.filter(|most| *most < at_least_for) {
            let message = format!(
                "--at-least-for {} is longer than --at-most-for {}: give the job more time, or its name less",
                span(at_least_for),
                span(most)
            );
            return Err(Failure::Other(message, USAGE));
        }
        Ok(Job::check(at_least_for, self.at_most_for, ttl)?)
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.at_least_for.is_some()
    }

    /// Asks once. `None`: another machine runs it, or has just run it.
    pub(crate) async fn begin(
        &self,
        rowlock: &Rowlock,
        name: &Name,
        ttl: Duration,
    ) -> Result<Option<JobRun>, Error> {
        let mut job = Job::new(rowlock, name.clone()).ttl(ttl);
        job = job.at_least_for(self.at_least_for.unwrap_or_default());
        if let Some(most) = self.at_most_for {
            job = job.at_most_for(most);
        }
        match job.begin().await {
            Ok(run) => Ok(Some(run)),
            Err(Error::WaitTimeout { busy, .. }) if !Job::runs_nowhere(&busy) => {
                // cron mails what a job prints.
                if std::io::stderr().is_terminal() {
                    tell(format_args!(
                        "{name:?} does not run here, because the name is taken: {busy}"
                    ));
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Records the end of the run, and leaves the name taken.
pub(crate) async fn end(run: JobRun, code: &Result<u8, Failure>) -> Result<(), Error> {
    let held = run.held();
    let message = match code {
        Ok(0) => String::new(),
        Ok(LOST) if let Some(loss) = held.loss() => match loss {
            Loss::MaxHold => "it ran for longer than --at-most-for".into(),
            loss => format!("its lock was lost: {loss}"),
        },
        Ok(code) => format!("exit code {code}"),
        Err(failure) => failure.message(),
    };
    if let Err(error) = held.end_run(matches!(code, Ok(0)), &message).await {
        tell(format_args!("the end of this run is not recorded: {error}"));
    }
    run.leave().await
}
