//! Waiting for the attempt of another caller.

use std::time::Duration;

use tokio::select;

use crate::model::Moment;
use crate::runtime::backoff;
use crate::runtime::seen_keys::OtherTurn;
use crate::runtime::timer::sleep_until;

pub(super) struct Waiting {
    until: Moment,
    pauses: backon::ExponentialBackoff,
}

impl Waiting {
    pub(super) fn new(wait: Duration) -> Self {
        Self {
            until: Moment::now() + wait,
            pauses: backoff::poll(),
        }
    }

    /// Pauses, at most until the end of a lease. False: the wait is over.
    pub(super) async fn again(&mut self, remaining: Option<Duration>) -> bool {
        if self.until.has_passed() {
            return false;
        }
        let pause = self.pauses.next().unwrap_or_default();
        let pause = remaining.map_or(pause, |remaining| pause.min(remaining));
        sleep_until((Moment::now() + pause).min(self.until)).await;
        true
    }

    /// Waits for the end of a transaction of this client. False: the wait is over first.
    pub(super) async fn out(&self, taken: &OtherTurn) -> bool {
        if self.until.has_passed() {
            return false;
        }
        select! {
            () = taken.over() => true,
            () = sleep_until(self.until) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn there_are_pauses_between_two_looks_until_the_time_is_over() {
        let wait = Duration::from_millis(50);
        let began = Moment::now();
        let mut waiting = Waiting::new(wait);
        let mut looks = 0;
        while waiting.again(None).await {
            looks += 1;
        }
        assert!(began.elapsed() >= wait);
        // 2 ms that double.
        assert!((1..=6).contains(&looks), "{looks}");
        assert!(!waiting.again(None).await);
    }
}
