//! The settings of a client.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{ClockError, Error, InvalidError};

/// The settings of a client; `Builder` documents them under the same names.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) holder: Arc<str>,
    pub(crate) operation_timeout: Duration,
    pub(crate) max_connections: u32,
    pub(crate) preparing: Preparing,
    pub(crate) clock_error: ClockError,
    pub(crate) session_ttl: Duration,
    /// How often this process cleans; `None` for never.
    pub(crate) clean_every: Option<Duration>,
}

impl Settings {
    /// Refuses a lease that is too short to be trusted.
    pub(crate) fn check_lease(&self, setting: &'static str, given: Duration) -> Result<(), Error> {
        if self.clock_error.allows(given) {
            return Ok(());
        }
        Err(Error::Invalid(InvalidError::Duration {
            setting,
            given,
            bounds: "it must be more than twice the client's clock_error",
        }))
    }
}

/// What a client does with the tables when it connects.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Preparing {
    pub(crate) migrate: bool,
    /// Puts the database in quarantine for so long: before it has a table of locks, if it has none.
    pub(crate) quarantine: Option<Duration>,
}
