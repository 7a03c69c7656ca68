//! The lock, the record or the session that an operation works on, for messages.

use std::fmt;

use uuid::Uuid;

use super::{Name, RecordKey};

/// The lock, the record or the session that an operation worked on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A lock.
    Lock(Name),
    /// An idempotency record.
    Record(RecordKey),
    /// A session, by its id.
    Session(Uuid),
}

impl Subject {
    /// The lock to which a row belongs: a permit's row belongs to its semaphore or read/write lock.
    pub(crate) fn of_row(name: &Name) -> Self {
        Self::Lock(name.of_permit().unwrap_or_else(|| name.clone()))
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock(name) => fmt::Debug::fmt(name, f),
            Self::Record(key) => write!(f, "the record {key}"),
            Self::Session(id) => write!(f, "the session {id}"),
        }
    }
}

impl RecordKey {
    pub(crate) fn subject(&self) -> Subject {
        Subject::Record(self.clone())
    }
}
