//! How many operations on locks fit into a request that is sent in one piece.
//!
//! TLS cuts a request into records of 16 KiB (RFC 8446, section 5.1). sqlx 0.9.0 writes each record by itself, to a
//! socket without `TCP_NODELAY` (its issue 4335; fixed there, not yet released). The last record then waits until the
//! server acknowledges the one before, which Linux delays by 40 ms. A statement for 256 leases took 54 ms on an idle
//! server.

/// The most bytes of one record.
pub(crate) const RECORD: usize = 16 * 1024;

/// The room in a request. The figures are those of an engine's largest statement, rounded up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestLimit {
    /// The bytes for the operations.
    room: usize,
    /// The bytes for each operation, without its name,
    each: usize,
    /// and the bytes for each byte of its name.
    name_byte: usize,
}

impl Default for RequestLimit {
    fn default() -> Self {
        Self::NONE
    }
}

impl RequestLimit {
    /// For engines to which nothing is sent.
    pub(crate) const NONE: Self = Self {
        room: usize::MAX,
        each: 0,
        name_byte: 0,
    };

    /// `text` is the size of the statement without its operations.
    pub(crate) const fn of(text: usize, each: usize, name_byte: usize) -> Self {
        Self {
            room: RECORD - text,
            each,
            name_byte,
        }
    }

    /// Whether an operation fits after `used` bytes of others; adds it to `used`. The first operation always fits.
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
