//! What a permit takes of its name.

use super::{Error, InvalidError, Kind};

/// The part of a name that a permit has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) kind: Kind,
    pub(crate) weight: u32,
}

impl Share {
    /// Checks the numbers, before the database is asked.
    pub(crate) fn check(self) -> Result<(), Error> {
        let Kind::Semaphore { capacity } = self.kind else {
            return Ok(());
        };
        check_capacity(capacity)?;
        if (1..=capacity).contains(&self.weight) {
            return Ok(());
        }
        Err(Error::Invalid(InvalidError::Setting {
            setting: "weight",
            reason: "a permit has a weight from 1 to the capacity of its semaphore",
        }))
    }
}

/// Checks the capacity of a semaphore.
pub(crate) fn check_capacity(capacity: u32) -> Result<(), Error> {
    if (1..=Kind::LARGEST).contains(&capacity) {
        return Ok(());
    }
    Err(Error::Invalid(InvalidError::Setting {
        setting: "capacity",
        reason: "1 to 2147483646 are allowed",
    }))
}
