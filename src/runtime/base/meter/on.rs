//! Counts.

use std::time::Duration;

use metrics::Unit::{Count, Seconds};
use metrics::{
    Counter, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use super::{kind_name, loss_name};
use crate::model::{Kind, Loss, Moment};

/// Tells the application's recorder what each metric means.
pub(crate) fn describe() {
    describe_histogram!(
        "rowlock_acquire_seconds",
        Seconds,
        "How long a caller waited for a lock"
    );
    describe_histogram!("rowlock_hold_seconds", Seconds, "How long a guard was held");
    describe_counter!(
        "rowlock_lost_total",
        Count,
        "Locks, sessions and attempts that ended before their release"
    );
    describe_counter!(
        "rowlock_renewals_late_total",
        Count,
        "Leases with a third of their time left, and no confirmed renewal"
    );
    describe_gauge!(
        "rowlock_queue_waiters",
        Count,
        "Waiters of this client in the queues of the database"
    );
    describe_histogram!(
        "rowlock_statement_seconds",
        Seconds,
        "How long a statement on a connection of rowlock's own took"
    );
    describe_histogram!(
        "rowlock_batch_size",
        Count,
        "How many operations shared a statement"
    );
    describe_counter!(
        "rowlock_idempotency_total",
        Count,
        "Requests for a key, by what became of them"
    );
    describe_histogram!(
        "rowlock_attempt_seconds",
        Seconds,
        "How long an attempt ran until it ended"
    );
    begin_at_zero();
}

/// Prometheus cannot see that a counter rises which begins at 1: the first of rare events would raise no alert.
fn begin_at_zero() {
    for outcome in [
        "new",
        "replayed",
        "in_flight",
        "mismatch",
        "expired",
        "unknown",
        "poisoned",
        "error",
        "superseded",
        "lost",
    ] {
        requests(outcome).increment(0);
    }
    for what in ["lock", "session", "attempt"] {
        for loss in [
            Loss::Expired,
            Loss::TakenOver,
            Loss::MaxHold,
            Loss::SessionEnded,
        ] {
            losses(what, loss).increment(0);
        }
    }
    late(0);
}

/// A caller got a lock, or did not.
pub(crate) fn acquired(kind: Kind, outcome: &'static str, took: Duration) {
    histogram!("rowlock_acquire_seconds", "kind" => kind_name(kind), "outcome" => outcome)
        .record(took);
}

/// A grant was lost: of a `lock`, a `session` or an `attempt`.
pub(crate) fn lost(what: &'static str, loss: Loss) {
    losses(what, loss).increment(1);
}

fn losses(what: &'static str, loss: Loss) -> Counter {
    counter!("rowlock_lost_total", "what" => what, "loss" => loss_name(loss))
}

pub(crate) fn late(leases: usize) {
    counter!("rowlock_renewals_late_total").increment(leases as u64);
}

/// A statement of `size` operations is answered, or has failed.
pub(crate) fn statement(verb: &'static str, size: usize, took: Duration, is_ok: bool) {
    let outcome = if is_ok { "ok" } else { "failed" };
    histogram!("rowlock_statement_seconds", "verb" => verb, "outcome" => outcome).record(took);
    #[allow(
        clippy::cast_precision_loss,
        reason = "a statement has a few thousand operations at most"
    )]
    histogram!("rowlock_batch_size", "verb" => verb).record(size as f64);
}

/// What has become of a request for a key.
pub(crate) fn request(outcome: &'static str) {
    requests(outcome).increment(1);
}

fn requests(outcome: &'static str) -> Counter {
    counter!("rowlock_idempotency_total", "outcome" => outcome)
}

/// The time since something began.
#[derive(Debug)]
pub(crate) struct Since(Moment);

impl Since {
    pub(crate) fn now() -> Self {
        Self(Moment::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    /// A guard was held since then.
    pub(crate) fn held(&self) {
        histogram!("rowlock_hold_seconds").record(self.elapsed());
    }

    /// An attempt ran since then.
    pub(crate) fn ran(&self, end: &'static str) {
        histogram!("rowlock_attempt_seconds", "end" => end).record(self.elapsed());
    }
}

/// One waiter in a queue, until this is dropped.
#[derive(Debug)]
pub(crate) struct InQueue(());

impl InQueue {
    pub(crate) fn new() -> Self {
        gauge!("rowlock_queue_waiters").increment(1);
        Self(())
    }
}

impl Drop for InQueue {
    fn drop(&mut self) {
        gauge!("rowlock_queue_waiters").decrement(1);
    }
}
