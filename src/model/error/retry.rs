//! Which errors may be tried again.

use std::convert::Infallible;

use super::Error;

impl Error {
    /// Whether another try later may succeed: the database was out of reach or busy, or the name is taken. A service
    /// answers such a request with 503. It includes the errors that are [retryable](Self::is_retryable): for these,
    /// the whole transaction has to begin again.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.is_retryable()
            || matches!(
                self,
                Self::Unreachable { .. }
                    | Self::ReadOnly { .. }
                    | Self::OutcomeUnknown { .. }
                    | Self::WaitTimeout { .. }
                    | Self::QueueFull { .. }
                    | Self::RowLocked { .. }
            )
    }

    /// Whether a transaction that failed with this error may succeed when it begins again. [`Retry`](crate::Retry)
    /// tries these errors again.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Conflict { .. } | Self::Starved { .. } => true,
            Self::Application { cause } => cause.kind().may_begin_anew(),
            _ => false,
        }
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
