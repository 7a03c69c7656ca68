//! How often names change hands: what two looks at the names in use tell.
//!
//! The tables keep no count of grants: it would cost each grant. So this sees the last grant of a name between two
//! looks, and no other.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rowlock::NameInfo;

/// After this time without a look it begins anew.
const LONGEST: Duration = Duration::from_mins(1);

/// What happened since somebody looks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Seen {
    grants: u32,
    waits: u32,
    losses: u32,
    /// Seconds.
    within: f64,
}

/// A name at a look.
#[derive(Debug, Clone, Copy)]
struct Sight {
    fence: i64,
    waiters: u32,
    /// The time that its holder had left; `None`: nobody held it.
    left: Option<Duration>,
}

#[derive(Debug)]
struct Last {
    at: Instant,
    names: HashMap<String, Sight>,
    seen: Seen,
}

/// The last look.
#[derive(Debug, Default)]
pub(crate) struct Rates(Mutex<Option<Last>>);

impl Rates {
    /// The names in use, as a look has found them. `None`: it is the first look.
    pub(crate) fn look(&self, names: &[NameInfo]) -> Option<Seen> {
        let sight = |info: &NameInfo| {
            let left = info.holders.iter().map(|held| held.remaining).min();
            let (fence, waiters) = (info.fence, info.waiters);
            let sight = Sight {
                fence,
                waiters,
                left,
            };
            (info.name.to_string(), sight)
        };
        self.looked(names.iter().map(sight).collect(), Instant::now())
    }

    fn looked(&self, names: HashMap<String, Sight>, at: Instant) -> Option<Seen> {
        let last = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = last.take().filter(|last| at - last.at < LONGEST);
        let seen = before.as_ref().map(|before| before.until(&names, at));
        let kept = seen.unwrap_or_default();
        *last = Some(Last {
            at,
            names,
            seen: kept,
        });
        seen
    }
}

impl Last {
    /// What has happened until a later look.
    fn until(&self, names: &HashMap<String, Sight>, at: Instant) -> Seen {
        let (mut seen, time) = (self.seen, at - self.at);
        seen.within += time.as_secs_f64();
        for (name, now) in names {
            let before = self.names.get(name);
            // (A name that was not in use may have been granted before, so its fence tells nothing.)
            let is_granted = before.map_or(now.left.is_some(), |before| now.fence > before.fence);
            seen.grants += u32::from(is_granted);
            let waited = before.map_or(0, |before| before.waiters);
            seen.waits += now.waiters.saturating_sub(waited);
        }
        for (name, before) in &self.names {
            let now = names.get(name);
            let is_held = now.is_some_and(|now| now.fence == before.fence && now.left.is_some());
            // A holder that is alive renews long before.
            seen.losses += u32::from(before.left.is_some_and(|left| left < time) && !is_held);
        }
        seen
    }
}

impl Seen {
    /// Grants, waits and losses a second.
    pub(crate) fn a_second(self) -> [String; 3] {
        let time = self.within.max(0.001);
        [self.grants, self.waits, self.losses]
            .map(|count| format!("{:.1}", f64::from(count) / time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn names(all: &[(&str, i64, u32, Option<u64>)]) -> HashMap<String, Sight> {
        let sight = |(name, fence, waiters, left): &(&str, i64, u32, Option<u64>)| {
            let left = left.map(Duration::from_millis);
            let (fence, waiters) = (*fence, *waiters);
            (
                String::from(*name),
                Sight {
                    fence,
                    waiters,
                    left,
                },
            )
        };
        all.iter().map(sight).collect()
    }

    #[test]
    fn what_happens_between_two_looks_is_counted() {
        let (rates, begin) = (Rates::default(), Instant::now());
        let first = names(&[
            ("a", 1, 0, Some(9_000)),
            ("b", 5, 2, Some(300)),
            ("c", 7, 0, Some(9_000)),
        ]);
        assert_eq!(rates.looked(first, begin), None);
        // "a" has changed hands, "b" was lost to a waiter, "c" was released, and "d" is new.
        let second = names(&[
            ("a", 2, 1, Some(9_000)),
            ("b", 6, 1, Some(9_000)),
            ("d", 1, 0, Some(9_000)),
        ]);
        let seen = rates.looked(second.clone(), begin + SECOND).unwrap();
        assert_eq!(seen.a_second(), ["3.0", "1.0", "1.0"]);
        let seen = rates.looked(second.clone(), begin + SECOND * 3).unwrap();
        assert_eq!(seen.a_second(), ["1.0", "0.3", "0.3"]);
        assert_eq!(
            rates.looked(second, begin + SECOND * 70),
            None,
            "nobody looked"
        );
    }
}
