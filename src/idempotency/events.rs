//! What the log and the metrics are told of requests for a key.

use tracing::field::display;
use tracing::{Span, debug, error, info, warn};

use super::begun::Begun;
use crate::model::{Error, RecordKey};
use crate::runtime::base::meter;

/// Fields of a span of the application's: it gets them where it has declared them.
const RECORD: &str = "rowlock.record";
const ATTEMPT: &str = "rowlock.attempt";
const OUTCOME: &str = "rowlock.outcome";

/// Tells what has become of a request. `attempt`: the number of the attempt that begins, if it has one.
pub(super) fn tell<T>(
    record: &RecordKey,
    begun: Result<&Begun<T>, &Error>,
    attempt: impl FnOnce(&T) -> Option<i64>,
) {
    let (outcome, attempt) = match begun {
        Ok(Begun::New(new)) => ("new", attempt(new)),
        Ok(Begun::Replay(_)) => ("replayed", None),
        Ok(Begun::InFlight(_)) => ("in_flight", None),
        Ok(Begun::Mismatch) => ("mismatch", None),
        Ok(Begun::Expired) => ("expired", None),
        Ok(Begun::Poisoned { .. }) => ("poisoned", None),
        Ok(Begun::Unknown(unknown)) => ("unknown", Some(unknown.attempt)),
        Err(_) => ("error", None),
    };
    match begun {
        Ok(Begun::New(_) | Begun::Replay(_) | Begun::InFlight(_)) => {
            debug!(%record, attempt, outcome, "a request for a key");
        }
        Ok(Begun::Mismatch | Begun::Expired) => {
            info!(%record, outcome, "a request for a key is refused");
        }
        Ok(Begun::Poisoned { .. } | Begun::Unknown(_)) => {
            warn!(%record, attempt, outcome, "a request for a key is refused until somebody decides");
        }
        Err(error) => debug!(%record, outcome, %error, "a request for a key has failed"),
    }
    note(record, attempt, outcome);
}

/// The work, or the database, has failed: the caller has the error.
pub(super) fn failed(record: &RecordKey) {
    let outcome = "error";
    debug!(%record, outcome, "a request for a key has failed");
    note(record, None, outcome);
}

/// Another attempt has taken over.
pub(super) fn superseded(record: &RecordKey, attempt: i64, doing: &str) {
    let outcome = "superseded";
    warn!(%record, attempt, outcome, doing, "an attempt has been taken over, or has ended before");
    note(record, Some(attempt), outcome);
}

fn note(record: &RecordKey, attempt: Option<i64>, outcome: &'static str) {
    let span = Span::current();
    span.record(RECORD, display(record))
        .record(OUTCOME, outcome);
    if let Some(attempt) = attempt {
        span.record(ATTEMPT, attempt);
    }
    meter::request(outcome);
}

/// The outcome of work that is done could not be kept.
pub(super) fn lost(record: &RecordKey, attempt: i64) {
    let outcome = "lost";
    error!(%record, attempt, outcome, "an outcome is lost: a retry runs the work again");
    note(record, Some(attempt), outcome);
}
