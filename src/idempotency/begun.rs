//! The results of a request for a key.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::model::{Outcome, RecordKey};

/// The result of a request for a key.
///
/// With [`Idempotency::begin`](super::Idempotency::begin), `New` contains the guard of the attempt that the caller now
/// runs. With [`Idempotency::run_in_tx`](super::Idempotency::run_in_tx), it contains the outcome that was just
/// committed.
#[derive(Debug)]
#[must_use = "it tells whether to run"]
pub enum Begun<T> {
    /// The key was free, and the caller has it.
    New(T),
    /// An earlier attempt was done, with this outcome.
    Replay(Outcome),
    /// Another attempt is running.
    InFlight(InFlight),
    /// The key was used for another request.
    Mismatch,
    /// An attempt ended or was abandoned during a step that must not be repeated. The step may or may not have
    /// happened.
    Unknown(UnknownStep),
    /// An earlier attempt of this request was done, and its retention is over. The work is not run again. (Another
    /// request under this key is a [`Mismatch`](Self::Mismatch).)
    Expired,
    /// Too many attempts were abandoned. No attempt begins until `rowlock idempotency reset`, or until an hour after
    /// the last attempt's lease has ended, whichever is first.
    Poisoned {
        /// The number of attempts that were abandoned.
        attempts: u32,
    },
}

impl<T> Begun<T> {
    /// `Ok` with the value of `New`, or `Err` with any other result.
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

/// Another attempt is running, or the database is in [quarantine](crate::Admin::quarantine).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InFlight {
    /// The time until its lease ends, unless it is renewed. `None`: the attempt is a transaction, and ends with it.
    pub remaining: Option<Duration>,
    /// When the lease ends, by the database's clock.
    pub until: Option<DateTime<Utc>>,
    /// Who runs it, for people to read.
    pub holder: Option<String>,
    /// The database is in quarantine for this time, and no attempt begins. There may be no other attempt.
    pub quarantine: Option<Duration>,
}

impl InFlight {
    /// Another transaction has the key. Its record cannot be read before it ends.
    pub(super) const fn unseen() -> Self {
        Self {
            remaining: None,
            until: None,
            holder: None,
            quarantine: None,
        }
    }

    /// The database is in quarantine for this time.
    pub(super) const fn in_quarantine(left: Duration) -> Self {
        Self {
            remaining: None,
            until: None,
            holder: None,
            quarantine: Some(left),
        }
    }
}

/// A step that must not be repeated, and may or may not have happened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownStep {
    /// The record.
    pub record: RecordKey,
    /// The step.
    pub step: String,
    /// The key that the step sent to the other server, if the step used
    /// [`downstream_key`](super::IdempotencyGuard::downstream_key).
    pub downstream_key: String,
    /// The attempt that began the step.
    pub attempt: i64,
}

/// The answer of a reconcile hook; see [`Idempotency::reconcile`](super::Idempotency::reconcile).
#[derive(Debug, Clone)]
pub enum Reconciled {
    /// The step happened, with this result of at most [`max_outcome`](super::Idempotency::max_outcome) bytes
    /// ([`RecordError::OutcomeTooLarge`](crate::model::RecordError::OutcomeTooLarge)). The next attempt goes on after
    /// the step.
    Happened(Outcome),
    /// The step did not happen, and cannot happen later. The next attempt runs it again.
    NotHappened,
    /// The hook cannot find out now.
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
