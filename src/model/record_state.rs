//! The state of an idempotency record.

use std::fmt;
use std::str::FromStr;

use super::{Error, InvalidError};

/// The state of an idempotency record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RecordState {
    /// An attempt is running.
    Running,
    /// An attempt was abandoned; the next one takes over.
    Lapsed,
    /// Too many attempts were abandoned. No attempt begins until an hour after the last one, or until an administrator
    /// resets the record.
    Poisoned,
    /// The last attempt was given up; the next one runs the work again.
    Free,
    /// A step that must not be repeated may or may not have happened. The record stays so until it is resolved.
    Unknown,
    /// The record has an outcome.
    Done,
    /// The record had an outcome, which has been deleted.
    Expired,
}

impl RecordState {
    /// The name that the command prints.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Lapsed => "lapsed",
            Self::Poisoned => "poisoned",
            Self::Free => "free",
            Self::Unknown => "unknown",
            Self::Done => "done",
            Self::Expired => "expired",
        }
    }
}

impl fmt::Display for RecordState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for RecordState {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let all = [
            Self::Running,
            Self::Lapsed,
            Self::Poisoned,
            Self::Free,
            Self::Unknown,
            Self::Done,
            Self::Expired,
        ];
        let named = all.into_iter().find(|state| state.name() == name);
        named.ok_or(Error::Invalid(InvalidError::Setting {
            setting: "state",
            reason: "running, lapsed, poisoned, free, unknown, done and expired are allowed",
        }))
    }
}
