//! Turns that were lost: each had its window.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::store::verbs::queue::WINDOW;

#[derive(Default)]
pub(crate) struct Late(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    /// The longest time that a verb took which may pass a name on.
    slowest: Duration,
    /// For each turn that was lost: how long before its end the waiter had last looked, and had to wait.
    lost: Vec<Duration>,
}

impl Late {
    /// Runs a verb that may pass a name on.
    pub(crate) async fn passes_on<T>(&self, verb: impl Future<Output = T>) -> T {
        let began = Instant::now();
        let answer = verb.await;
        let mut seen = self.seen();
        seen.slowest = seen.slowest.max(began.elapsed());
        answer
    }

    /// A turn was lost whose waiter had last looked at `waited`, and had to wait.
    pub(crate) fn lost(&self, waited: Instant) {
        self.seen().lost.push(waited.elapsed());
    }

    /// Every turn that was lost had its window. The verb that passes a name on reads the clock before its commit: the
    /// window begins that much earlier than the waiter can see.
    pub(crate) fn check(&self) {
        let seen = self.seen();
        for lost in &seen.lost {
            assert!(
                *lost + seen.slowest > WINDOW,
                "a turn was lost after {lost:?}; no verb took longer than {:?}",
                seen.slowest
            );
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap()
    }
}
