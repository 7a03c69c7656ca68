//! What a transaction has locked.

use crate::model::Name;

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
