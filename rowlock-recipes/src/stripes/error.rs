//! Why a counter did not change.

use rowlock::Retryable;
use rowlock::{Error, Name};

/// Why an operation of [`Stripes`](super::Stripes) has changed nothing.
///
/// A closure of [`Retry::run`](rowlock::Retry::run) and of [`run_in_tx`](rowlock::Idempotency::run_in_tx) may return
/// it: it is [`Retryable`] where its cause is.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StripesError {
    /// The counter has less than the call asked for. Take what is left in the same transaction, or roll it back. End
    /// the transaction soon: it may have locked stripes.
    #[error("{asked} of {name:?} were asked for, and {left} are left: nothing was taken")]
    Short {
        /// The counter.
        name: Name,
        /// The quantity that was asked for.
        asked: u64,
        /// The sum of all stripes, when it was read.
        left: u64,
    },
    /// The application's table has other stripes than `0` to `N - 1`, or a quantity below zero. Not retryable: correct
    /// the table, or the number of stripes, or the statements of [`Quantities`](super::Quantities).
    #[error("the rows of {name:?} do not fit: {detail}")]
    Rows {
        /// The counter.
        name: Name,
        /// What was found, and what is needed.
        detail: String,
    },
    /// A lock was not granted, or a statement failed. Roll the transaction back.
    #[error("the stripes did not change: {0}")]
    Failed(#[source] Error),
}

impl StripesError {
    /// What is left, when there is less than was asked for.
    #[must_use]
    pub fn left(&self) -> Option<u64> {
        match self {
            Self::Short { left, .. } => Some(*left),
            Self::Rows { .. } | Self::Failed(_) => None,
        }
    }
}

impl From<Error> for StripesError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<sqlx::Error> for StripesError {
    fn from(error: sqlx::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl Retryable for StripesError {
    fn is_retryable(&self) -> bool {
        match self {
            Self::Failed(error) => error.is_retryable(),
            Self::Short { .. } | Self::Rows { .. } => false,
        }
    }
}
