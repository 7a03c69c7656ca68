//! How long the clients of a stress case go on.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use rowlock_test::patience;

use super::stress::PLACES;
use crate::store::tests::late::Late;

const TIME: Duration = Duration::from_secs(3);

/// The clients go on until each name was passed on to a waiter of theirs, which takes longer on a busy machine.
pub(super) struct Pace {
    end: Instant,
    /// How often each name was passed on.
    turns: [AtomicI64; PLACES.len()],
    pub(super) late: Late,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self {
            end: Instant::now() + TIME,
            turns: Default::default(),
            late: Late::default(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        let had_a_turn = |turns: &AtomicI64| turns.load(Ordering::SeqCst) > 0;
        let now = Instant::now();
        now >= self.end + patience() || now >= self.end && self.turns.iter().all(had_a_turn)
    }

    pub(super) fn had_a_turn(&self, place: usize) {
        self.turns[place].fetch_add(1, Ordering::SeqCst);
    }
}
