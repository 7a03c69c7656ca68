//! Which errors may be tried again, and which smaller errors become an [`Error`].

use std::convert::Infallible;

use super::Error;
use crate::model::{InvalidKey, InvalidName, UnknownEngine};

impl Error {
    /// Whether another try later may succeed: the database was out of reach, or busy.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::ReadOnly { .. }
                | Self::OutcomeUnknown { .. }
                | Self::WaitTimeout { .. }
                | Self::QueueFull { .. }
                | Self::Starved { .. }
                | Self::RowLocked { .. }
        )
    }

    /// Whether a transaction that failed with this error may succeed when it begins again. [`Retry`](crate::Retry)
    /// tries these errors again.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::TransactionAborted { .. } | Self::Conflict { .. } | Self::Starved { .. } => true,
            Self::Application { cause } => cause.kind().may_begin_anew(),
            _ => false,
        }
    }
}

impl From<UnknownEngine> for Error {
    fn from(_: UnknownEngine) -> Self {
        Self::InvalidSetting {
            setting: "engine",
            reason: UnknownEngine::ALLOWED,
        }
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl From<InvalidName> for Error {
    fn from(refused: InvalidName) -> Self {
        Self::InvalidName(refused)
    }
}

impl From<InvalidKey> for Error {
    fn from(refused: InvalidKey) -> Self {
        Self::InvalidKey(refused)
    }
}
