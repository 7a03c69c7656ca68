//! What jobs and elections count, for the application's own metrics: with the feature `metrics`, and nothing without
//! it. docs/METRICS.md has the list.
//!
//! A program has few jobs and elections, so their names are labels. Locks may have as many names as there are things
//! to lock, so theirs are not.
#![cfg_attr(
    not(feature = "metrics"),
    allow(
        unused_variables,
        clippy::missing_const_for_fn,
        reason = "nothing is counted"
    )
)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
#[cfg(feature = "metrics")]
use std::time::Instant;

#[cfg(feature = "metrics")]
use metrics::Unit::{Count, Seconds};
#[cfg(feature = "metrics")]
use metrics::{
    Counter, Gauge, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use rowlock::{Error, Loss, Name};

/// What may become of a round.
#[cfg(feature = "metrics")]
const OUTCOMES: [&str; 7] = [
    "done",
    "failed",
    "lost",
    "left",
    "abandoned",
    "skipped",
    "error",
];

/// There is a job of this name. Its counters begin at 0: Prometheus cannot see that a counter rises which begins at 1.
pub(crate) fn job(name: &Result<Name, Error>) {
    #[cfg(feature = "metrics")]
    if let Ok(name) = name {
        describe_counter!(
            "rowlock_job_rounds_total",
            Count,
            "Rounds of a job, by what became of them in this process"
        );
        describe_histogram!("rowlock_job_seconds", Seconds, "How long a job ran");
        for outcome in OUTCOMES {
            rounds(name, outcome).increment(0);
        }
    }
}

/// A round of a job has come, and this is what became of it here.
pub(crate) fn round(name: &Name, outcome: &'static str) {
    #[cfg(feature = "metrics")]
    rounds(name, outcome).increment(1);
}

#[cfg(feature = "metrics")]
fn rounds(name: &Name, outcome: &'static str) -> Counter {
    counter!("rowlock_job_rounds_total", "name" => label(name), "outcome" => outcome)
}

/// A job ran here for that long.
pub(crate) fn ran(name: &Name, took: Duration) {
    #[cfg(feature = "metrics")]
    histogram!("rowlock_job_seconds", "name" => label(name)).record(took);
}

/// There is an election of this name, in which this process may lead.
pub(crate) fn election(name: &Result<Name, Error>) {
    #[cfg(feature = "metrics")]
    if let Ok(name) = name {
        describe_gauge!(
            "rowlock_leading",
            Count,
            "How many candidates of this process lead in an election"
        );
        describe_histogram!(
            "rowlock_term_seconds",
            Seconds,
            "How long a candidate of this process led"
        );
        leading(name).increment(0);
    }
}

#[cfg(feature = "metrics")]
fn leading(name: &Name) -> Gauge {
    gauge!("rowlock_leading", "name" => label(name))
}

#[cfg(feature = "metrics")]
fn label(name: &Name) -> String {
    name.as_str().to_owned()
}

/// One term of a candidate of this process.
#[derive(Debug)]
pub(crate) struct TermMeter {
    #[cfg(feature = "metrics")]
    began: Instant,
    has_ended: AtomicBool,
}

impl TermMeter {
    pub(crate) fn begin(name: &Name) -> Self {
        #[cfg(feature = "metrics")]
        leading(name).increment(1);
        Self {
            #[cfg(feature = "metrics")]
            began: Instant::now(),
            has_ended: AtomicBool::new(false),
        }
    }

    /// The term has ended. `None`: it was resigned. Another end counts nothing.
    pub(crate) fn end(&self, name: &Name, loss: Option<Loss>) {
        let is_first = !self.has_ended.swap(true, Ordering::AcqRel);
        #[cfg(feature = "metrics")]
        if is_first {
            leading(name).decrement(1);
            let end = if loss.is_some() { "lost" } else { "resigned" };
            histogram!("rowlock_term_seconds", "name" => label(name), "end" => end)
                .record(self.began.elapsed());
        }
    }
}
