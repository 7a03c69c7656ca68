//! Single flight: of the callers of this client, one at a time tries a key. Those who wait for a flight learn of its
//! end at once, and of the outcome that it has kept, without a statement.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::model::{Fingerprint, Moment, Outcome, RecordKey};

/// The flights that are taken now.
#[derive(Debug, Default)]
pub(crate) struct SingleFlight(Mutex<Flights>);

#[derive(Debug, Default)]
struct Flights {
    /// The number of the last flight.
    last: u64,
    keys: HashMap<RecordKey, OtherFlight>,
}

/// How a flight ended.
#[derive(Debug, Clone)]
enum FlightEnd {
    Kept(Outcome),
    Untold,
}

/// The flight of a caller. Dropping it lets the next one try.
#[derive(Debug)]
pub(crate) struct Flight {
    flights: Arc<SingleFlight>,
    key: RecordKey,
    number: u64,
    end: watch::Sender<Option<FlightEnd>>,
}

/// The flight of another caller.
#[derive(Debug, Clone)]
pub(crate) struct OtherFlight {
    number: u64,
    request: Fingerprint,
    /// Its attempt is in the database, where others can see it.
    is_claimed: bool,
    /// When its caller was heard of.
    heard: Moment,
    end: watch::Receiver<Option<FlightEnd>>,
}

impl SingleFlight {
    /// Begins a flight for `request`, unless another one is under way. `over`: the number of a flight that the caller
    /// has found abandoned: its attempt was in the database, and a later look found the key free.
    pub(crate) fn take(
        self: &Arc<Self>,
        key: &RecordKey,
        request: &Fingerprint,
        over: Option<u64>,
    ) -> Result<Flight, OtherFlight> {
        let mut taken = self.0.lock();
        if let Some(other) = taken.keys.get(key)
            && over != Some(other.number)
        {
            return Err(other.clone());
        }
        taken.last += 1;
        let number = taken.last;
        let (end, heard) = watch::channel(None);
        let flight = OtherFlight {
            number,
            request: *request,
            is_claimed: false,
            heard: Moment::now(),
            end: heard,
        };
        taken.keys.insert(key.clone(), flight);
        Ok(Flight {
            flights: Arc::clone(self),
            key: key.clone(),
            number,
            end,
        })
    }

    /// Takes the flight of a caller that was not heard of for so long: it may not be polled any more.
    pub(crate) fn take_silent(
        self: &Arc<Self>,
        key: &RecordKey,
        request: &Fingerprint,
        silent: Duration,
    ) -> Result<Flight, OtherFlight> {
        let other = self.other(key);
        let is_silent = |other: &OtherFlight| other.heard.elapsed() >= silent;
        let over = other.filter(is_silent).map(|other| other.number);
        self.take(key, request, over)
    }

    /// The flight that is taken now.
    pub(crate) fn other(&self, key: &RecordKey) -> Option<OtherFlight> {
        self.0.lock().keys.get(key).cloned()
    }

    /// The number of the flight whose attempt is in the database.
    pub(crate) fn claimed(&self, key: &RecordKey) -> Option<u64> {
        let taken = self.0.lock();
        let flight = taken.keys.get(key).filter(|flight| flight.is_claimed);
        flight.map(|flight| flight.number)
    }
}

impl Flight {
    /// Its attempt is in the database.
    pub(crate) fn note_claim(&self) {
        let mut taken = self.flights.0.lock();
        if let Some(flight) = taken.keys.get_mut(&self.key)
            && flight.number == self.number
        {
            flight.is_claimed = true;
        }
    }

    /// Its caller is polled.
    pub(crate) fn note_polled(&self) {
        let mut taken = self.flights.0.lock();
        if let Some(flight) = taken.keys.get_mut(&self.key)
            && flight.number == self.number
        {
            flight.heard = Moment::now();
        }
    }

    /// Ends it: this outcome is kept, and its commit is known.
    pub(crate) fn kept(&self, outcome: &Outcome) {
        self.end(FlightEnd::Kept(outcome.clone()));
    }

    /// Ends it: the record tells what has become of the key.
    pub(crate) fn end_silently(&self) {
        self.end(FlightEnd::Untold);
    }

    /// The first end counts.
    fn end(&self, end: FlightEnd) {
        {
            let mut taken = self.flights.0.lock();
            let flight = taken.keys.get(&self.key);
            if flight.is_some_and(|flight| flight.number == self.number) {
                taken.keys.remove(&self.key);
            }
        }
        self.end.send_if_modified(|ended| {
            let is_first = ended.is_none();
            if is_first {
                *ended = Some(end);
            }
            is_first
        });
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.end_silently();
    }
}

impl OtherFlight {
    pub(crate) fn is_of(&self, request: &Fingerprint) -> bool {
        self.request == *request
    }

    /// Waits for its end. Returns the outcome that it has kept, for the same request.
    pub(crate) async fn ended(mut self, request: &Fingerprint) -> Option<Outcome> {
        let end = self.end.wait_for(Option::is_some).await;
        match end.as_deref() {
            Ok(Some(FlightEnd::Kept(outcome))) if self.request == *request => Some(outcome.clone()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(key: &str) -> RecordKey {
        RecordKey::new("s", key).unwrap()
    }

    fn take(flights: &Arc<SingleFlight>, of: &str) -> Result<Flight, OtherFlight> {
        flights.take(&key(of), &Fingerprint::of("request"), None)
    }

    #[tokio::test]
    async fn a_key_is_one_callers_at_a_time() {
        let flights = Arc::new(SingleFlight::default());
        let flight = take(&flights, "a").unwrap();
        let other = take(&flights, "b").unwrap();
        let taken = take(&flights, "a").unwrap_err();
        drop(other);
        let waits = tokio::spawn(async move { taken.ended(&Fingerprint::of("request")).await });
        assert!(take(&flights, "a").is_err());
        drop(flight);
        assert_eq!(waits.await.unwrap(), None);
        let flight = take(&flights, "a").unwrap();
        assert_eq!(flights.0.lock().keys.len(), 1);
        drop(flight);
        assert!(flights.0.lock().keys.is_empty());
    }

    #[tokio::test]
    async fn the_outcome_is_told_to_the_same_request_only_and_the_first_end_counts() {
        let flights = Arc::new(SingleFlight::default());
        let flight = take(&flights, "a").unwrap();
        let [same, other] = [(); 2].map(|()| flights.other(&key("a")).unwrap());
        flight.kept(&Outcome::empty());
        assert!(flights.other(&key("a")).is_none());
        drop(flight);
        let outcome = same.ended(&Fingerprint::of("request")).await;
        assert_eq!(outcome, Some(Outcome::empty()));
        assert_eq!(other.ended(&Fingerprint::of("another")).await, None);
    }

    #[test]
    fn a_flight_is_taken_from_a_caller_that_is_silent() {
        let flights = Arc::new(SingleFlight::default());
        let request = Fingerprint::of("request");
        let silent = |of: Duration| flights.take_silent(&key("a"), &request, of);
        let first = silent(Duration::ZERO).unwrap();
        first.note_polled();
        assert!(silent(Duration::from_mins(1)).is_err());
        let second = silent(Duration::ZERO).unwrap();
        drop(first);
        assert!(
            silent(Duration::from_mins(1)).is_err(),
            "the second goes on"
        );
        drop(second);
        silent(Duration::from_mins(1)).unwrap();
    }

    #[test]
    fn a_flight_is_passed_over_only_after_a_look_that_saw_its_attempt_gone() {
        let flights = Arc::new(SingleFlight::default());
        let first = take(&flights, "a").unwrap();
        assert_eq!(flights.claimed(&key("a")), None);
        first.note_claim();
        let over = flights.claimed(&key("a"));
        let request = Fingerprint::of("request");
        let second = flights.take(&key("a"), &request, over).unwrap();
        assert!(flights.take(&key("a"), &request, over).is_err());
        first.note_claim();
        drop(first);
        assert_eq!(flights.claimed(&key("a")), None);
        assert!(take(&flights, "a").is_err(), "the second goes on");
        drop(second);
    }
}
