//! What a name stands for: a lock, a read/write lock, or a semaphore.

use std::fmt;

/// What a name stands for. A name keeps its kind for as long as its row is in the database: ten days after its last
/// use, or until [`Admin::forget`](crate::Admin::forget).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// A lock: one holder.
    Lock,
    /// A read/write lock: many readers, or one writer.
    ReadWrite,
    /// A semaphore.
    #[non_exhaustive]
    Semaphore {
        /// The sum of the weights of its permits is at most this.
        capacity: u32,
    },
}

impl Kind {
    /// The weight of a writer: the whole capacity of a read/write lock.
    pub(crate) const ALL: u32 = i32::MAX as u32;

    /// The largest capacity of a semaphore.
    pub(crate) const LARGEST: u32 = Self::ALL - 1;

    /// The capacity in the row.
    pub(crate) fn capacity(self) -> u32 {
        match self {
            Self::Lock => 0,
            Self::ReadWrite => Self::ALL,
            Self::Semaphore { capacity } => capacity,
        }
    }

    /// Each of its holders has a permit.
    pub(crate) fn has_permits(self) -> bool {
        self != Self::Lock
    }

    /// The kind of a row with this capacity. `None`: no such row is rowlock's.
    pub(crate) fn of(capacity: i64) -> Option<Self> {
        match u32::try_from(capacity).ok()? {
            0 => Some(Self::Lock),
            Self::ALL => Some(Self::ReadWrite),
            capacity @ 1..=Self::LARGEST => Some(Self::Semaphore { capacity }),
            _ => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock => f.write_str("a lock"),
            Self::ReadWrite => f.write_str("a read/write lock"),
            Self::Semaphore { capacity } => write!(f, "a semaphore of {capacity}"),
        }
    }
}

/// How a lock, a read/write lock or a semaphore is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// As a lock: no other holder.
    Lock,
    /// As a reader: other readers may hold it too.
    Read,
    /// As a writer: no other holder.
    Write,
    /// With a permit of a semaphore.
    #[non_exhaustive]
    Permit {
        /// This much of the capacity.
        weight: u32,
        /// The capacity of the semaphore when the permit was granted.
        capacity: u32,
    },
}

impl Mode {
    pub(crate) fn of(kind: Kind, weight: u32) -> Self {
        match kind {
            Kind::Lock => Self::Lock,
            Kind::ReadWrite if weight < Kind::ALL => Self::Read,
            Kind::ReadWrite => Self::Write,
            Kind::Semaphore { capacity } => Self::Permit { weight, capacity },
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock => f.write_str("lock"),
            Self::Read => f.write_str("read"),
            Self::Write => f.write_str("write"),
            Self::Permit { weight, capacity } => write!(f, "{weight} of {capacity} permits"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_its_capacity_and_no_other_number_is_one() {
        let largest = Kind::LARGEST;
        for kind in [
            Kind::Lock,
            Kind::Semaphore { capacity: 1 },
            Kind::Semaphore { capacity: largest },
            Kind::ReadWrite,
        ] {
            assert_eq!(Kind::of(kind.capacity().into()), Some(kind));
        }
        for damaged in [i64::MIN, -1, i64::from(Kind::ALL) + 1, i64::MAX] {
            assert_eq!(Kind::of(damaged), None);
        }
    }
}
