//! Waiting for a lock that has no queue: ask again after a random pause.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(32);

/// The pauses of one wait.
#[derive(Debug)]
pub(crate) struct Patience {
    longest: Duration,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Self { longest: FIRST }
    }

    /// Pauses for a random time: at most 1 ms first, then at most twice as long each time, up to 32 ms.
    pub(crate) async fn pause(&mut self) {
        tokio::time::sleep(self.longest.mul_f64(fastrand::f64())).await;
        self.longest = (self.longest * 2).min(LONGEST);
    }
}
