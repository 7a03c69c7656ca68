//! A transaction that did not come about.

use crate::model::Error;

/// Why a transaction did not begin or commit, independent of the caller's error type.
pub(crate) enum CommitFailure {
    /// It could not have its turn; whether the commit happened is unknown; or there was nothing to commit.
    Ours(Error),
    Driver(sqlx::Error),
}

impl CommitFailure {
    pub(crate) fn into_error<E: From<sqlx::Error> + From<Error>>(self) -> E {
        match self {
            Self::Ours(error) => error.into(),
            Self::Driver(error) => error.into(),
        }
    }
}

impl From<sqlx::Error> for CommitFailure {
    fn from(error: sqlx::Error) -> Self {
        Self::Driver(error)
    }
}
