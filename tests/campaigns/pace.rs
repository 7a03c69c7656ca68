//! When the next process is killed or paused.

use std::ops::Range;
use std::time::{Duration, Instant};

use rand::Rng;

/// The share of the strikes that wait for no grant: two faults may hit one hand-over.
const ANYWAY: f64 = 0.3;

/// The pace of the strikes. Most of them wait for grants since the last one: on a slow machine, processes that are
/// killed before they have begun prove nothing.
#[derive(Debug)]
pub(crate) struct Pace {
    /// The pause between two strikes, in milliseconds.
    pauses: Range<u64>,
    /// For so many grants a strike waits.
    least: usize,
    due: Instant,
    anyway: bool,
    granted: usize,
}

impl Pace {
    pub(crate) fn new(pauses: Range<u64>, least: usize) -> Self {
        let mut pace = Self {
            pauses,
            least,
            due: Instant::now(),
            anyway: false,
            granted: 0,
        };
        pace.plan(0);
        pace
    }

    fn plan(&mut self, granted: usize) {
        let pause = rand::rng().random_range(self.pauses.clone());
        self.due = Instant::now() + Duration::from_millis(pause);
        self.anyway = rand::rng().random_bool(ANYWAY);
        self.granted = granted;
    }

    /// Whether to strike now, after so many grants in all.
    pub(crate) fn is_due(&mut self, granted: usize) -> bool {
        let may = self.anyway || granted >= self.granted + self.least;
        let is_due = may && self.due <= Instant::now();
        if is_due {
            self.plan(granted);
        }
        is_due
    }
}
