//! The end of an attempt whose work has returned: keeping its result, or freeing its key.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::idempotency::{Idempotency, IdempotencyGuard, LayerAttempt, LayerKeys};
use crate::model::{Error, Outcome, RecordError, Subject};

/// The content type of the mark: an outcome that stands for a result that could not be kept.
const NOT_KEPT: &str = "application/vnd.rowlock.result-not-kept";

/// How long a task tries to keep a result when the database does not answer.
const KEEP_TRYING: Duration = Duration::from_mins(10);

/// The pause between two tries, with jitter, so that processes that fail together do not try again together.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

fn not_kept() -> Outcome {
    Outcome::new(NOT_KEPT, []).unwrap_or_else(|_| Outcome::empty())
}

/// Whether the outcome is the mark of a result that could not be kept.
pub(super) fn is_not_kept(outcome: &Outcome) -> bool {
    outcome.content_type() == NOT_KEPT
}

/// The outcome to keep for a result: its JSON, or the mark.
pub(super) fn to_keep(guard: &IdempotencyGuard, result: &impl Serialize) -> Outcome {
    let outcome = Outcome::json(result).and_then(|outcome| {
        guard.ensure_fits(outcome.bytes().len())?;
        Ok(outcome)
    });
    outcome.unwrap_or_else(|error| {
        let record = guard.record();
        tracing::warn!(%record, %error, "a result is not kept: later calls are refused");
        not_kept()
    })
}

/// Keeps the outcome of work that is done. When the database does not take it, it returns the error and tries again. A
/// task of the client does all this, so dropping this future loses nothing.
pub(super) async fn keep(
    idempotency: &Idempotency,
    guard: IdempotencyGuard,
    outcome: Outcome,
) -> Result<(), Error> {
    // The work is done. If the task is dropped, the key must stay claimed.
    guard.keep_claimed();
    let (tell, told) = oneshot::channel();
    let record = guard.record().clone();
    let keeping = async move {
        match guard.complete(&outcome).await {
            kept @ (Ok(()) | Err(Error::Superseded { .. })) => {
                let _ = tell.send(kept);
            }
            // A step may have happened. A kept result would hide that.
            Err(error @ Error::Record(RecordError::StepUnknown { .. })) => {
                release(&guard).await;
                let _ = tell.send(Err(error));
            }
            Err(error) => {
                let _ = tell.send(Err(error));
                keep_on(guard, outcome).await;
            }
        }
    };
    idempotency.spawn("a result that is not kept yet", keeping);
    told.await.unwrap_or_else(|_| {
        Err(Error::OutcomeUnknown {
            doing: "complete",
            on: Subject::Record(record),
            target: "the database".into(),
            detail: "the runtime that sent it has ended".into(),
        })
    })
}

/// Frees the key after work that failed. (If a step is open, the record becomes unknown.)
pub(super) async fn give_up(guard: &IdempotencyGuard) {
    // The work has called `keep_claimed`: its effect has happened, although it returned an error.
    if !guard.is_kept_claimed() {
        release(guard).await;
    }
}

async fn release(guard: &IdempotencyGuard) {
    match guard.release().await {
        // The work has ended the attempt itself, or another attempt has taken over.
        Ok(()) | Err(Error::Superseded { .. }) => {}
        Err(error) => {
            let record = guard.record();
            tracing::warn!(%record, %error, "a key is not free yet: dropping its guard tries again");
        }
    }
}

/// Tries again to keep an outcome, also after the lease has run out, until another attempt takes over. When the
/// database refuses the outcome, this keeps the mark instead.
async fn keep_on(guard: IdempotencyGuard, mut outcome: Outcome) {
    let record = guard.record();
    let until = Instant::now() + KEEP_TRYING;
    let mut pauses = ExponentialBuilder::new()
        .with_min_delay(SHORTEST_PAUSE)
        .with_max_delay(LONGEST_PAUSE)
        .without_max_times()
        .with_jitter()
        .build();
    while Instant::now() < until {
        sleep(pauses.next().unwrap_or(LONGEST_PAUSE)).await;
        match guard.complete(&outcome).await {
            Ok(()) => return,
            Err(error @ Error::Superseded { .. }) => {
                return tracing::warn!(%record, %error, "a result is not kept");
            }
            Err(Error::ShutDown { .. }) => break,
            Err(error) => {
                tracing::warn!(%record, %error, "a result is not kept yet: rowlock tries again");
                if matches!(error, Error::Record(RecordError::OutcomeTooLarge { .. })) {
                    outcome = not_kept();
                }
            }
        }
    }
    guard.outcome_is_lost();
}
