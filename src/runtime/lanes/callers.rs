//! The callers of a large batch come back.
//!
//! A statement and its commit have a fixed cost. When a lane always sends what has arrived, then half of its callers are on their way
//! while the other half is in a statement, so each statement carries half of what it could. Therefore, after a large batch, the lane
//! waits until most of the callers have sent their next jobs, but no longer than the batch took, and at most 5 ms. The server works for
//! other lanes meanwhile.
//!
//! Callers that ask once, or that hold their locks for long, do not come back soon. So after a wait in vain the lane does not wait
//! for a number of batches.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::post::Home;

/// The longest wait. Callers that come back at once need less, however slow the server is.
const LONGEST: Duration = Duration::from_millis(5);

/// How many batches a lane does not wait after a wait in vain.
const RESTS: u32 = 16;

/// What a lane and its callers tell each other, beside the jobs.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    /// The number of jobs that the lane waits for.
    missing: AtomicI64,
    are_back: Notify,
    /// Where they wait for their answers.
    pub(super) home: Home,
}

impl Callers {
    /// A caller's job is in the lane's queue.
    pub(crate) fn one_came(&self) {
        self.home.note();
        // The lane seldom waits, and reading costs less than writing. (Below zero, several came at the same time.)
        if self.missing.load(Ordering::Relaxed) > 0
            && self.missing.fetch_sub(1, Ordering::Relaxed) == 1
        {
            self.are_back.notify_one();
        }
    }

    /// Resolves when so many jobs have come. One notification for all of them: each would cost a switch of threads.
    async fn come(&self, missing: i64) {
        self.missing.store(missing, Ordering::Relaxed);
        // A notification may be left from an earlier wait.
        while self.missing.load(Ordering::Relaxed) > 0 {
            self.are_back.notified().await;
        }
    }
}

/// A lane's decision to wait for its callers.
#[derive(Debug)]
pub(super) struct Return {
    /// A batch is large from so many jobs on.
    large: usize,
    /// The lane does not wait for so many large batches.
    rests: u32,
}

impl Return {
    pub(super) fn from(large: usize) -> Self {
        Self { large, rests: 0 }
    }

    pub(super) fn never() -> Self {
        Self::from(usize::MAX)
    }

    /// Waits for the callers of a batch, after it was answered. `here`: so many jobs have arrived already.
    pub(super) async fn wait(
        &mut self,
        callers: &Callers,
        batch: usize,
        here: usize,
        took: Duration,
    ) {
        let Some(missing) = self.missing(batch, here) else {
            return;
        };
        let come = timeout(took.min(LONGEST), callers.come(missing)).await;
        callers.missing.store(0, Ordering::Relaxed);
        if come.is_err() {
            self.rests = RESTS;
        }
    }

    /// How many more jobs have to come, if it is worth a wait.
    fn missing(&mut self, batch: usize, here: usize) -> Option<i64> {
        if batch < self.large {
            return None;
        }
        if self.rests > 0 {
            self.rests -= 1;
            return None;
        }
        // The last ones may be late.
        let most = batch - batch / 10;
        let missing = i64::try_from(most.saturating_sub(here)).ok();
        missing.filter(|missing| *missing > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn a_wait_ends_when_the_last_one_has_come() {
        let callers = Callers::default();
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..2 {
            // The second time, a notification is left from the first.
            let mut come = pin!(callers.come(2));
            assert!(come.as_mut().poll(&mut cx).is_pending());
            callers.one_came();
            assert!(come.as_mut().poll(&mut cx).is_pending());
            callers.one_came();
            assert!(come.as_mut().poll(&mut cx).is_ready());
            callers.one_came();
            callers.are_back.notify_one();
        }
    }

    #[test]
    fn only_the_callers_of_a_large_batch_are_waited_for() {
        let mut back = Return::from(32);
        assert_eq!(back.missing(31, 0), None);
        assert_eq!(back.missing(40, 6), Some(30));
        assert_eq!(back.missing(40, 36), None);
        assert_eq!(back.missing(40, 100), None);
    }

    #[tokio::test]
    async fn after_a_wait_in_vain_the_lane_does_not_wait_for_some_batches() {
        let mut back = Return::from(32);
        back.wait(&Callers::default(), 40, 0, Duration::ZERO).await;
        for _ in 0..RESTS {
            assert_eq!(back.missing(40, 0), None);
        }
        assert_eq!(back.missing(40, 0), Some(36));
    }
}
