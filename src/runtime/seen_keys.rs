//! Recently seen keys: a hit means that a record probably exists. Also the keys that transactions of this client try now.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::model::RecordKey;

/// The number of keys in a generation. The set keeps two generations.
const GENERATION: usize = 50_000;

/// Digests of recently seen keys. A key that was dropped, or whose digest equals another one's, costs one statement.
#[derive(Debug, Default)]
pub(crate) struct SeenKeys {
    hasher: RandomState,
    sets: Mutex<[HashSet<u64>; 2]>,
}

impl SeenKeys {
    pub(crate) fn contains(&self, key: &RecordKey) -> bool {
        let digest = self.hasher.hash_one(key);
        self.sets().iter().any(|set| set.contains(&digest))
    }

    pub(crate) fn insert(&self, key: &RecordKey) {
        let digest = self.hasher.hash_one(key);
        let mut sets = self.sets();
        if sets[0].len() >= GENERATION {
            sets[1] = std::mem::take(&mut sets[0]);
        }
        sets[0].insert(digest);
    }

    fn sets(&self) -> MutexGuard<'_, [HashSet<u64>; 2]> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The keys that transactions of this client try now, one transaction per key. A duplicate learns of it, and of its end, without
/// a connection.
#[derive(Debug, Default)]
pub(crate) struct RunningKeys(Mutex<HashMap<RecordKey, watch::Receiver<()>>>);

/// The right to try a key in a transaction. Dropping it lets the next one try.
#[derive(Debug)]
pub(crate) struct KeyTurn {
    running: Arc<RunningKeys>,
    key: RecordKey,
    /// Dropping it wakes the waiting duplicates.
    _end: watch::Sender<()>,
}

/// The turn of another call on the same key.
#[derive(Debug)]
pub(crate) struct OtherTurn(watch::Receiver<()>);

impl RunningKeys {
    pub(crate) fn take_turn(self: &Arc<Self>, key: &RecordKey) -> Result<KeyTurn, OtherTurn> {
        let mut keys = self.keys();
        if let Some(end) = keys.get(key) {
            return Err(OtherTurn(end.clone()));
        }
        let (end, heard) = watch::channel(());
        keys.insert(key.clone(), heard);
        Ok(KeyTurn {
            running: Arc::clone(self),
            key: key.clone(),
            _end: end,
        })
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<RecordKey, watch::Receiver<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for KeyTurn {
    fn drop(&mut self) {
        self.running.keys().remove(&self.key);
    }
}

impl OtherTurn {
    /// Waits for the end of that turn.
    pub(crate) async fn over(&self) {
        let mut end = self.0.clone();
        // Nothing is ever sent.
        while end.changed().await.is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_keys_are_known_and_old_ones_are_dropped() {
        let seen = SeenKeys::default();
        let key = |n: usize| RecordKey::new("s", n.to_string()).unwrap();
        assert!(!seen.contains(&key(0)));
        for n in 0..3 * GENERATION {
            seen.insert(&key(n));
        }
        assert!(seen.contains(&key(3 * GENERATION - 1)));
        assert!(seen.contains(&key(2 * GENERATION)));
        assert!(!seen.contains(&key(0)));
    }

    #[tokio::test]
    async fn a_key_is_one_transactions_at_a_time() {
        let running = Arc::new(RunningKeys::default());
        let key = |key: &str| RecordKey::new("s", key).unwrap();
        let turn = running.take_turn(&key("a")).unwrap();
        let other = running.take_turn(&key("b")).unwrap();
        let taken = running.take_turn(&key("a")).unwrap_err();
        drop(other);
        let waits = tokio::spawn(async move { taken.over().await });
        assert!(running.take_turn(&key("a")).is_err());
        drop(turn);
        waits.await.unwrap();
        let turn = running.take_turn(&key("a")).unwrap();
        assert_eq!(running.keys().len(), 1);
        drop(turn);
        assert!(running.keys().is_empty());
    }
}
