//! What an operation is about, for messages.

use std::fmt;

use super::{Name, RecordKey};

/// What an operation was about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A lock.
    Lock(Name),
    /// An idempotency record.
    Record(RecordKey),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock(name) => fmt::Debug::fmt(name, f),
            Self::Record(key) => write!(f, "the record {key}"),
        }
    }
}
