//! The data of a run that callers can read.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::Name;

/// A run of the work under a lock, as its row in the database describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunInfo {
    /// The lock.
    pub name: Name,
    /// The fence under which it ran.
    pub fence: i64,
    /// Who ran it, for people to read.
    pub holder: String,
    /// When it began, by the database's clock.
    pub began_at: DateTime<Utc>,
    /// The time from its begin to its end; if it is running, the time until now. `None`: it was abandoned, so its end
    /// is unknown.
    pub took: Option<Duration>,
    /// How far it has come.
    pub state: RunState,
    /// The error of the work, or a text that its holder gave: at most 1,000 bytes.
    pub message: String,
}

/// How far a run has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RunState {
    /// Its lease is live.
    Running,
    /// Its lease ended before its end was recorded: the process has crashed or was cut off.
    Abandoned,
    /// It has succeeded.
    Succeeded,
    /// It has failed.
    Failed,
}

impl RunState {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Abandoned => "abandoned",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
