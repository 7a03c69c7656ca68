//! What asking for a key can come to.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::model::{Outcome, RecordKey};

/// What asking for a key has come to.
///
/// From [`Idempotency::begin`](super::Idempotency::begin), `New` brings the guard of the attempt that the caller now runs; from
/// [`Idempotency::run_in_tx`](super::Idempotency::run_in_tx), the outcome of what has just been run and committed.
#[derive(Debug)]
#[must_use = "it tells whether to run"]
pub enum Begun<T> {
    /// Nobody has, so it is the caller's.
    New(T),
    /// It was done: this is what it came to.
    Replay(Outcome),
    /// Somebody is at it.
    InFlight(InFlight),
    /// The key was used for another request.
    Mismatch,
    /// An attempt vanished in the middle of a step that must not be repeated, and whether that step happened
    /// is not known.
    Unknown(UnknownStep),
    /// It was done, so long ago that the outcome is not kept any more. It is not run again.
    Expired,
    /// So many attempts have vanished that it is not run again, until `rowlock idempotency reset`.
    Poisoned {
        /// How many.
        attempts: u32,
    },
}

impl<T> Begun<T> {
    /// The same, with another `New`.
    pub(super) fn refusal<U>(self) -> Result<T, Begun<U>> {
        Err(match self {
            Self::New(new) => return Ok(new),
            Self::Replay(outcome) => Begun::Replay(outcome),
            Self::InFlight(in_flight) => Begun::InFlight(in_flight),
            Self::Mismatch => Begun::Mismatch,
            Self::Unknown(step) => Begun::Unknown(step),
            Self::Expired => Begun::Expired,
            Self::Poisoned { attempts } => Begun::Poisoned { attempts },
        })
    }
}

impl Begun<Outcome> {
    /// The outcome, new or replayed, if there is one.
    #[must_use]
    pub fn outcome(self) -> Option<Outcome> {
        match self {
            Self::New(outcome) | Self::Replay(outcome) => Some(outcome),
            _ => None,
        }
    }
}

/// Somebody runs an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InFlight {
    /// How long its lease lasts when it is not renewed. `None`: the attempt is a transaction, and ends with it.
    pub remaining: Option<Duration>,
    /// When that is, by the database's clock.
    pub until: Option<DateTime<Utc>>,
    /// Who it is, for people to read.
    pub holder: Option<String>,
}

impl InFlight {
    /// Somebody is at it, and cannot be seen before his transaction ends.
    pub(super) const fn unseen() -> Self {
        Self {
            remaining: None,
            until: None,
            holder: None,
        }
    }
}

/// A step that must not be repeated, and of which nobody knows whether it happened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownStep {
    /// The record.
    pub record: RecordKey,
    /// The step.
    pub step: String,
    /// The key that the step was given for the other side, if it asked for
    /// [`downstream_key`](super::IdempotencyGuard::downstream_key).
    pub downstream_key: String,
    /// The attempt that vanished.
    pub attempt: i64,
}

/// What a reconcile hook has found out; see [`Idempotency::reconcile`](super::Idempotency::reconcile).
#[derive(Debug, Clone)]
pub enum Reconciled {
    /// The step happened, and this is what it came to, at most [`max_outcome`](super::Idempotency::max_outcome) bytes
    /// ([`Error::OutcomeTooLarge`](crate::model::Error::OutcomeTooLarge)): the attempt goes on after it.
    Happened(Outcome),
    /// It did not happen, and will not: the attempt runs it again.
    NotHappened,
    /// It cannot be found out now.
    StillUnknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_now_or_before_has_an_outcome() {
        let outcome = Outcome::new("text/plain", "done").unwrap();
        for begun in [Begun::New(outcome.clone()), Begun::Replay(outcome.clone())] {
            assert_eq!(begun.outcome(), Some(outcome.clone()));
        }
        assert_eq!(Begun::<Outcome>::Mismatch.outcome(), None);
    }
}
