//! What has become of an idempotency record.

use std::fmt;
use std::str::FromStr;

use super::Error;

/// What has become of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RecordState {
    /// Somebody runs an attempt.
    Running,
    /// An attempt has vanished; the next one takes over.
    Lapsed,
    /// So many attempts have vanished that nobody takes over, until it is reset.
    Poisoned,
    /// An attempt was given up; the next one runs it again.
    Free,
    /// Nobody knows whether a step that must not be repeated happened, until it is resolved.
    Unknown,
    /// It has an outcome.
    Done,
    /// It had one, which is not kept any more.
    Expired,
}

impl RecordState {
    /// As the command prints it.
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
        named.ok_or(Error::InvalidSetting {
            setting: "state",
            reason: "running, lapsed, poisoned, free, unknown, done and expired are allowed",
        })
    }
}
