//! Why a call that happens once did not run, and has no result.

use crate::idempotency::{InFlight, UnknownStep};
use crate::model::RecordKey;

/// Why a call of [`once`](super::once()) did not run its work, although there is no earlier result to return. Nothing
/// was changed.
///
/// Each variant is one of [`Begun`](crate::Begun)'s, as an error. (An attempt that another one has replaced is
/// [`Error::Superseded`](crate::Error::Superseded).)
///
/// ```
/// use rowlock::attributes::Refused;
///
/// #[derive(Debug, thiserror::Error)]
/// enum PayError {
///     #[error(transparent)]
///     Refused(#[from] Refused),
///     #[error(transparent)]
///     Rowlock(#[from] rowlock::Error),
/// }
///
/// fn status(error: &PayError) -> u16 {
///     match error {
///         PayError::Refused(Refused::InFlight { .. }) => 409,
///         PayError::Refused(Refused::Mismatch { .. }) => 422,
///         PayError::Refused(Refused::Expired { .. } | Refused::NotKept { .. }) => 410,
///         _ => 500,
///     }
/// }
/// # let record = rowlock::RecordKey::new("alice", "pay:4711")?;
/// # assert_eq!(status(&Refused::Mismatch { record }.into()), 422);
/// # Ok::<(), rowlock::InvalidError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// Another attempt is running, or the database is in [quarantine](InFlight::quarantine). Call again later: then it
    /// may be done.
    #[error("{record} {}; call again later", why(attempt))]
    InFlight {
        /// The record.
        record: RecordKey,
        /// The other attempt.
        attempt: InFlight,
    },
    /// The key was used for another request: another function, or other arguments.
    #[error("{record} was used for another request: use a new key for a new request")]
    Mismatch {
        /// The record.
        record: RecordKey,
    },
    /// An attempt ended or was abandoned during a step that must not be repeated. The step may or may not have
    /// happened.
    #[error(
        "{} is unknown: the step {:?} of attempt {} may or may not have happened; find out, and report it (`rowlock idempotency resolve`)",
        .0.record, .0.step, .0.attempt
    )]
    Unknown(UnknownStep),
    /// An earlier attempt was done, and its result has been deleted since. The work does not run again.
    #[error(
        "{record} is done, and its result is not kept any more: use a new key for a new request"
    )]
    Expired {
        /// The record.
        record: RecordKey,
    },
    /// Too many attempts were abandoned. No attempt begins until `rowlock idempotency reset`, or until an hour after
    /// the last attempt's lease has ended, whichever is first.
    #[error(
        "{record} is poisoned: {attempts} attempts were abandoned; find out why, then run `rowlock idempotency reset` (or wait for an hour after the last one)"
    )]
    Poisoned {
        /// The record.
        record: RecordKey,
        /// The number of attempts that were abandoned.
        attempts: u32,
    },
    /// An earlier attempt was done, and its result could not be kept: it was too large, JSON could not represent it,
    /// or the database refused it. The work does not run again.
    #[error(
        "{record} is done, and its result could not be kept: look for its effect, or use a new key for a new request"
    )]
    NotKept {
        /// The record.
        record: RecordKey,
    },
}

fn why(attempt: &InFlight) -> String {
    match (attempt.quarantine, attempt.remaining) {
        (Some(left), _) => format!(
            "cannot begin: the database is in quarantine for another {left:.0?}, because it may have forgotten leases"
        ),
        (None, Some(remaining)) => format!(
            "is in flight: another attempt is running, with {remaining:.1?} of its lease left"
        ),
        (None, None) => "is in flight: another attempt is running".into(),
    }
}
