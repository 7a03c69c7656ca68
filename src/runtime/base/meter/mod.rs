//! What a client counts, for the application's own metrics: through the facade of the crate `metrics`, with the
//! feature `metrics`. Without that feature nothing is counted. docs/METRICS.md has the list.

#[cfg(not(feature = "metrics"))]
mod off;
#[cfg(feature = "metrics")]
mod on;

#[cfg(not(feature = "metrics"))]
pub(crate) use off::{InQueue, Since, acquired, describe, late, lost, request, statement};
#[cfg(feature = "metrics")]
pub(crate) use on::{InQueue, Since, acquired, describe, late, lost, request, statement};

use crate::model::{Error, Kind, Loss};

/// The outcome of an acquire, as metrics and spans have it.
pub(crate) const fn outcome_of(got: Result<bool, &Error>) -> &'static str {
    match got {
        Ok(true) => "held",
        Ok(false) => "busy",
        Err(Error::WaitTimeout { .. }) => "timeout",
        Err(Error::QueueFull { .. }) => "queue_full",
        Err(_) => "error",
    }
}

pub(crate) const fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Lock => "lock",
        Kind::ReadWrite => "rw_lock",
        Kind::Semaphore { .. } => "semaphore",
    }
}

pub(crate) const fn loss_name(loss: Loss) -> &'static str {
    match loss {
        Loss::Expired => "expired",
        Loss::TakenOver => "taken_over",
        Loss::MaxHold => "max_hold",
        Loss::SessionEnded => "session_ended",
    }
}
