//! What rowlock refuses before it asks the database.

use std::fmt::{self, Write as _};
use std::time::Duration;

use crate::model::Printable;

/// A name, a key or a setting that rowlock refuses before it asks the database.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidError {
    /// The name of a lock is invalid.
    Name {
        /// The start of the name.
        name: String,
        /// The rule that it breaks.
        reason: &'static str,
    },
    /// A scope, a key or a step is invalid.
    Key {
        /// `scope`, `key` or `step`.
        what: &'static str,
        /// The rule that it breaks.
        reason: &'static str,
    },
    /// A duration is out of bounds.
    Duration {
        /// The name of the setting in Rust (`ttl`, `wait`, `max_hold`, …).
        setting: &'static str,
        /// The value that the caller gave.
        given: Duration,
        /// The allowed values.
        bounds: &'static str,
    },
    /// Another setting is invalid.
    Setting {
        /// The name of the setting in Rust.
        setting: &'static str,
        /// The rule that it breaks.
        reason: &'static str,
    },
}

impl From<InvalidError> for super::Error {
    fn from(error: InvalidError) -> Self {
        Self::Invalid(error)
    }
}

impl fmt::Display for InvalidError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let f = &mut Printable(f);
        match self {
            Self::Name { name, reason } => write!(
                f,
                "the lock name {name:?} is refused: {reason}; a name is 1 to 255 bytes of UTF-8 without NUL"
            ),
            Self::Key { what, reason } => write!(
                f,
                "the {what} is refused: {reason}; 1 to 255 bytes are allowed"
            ),
            Self::Duration {
                setting,
                given,
                bounds,
            } => write!(f, "{setting} = {} is refused: {bounds}", span(*given)),
            Self::Setting { setting, reason } => {
                write!(f, "`{setting}` is refused: {reason}")
            }
        }
    }
}

impl std::error::Error for InvalidError {}

/// A duration for people: `Duration` prints zero as 0ns.
fn span(given: Duration) -> String {
    if given.is_zero() {
        return "0s".into();
    }
    format!("{given:?}")
}
