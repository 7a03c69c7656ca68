//! What a transaction has locked.

use crate::model::{Busy, Name};

/// Names that a transaction has locked, until it ends. (Dropping this does nothing.)
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locked {
    grants: Vec<(Name, i64)>,
}

impl Locked {
    pub(super) fn new(grants: Vec<(Name, i64)>) -> Self {
        Self { grants }
    }

    /// The fence of the grant: greater than the fence of every earlier grant of the name. Of several names,
    /// the fence of the first in their order.
    ///
    /// A rollback also rolls the fence back. The same fence is not granted again, unless the database's clock was set
    /// back to before the row's fences.
    #[must_use]
    pub fn fence(&self) -> i64 {
        self.grants.first().map_or(0, |(_, fence)| *fence)
    }

    /// The names, in their order, with their fences.
    pub fn fences(&self) -> impl Iterator<Item = (&Name, i64)> {
        self.grants.iter().map(|(name, fence)| (name, *fence))
    }
}

/// The outcome of [`LockInTx::try_acquire`](super::LockInTx::try_acquire).
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "it tells whether the name is locked"]
pub enum TryLock {
    /// Locked until the transaction ends.
    Locked(Locked),
    /// Another holder has the name, or one of the names. Nothing was granted.
    Busy(Busy),
}

impl TryLock {
    /// The grant, if the lock was granted.
    #[must_use]
    pub fn locked(self) -> Option<Locked> {
        match self {
            Self::Locked(locked) => Some(locked),
            Self::Busy(_) => None,
        }
    }
}
