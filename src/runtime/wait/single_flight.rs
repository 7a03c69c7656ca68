//! Whose turn it is with a key, among the callers of this client. Those who wait for a turn learn of its end at once,
//! and of the outcome that it has kept, without a statement.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::model::{Fingerprint, Moment, Outcome, RecordKey};

/// The turns that are taken now.
#[derive(Debug, Default)]
pub(crate) struct KeyTurns(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    /// The number of the last turn.
    last: u64,
    keys: HashMap<RecordKey, OtherTurn>,
}

/// How a turn ended.
#[derive(Debug, Clone)]
enum TurnEnd {
    Kept(Outcome),
    Untold,
}

/// The turn of a caller. Dropping it lets the next one try.
#[derive(Debug)]
pub(crate) struct KeyTurn {
    turns: Arc<KeyTurns>,
    key: RecordKey,
    number: u64,
    end: watch::Sender<Option<TurnEnd>>,
}

/// The turn of another caller.
#[derive(Debug, Clone)]
pub(crate) struct OtherTurn {
    number: u64,
    request: Fingerprint,
    /// Its attempt is in the database, where others can see it.
    is_claimed: bool,
    /// When its caller was heard of.
    heard: Moment,
    end: watch::Receiver<Option<TurnEnd>>,
}

impl KeyTurns {
    /// Takes the turn for `request`. A caller that has looked at the record since a turn was [claimed](Self::claimed),
    /// and has found that the key can be claimed, passes that turn over: its lease is over.
    pub(crate) fn take(
        self: &Arc<Self>,
        key: &RecordKey,
        request: &Fingerprint,
        over: Option<u64>,
    ) -> Result<KeyTurn, OtherTurn> {
        let mut taken = self.taken();
        if let Some(other) = taken.keys.get(key)
            && over != Some(other.number)
        {
            return Err(other.clone());
        }
        taken.last += 1;
        let number = taken.last;
        let (end, heard) = watch::channel(None);
        let turn = OtherTurn {
            number,
            request: *request,
            is_claimed: false,
            heard: Moment::now(),
            end: heard,
        };
        taken.keys.insert(key.clone(), turn);
        Ok(KeyTurn {
            turns: Arc::clone(self),
            key: key.clone(),
            number,
            end,
        })
    }

    /// Takes the turn of a caller that was not heard of for so long: it may not be polled any more.
    pub(crate) fn take_silent(
        self: &Arc<Self>,
        key: &RecordKey,
        request: &Fingerprint,
        silent: Duration,
    ) -> Result<KeyTurn, OtherTurn> {
        let other = self.other(key);
        let is_silent = |other: &OtherTurn| other.heard.elapsed() >= silent;
        let over = other.filter(is_silent).map(|other| other.number);
        self.take(key, request, over)
    }

    /// The turn that is taken now.
    pub(crate) fn other(&self, key: &RecordKey) -> Option<OtherTurn> {
        self.taken().keys.get(key).cloned()
    }

    /// The number of the turn whose attempt is in the database.
    pub(crate) fn claimed(&self, key: &RecordKey) -> Option<u64> {
        let taken = self.taken();
        let turn = taken.keys.get(key).filter(|turn| turn.is_claimed);
        turn.map(|turn| turn.number)
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeyTurn {
    /// Its attempt is in the database.
    pub(crate) fn note_claim(&self) {
        let mut taken = self.turns.taken();
        if let Some(turn) = taken.keys.get_mut(&self.key)
            && turn.number == self.number
        {
            turn.is_claimed = true;
        }
    }

    /// Its caller is polled.
    pub(crate) fn note_polled(&self) {
        let mut taken = self.turns.taken();
        if let Some(turn) = taken.keys.get_mut(&self.key)
            && turn.number == self.number
        {
            turn.heard = Moment::now();
        }
    }

    /// Ends it: this outcome is kept, and its commit is known.
    pub(crate) fn kept(&self, outcome: &Outcome) {
        self.end(TurnEnd::Kept(outcome.clone()));
    }

    /// Ends it: the record tells what has become of the key.
    pub(crate) fn end_untold(&self) {
        self.end(TurnEnd::Untold);
    }

    /// The first end counts.
    fn end(&self, end: TurnEnd) {
        {
            let mut taken = self.turns.taken();
            let turn = taken.keys.get(&self.key);
            if turn.is_some_and(|turn| turn.number == self.number) {
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

impl Drop for KeyTurn {
    fn drop(&mut self) {
        self.end_untold();
    }
}

impl OtherTurn {
    pub(crate) fn is_of(&self, request: &Fingerprint) -> bool {
        self.request == *request
    }

    /// Waits for its end. Returns the outcome that it has kept, for the same request.
    pub(crate) async fn ended(mut self, request: &Fingerprint) -> Option<Outcome> {
        let end = self.end.wait_for(Option::is_some).await;
        match end.as_deref() {
            Ok(Some(TurnEnd::Kept(outcome))) if self.request == *request => Some(outcome.clone()),
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

    fn take(turns: &Arc<KeyTurns>, of: &str) -> Result<KeyTurn, OtherTurn> {
        turns.take(&key(of), &Fingerprint::of("request"), None)
    }

    #[tokio::test]
    async fn a_key_is_one_callers_at_a_time() {
        let turns = Arc::new(KeyTurns::default());
        let turn = take(&turns, "a").unwrap();
        let other = take(&turns, "b").unwrap();
        let taken = take(&turns, "a").unwrap_err();
        drop(other);
        let waits = tokio::spawn(async move { taken.ended(&Fingerprint::of("request")).await });
        assert!(take(&turns, "a").is_err());
        drop(turn);
        assert_eq!(waits.await.unwrap(), None);
        let turn = take(&turns, "a").unwrap();
        assert_eq!(turns.taken().keys.len(), 1);
        drop(turn);
        assert!(turns.taken().keys.is_empty());
    }

    #[tokio::test]
    async fn the_outcome_is_told_to_the_same_request_only_and_the_first_end_counts() {
        let turns = Arc::new(KeyTurns::default());
        let turn = take(&turns, "a").unwrap();
        let [same, other] = [(); 2].map(|()| turns.other(&key("a")).unwrap());
        turn.kept(&Outcome::empty());
        assert!(turns.other(&key("a")).is_none());
        drop(turn);
        let outcome = same.ended(&Fingerprint::of("request")).await;
        assert_eq!(outcome, Some(Outcome::empty()));
        assert_eq!(other.ended(&Fingerprint::of("another")).await, None);
    }

    #[test]
    fn a_turn_is_taken_from_a_caller_that_is_silent() {
        let turns = Arc::new(KeyTurns::default());
        let request = Fingerprint::of("request");
        let silent = |of: Duration| turns.take_silent(&key("a"), &request, of);
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
    fn a_turn_is_passed_over_only_after_a_look_that_saw_its_attempt_gone() {
        let turns = Arc::new(KeyTurns::default());
        let first = take(&turns, "a").unwrap();
        assert_eq!(turns.claimed(&key("a")), None);
        first.note_claim();
        let over = turns.claimed(&key("a"));
        let request = Fingerprint::of("request");
        let second = turns.take(&key("a"), &request, over).unwrap();
        assert!(turns.take(&key("a"), &request, over).is_err());
        first.note_claim();
        drop(first);
        assert_eq!(turns.claimed(&key("a")), None);
        assert!(take(&turns, "a").is_err(), "the second goes on");
        drop(second);
    }
}
