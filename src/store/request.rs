//! How many operations on locks fit into a request that leaves in one piece.
//!
//! TLS cuts what is sent into records of 16 KiB (RFC 8446, section 5.1). sqlx 0.9.0 writes each of them by itself, to a
//! socket without `TCP_NODELAY` (its issue 4335; mended there, and not yet released): the last record then waits until the
//! server acknowledges the one before, which Linux puts off for 40 ms. A statement for 256 leases took 54 ms on a server
//! that was idle.

/// The most bytes of one record.
const RECORD: usize = 16 * 1024;

/// What a request may hold. The figures are of the largest statement of a brand, rounded up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestLimit {
    /// The bytes for the operations.
    room: usize,
    /// So many are needed for each operation,
    each: usize,
    /// and so many for each byte of its name.
    name_byte: usize,
}

impl Default for RequestLimit {
    fn default() -> Self {
        Self::NONE
    }
}

impl RequestLimit {
    /// Where nothing is sent.
    pub(crate) const NONE: Self = Self {
        room: usize::MAX,
        each: 0,
        name_byte: 0,
    };

    /// `text` is what the statement itself takes.
    pub(crate) const fn of(text: usize, each: usize, name_byte: usize) -> Self {
        Self {
            room: RECORD - text,
            each,
            name_byte,
        }
    }

    /// Whether an operation fits behind `used` bytes of others, which it is added to. The first one always does.
    pub(crate) fn admits(&self, used: &mut usize, name: usize, rest: usize) -> bool {
        let needed = *used + self.each + self.name_byte * name + rest;
        let fits = *used == 0 || needed <= self.room;
        if fits {
            *used = needed;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_filled_up_to_its_room_and_never_empty() {
        let limit = RequestLimit::of(RECORD - 100, 10, 4);
        let mut used = 0;
        assert!(limit.admits(&mut used, 5, 10));
        assert_eq!(used, 40);
        assert!(!limit.admits(&mut used, 11, 7));
        assert_eq!(used, 40);
        assert!(limit.admits(&mut used, 11, 6));
        assert_eq!(used, 100);
        let mut used = 0;
        assert!(limit.admits(&mut used, 255, 0), "alone");
        assert!(!limit.admits(&mut used, 1, 0));
    }
}
