//! How long attempts take. The client of a duplicate is asked to wait this long (Retry-After).

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;

/// The number of attempts that count: enough to ignore one slow attempt, few enough to follow a change.
const REMEMBERED: usize = 64;

/// The times of the last attempts that this process ran for one layer.
#[derive(Debug, Default)]
pub(crate) struct Pace(Mutex<VecDeque<Duration>>);

impl Pace {
    pub(crate) fn add(&self, took: Duration) {
        let mut last = self.0.lock();
        if last.len() == REMEMBERED {
            last.pop_front();
        }
        last.push_back(took);
    }

    /// The time that nine of ten attempts did not exceed. `None`: no attempt has ended yet.
    pub(crate) fn usual(&self) -> Option<Duration> {
        let mut sorted: Vec<Duration> = self.0.lock().iter().copied().collect();
        sorted.sort_unstable();
        let index = (sorted.len() * 9).div_ceil(10).checked_sub(1)?;
        sorted.get(index).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(millis: impl IntoIterator<Item = u64>) -> Option<Duration> {
        let pace = Pace::default();
        for millis in millis {
            pace.add(Duration::from_millis(millis));
        }
        pace.usual()
    }

    #[test]
    fn nine_of_ten_attempts_are_over_in_the_usual_time() {
        assert_eq!(pace([]), None);
        assert_eq!(pace([7]), Some(Duration::from_millis(7)));
        assert_eq!(pace([20, 10]), Some(Duration::from_millis(20)));
        assert_eq!(pace(1..=10), Some(Duration::from_millis(9)));
        assert_eq!(pace((1..=10).rev()), Some(Duration::from_millis(9)));
    }

    #[test]
    fn the_usual_time_follows_the_last_attempts() {
        let slow_then_fast = [10_000; REMEMBERED].into_iter().chain([1; REMEMBERED]);
        assert_eq!(pace(slow_then_fast), Some(Duration::from_millis(1)));
    }
}
