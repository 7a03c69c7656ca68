//! Waiting for the attempt of another caller.

use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use tokio::select;

use crate::model::{Fingerprint, Moment, Outcome, RecordKey};
use crate::runtime::Core;
use crate::runtime::base::backoff;
use crate::runtime::base::timer::sleep_until;
use crate::runtime::wait::single_flight::{Flight, OtherFlight};

/// How long the waiters for an attempt in this client trust that its end is told. Its lease may be lost meanwhile.
const LOOK_ANYWAY: Duration = Duration::from_secs(1);

/// After this time a caller that looked for others may not be polled any more.
const SILENT: Duration = Duration::from_secs(2);

/// The limit of tries, without a wait, for a key that changes between every look and its claim.
pub(super) const MAX_MISSES: u32 = 100;

pub(super) struct KeyWait {
    until: Moment,
    pauses: backon::ExponentialBackoff,
    /// This caller looks for the others.
    poller: Option<Flight>,
    misses: u32,
}

impl KeyWait {
    pub(super) fn new(wait: Duration) -> Self {
        Self {
            until: Moment::now() + wait,
            pauses: backoff::poll(),
            poller: None,
            misses: 0,
        }
    }

    /// Counts a claim that failed although the key was free. Returns whether to try again: at once the first hundred
    /// times, then after a pause, until the wait is over.
    pub(super) async fn missed(&mut self) -> bool {
        self.misses += 1;
        self.misses <= MAX_MISSES || self.again(None).await
    }

    /// Pauses, at most until the end of a lease. False: the wait is over.
    pub(super) async fn again(&mut self, remaining: Option<Duration>) -> bool {
        if self.is_over() {
            return false;
        }
        let pause = self.pauses.next().unwrap_or_default();
        let pause = remaining.map_or(pause, |remaining| pause.min(remaining));
        sleep_until((Moment::now() + pause).min(self.until)).await;
        true
    }

    pub(super) fn is_over(&self) -> bool {
        self.until.has_passed()
    }

    /// Pauses until this caller should look again at an attempt of another client that has `remaining` left.
    pub(super) async fn polls(&mut self, remaining: Duration) -> WaitOutcome {
        if self.again(Some(remaining)).await {
            WaitOutcome::LookAgain
        } else {
            WaitOutcome::TooLong
        }
    }

    /// Waits for another caller's attempt or transaction. If it runs in this client, its end wakes the caller. One
    /// waiter also looks at the record from time to time, for other clients and for leases that were lost; the others
    /// wait for what it finds.
    pub(super) async fn out(
        &mut self,
        core: &Core,
        (key, request): (&RecordKey, &Fingerprint),
        flight: Option<OtherFlight>,
        limit: Duration,
    ) -> WaitOutcome {
        if self.is_over() {
            return WaitOutcome::TooLong;
        }
        let last = (Moment::now() + limit).min(self.until);
        let has_flight = flight.is_some();
        let over = async |flight: Option<OtherFlight>| match flight {
            Some(flight) => flight.ended(request).await,
            None => pending().await,
        };
        let mut ended = pin!(over(flight));
        loop {
            let poller = self.poller_for(core, (key, request));
            let pause = if poller.is_some() {
                SILENT
            } else if has_flight {
                LOOK_ANYWAY
            } else {
                self.pauses.next().unwrap_or_default()
            };
            select! {
                biased;
                end = &mut ended => return end.map_or(WaitOutcome::LookAgain, WaitOutcome::Kept),
                _ = over(poller) => return WaitOutcome::LookAgain,
                () = sleep_until((Moment::now() + pause).min(last)) => {}
            }
            if self.poller.is_some() || last.has_passed() {
                return WaitOutcome::LookAgain;
            }
        }
    }

    /// Who looks for this caller. `None`: itself. (If the one that looked is not polled any more, another one looks.)
    fn poller_for(
        &mut self,
        core: &Core,
        (key, request): (&RecordKey, &Fingerprint),
    ) -> Option<OtherFlight> {
        if let Some(mine) = &self.poller {
            mine.note_polled();
            return None;
        }
        match core.pollers.take_silent(key, request, SILENT) {
            Ok(mine) => {
                self.poller = Some(mine);
                None
            }
            Err(other) => Some(other),
        }
    }

    /// This caller has found what there is: another one may look.
    pub(super) fn stop_polling(&mut self) {
        self.poller = None;
    }
}

/// How a wait ended.
pub(super) enum WaitOutcome {
    /// The caller waits no longer.
    TooLong,
    /// Look at the record.
    LookAgain,
    /// The attempt has kept this outcome.
    Kept(Outcome),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::upkeep::known_rows::tests::core;

    #[tokio::test]
    async fn there_are_pauses_between_two_looks_until_the_time_is_over() {
        let wait = Duration::from_millis(50);
        let began = Moment::now();
        let mut waiting = KeyWait::new(wait);
        let mut looks = 0;
        while waiting.again(None).await {
            looks += 1;
        }
        assert!(began.elapsed() >= wait);
        // 2 ms that double.
        assert!((1..=6).contains(&looks), "{looks}");
        assert!(!waiting.again(None).await);
    }

    #[tokio::test]
    async fn one_of_those_who_wait_for_a_key_looks_until_it_has_found_something() {
        let dir = tempfile::tempdir().unwrap();
        let core = core(&dir).await;
        let of = (
            &RecordKey::new("s", "k").unwrap(),
            &Fingerprint::of("request"),
        );
        let [mut one, mut other] = [(); 2].map(|()| KeyWait::new(Duration::from_secs(30)));
        assert!(one.poller_for(&core, of).is_none(), "it looks itself");
        assert!(
            other.poller_for(&core, of).is_some(),
            "it waits for the first"
        );
        one.stop_polling();
        assert!(
            other.poller_for(&core, of).is_none(),
            "it looks, as the first has stopped"
        );
        assert!(one.poller_for(&core, of).is_some());
    }
}
