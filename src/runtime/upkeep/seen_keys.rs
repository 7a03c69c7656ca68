//! Recently seen keys: a hit means that a record probably exists.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;

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
    /// Whether it was seen before.
    pub(crate) fn see(&self, key: &RecordKey) -> bool {
        let digest = self.hasher.hash_one(key);
        let mut sets = self.sets.lock();
        let is_known = sets.iter().any(|set| set.contains(&digest));
        if sets[0].len() >= GENERATION {
            sets[1] = std::mem::take(&mut sets[0]);
        }
        sets[0].insert(digest);
        is_known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_keys_are_known_and_old_ones_are_dropped() {
        let seen = SeenKeys::default();
        let key = |n: usize| RecordKey::new("s", n.to_string()).unwrap();
        for n in 0..3 * GENERATION {
            assert!(!seen.see(&key(n)));
        }
        assert!(seen.see(&key(3 * GENERATION - 1)));
        assert!(seen.see(&key(2 * GENERATION)));
        assert!(!seen.see(&key(0)));
    }
}
