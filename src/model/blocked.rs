//! A wait in a circle.

use std::fmt;

use super::Name;

/// A part of a deadlock: an owner that waits for a lock, which the owner of the next part holds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blocked {
    /// The owner's [name](crate::Owner::named).
    pub owner: String,
    /// The lock that it waits for.
    pub name: Name,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} waits for {:?}", self.owner, self.name)
    }
}
