//! How many renewals go into a statement: as many as the database handles well within their time.

use std::time::Duration;

/// The most renewals in one statement.
pub(super) const CHUNK: usize = 256;
/// The fewest renewals in a statement, where more are due: the round trip is most of its time.
const MIN_CHUNK: usize = 16;

#[derive(Debug)]
pub(super) struct Pace {
    size: usize,
    /// How long a statement takes: the slowest of the recent ones, with a weight that decays.
    took: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            size: CHUNK,
            took: Duration::ZERO,
        }
    }
}

impl Pace {
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// How much of its time a lease needs for a renewal sent now to be worth while.
    pub(super) fn needed(&self) -> Duration {
        self.took * 2
    }

    /// A bound that a statement as slow as the recent ones keeps.
    pub(super) fn slow(&self) -> Duration {
        self.took * 3 / 2
    }

    /// A statement for `count` renewals, bounded by `bound`, took `took`. (A statement that was cut off took all of
    /// its bound.)
    pub(super) fn took(&mut self, took: Duration, bound: Duration, count: usize) {
        self.took = took.max(self.took * 3 / 4);
        // A small statement is not slow because of its size.
        if took > bound / 2 && count > MIN_CHUNK {
            self.size = (count.min(self.size) / 2).max(MIN_CHUNK);
        } else if took < bound / 4 && count >= self.size {
            self.size = (self.size * 5 / 4).min(CHUNK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Duration = Duration::from_millis(100);

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn statements_that_take_half_their_time_become_smaller_down_to_a_limit() {
        let mut pace = Pace::default();
        pace.took(millis(50), BOUND, 256);
        assert_eq!(pace.size(), 256);
        pace.took(millis(51), BOUND, 256);
        assert_eq!(pace.size(), 128);
        pace.took(BOUND, BOUND, 16);
        assert_eq!(pace.size(), 128);
        pace.took(BOUND, BOUND, 20);
        assert_eq!(pace.size(), 16);
        pace.took(BOUND, BOUND, 300);
        assert_eq!(pace.size(), 16);
    }

    #[test]
    fn fast_and_full_statements_become_larger_up_to_a_limit() {
        let mut pace = Pace::default();
        pace.took(BOUND, BOUND, 256);
        assert_eq!(pace.size(), 128);
        pace.took(millis(25), BOUND, 128);
        pace.took(millis(24), BOUND, 127);
        assert_eq!(pace.size(), 128);
        pace.took(millis(24), BOUND, 128);
        assert_eq!(pace.size(), 160);
        for _ in 0..9 {
            pace.took(millis(1), BOUND, 256);
        }
        assert_eq!(pace.size(), 256);
    }

    #[test]
    fn twice_the_time_of_a_slow_statement_is_needed_for_a_while() {
        let mut pace = Pace::default();
        assert_eq!(pace.needed(), Duration::ZERO);
        pace.took(millis(40), BOUND, 1);
        assert_eq!(pace.needed(), millis(80));
        pace.took(millis(4), BOUND, 1);
        assert_eq!(pace.needed(), millis(60));
        pace.took(millis(35), BOUND, 1);
        assert_eq!(pace.needed(), millis(70));
    }
}
