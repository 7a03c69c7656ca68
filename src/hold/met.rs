//! The keys of records that this client has met: whose records are likely to be there.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::idempotency::RecordKey;

/// The keys of a generation. Two are kept.
const GENERATION: usize = 50_000;

/// Digests of keys, the newest ones. What is forgotten, or taken for another one, costs a statement.
#[derive(Debug, Default)]
pub(crate) struct Met {
    hasher: RandomState,
    sets: Mutex<[HashSet<u64>; 2]>,
}

impl Met {
    pub(crate) fn has(&self, key: &RecordKey) -> bool {
        let digest = self.hasher.hash_one(key);
        self.sets().iter().any(|set| set.contains(&digest))
    }

    pub(crate) fn remember(&self, key: &RecordKey) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_keys_are_known_and_old_ones_are_forgotten() {
        let met = Met::default();
        let key = |n: usize| RecordKey::new("s", n.to_string()).unwrap();
        assert!(!met.has(&key(0)));
        for n in 0..3 * GENERATION {
            met.remember(&key(n));
        }
        assert!(met.has(&key(3 * GENERATION - 1)));
        assert!(met.has(&key(2 * GENERATION)));
        assert!(!met.has(&key(0)));
    }
}
