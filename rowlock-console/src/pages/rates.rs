//! How often names change hands: what the looks of a minute at the names in use tell.
//!
//! The tables keep no count of grants: it would cost each grant. So this sees the last grant of a name between two
//! looks, and no other.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use rowlock::NameInfo;

/// The rates are those of this time.
const MINUTE: Duration = Duration::from_mins(1);

/// A name at a look.
#[derive(Debug, Clone, Copy)]
struct Sight {
    fence: i64,
    waiters: u32,
    is_held: bool,
}

/// What a look has seen, compared with the look before it.
#[derive(Debug, Clone, Copy)]
struct Count {
    at: Instant,
    grants: u32,
    waits: u32,
}

/// What the looks of the last minute have seen.
#[derive(Debug, Default)]
struct Recent {
    /// The names of the last look.
    names: HashMap<String, Sight>,
    counts: VecDeque<Count>,
}

#[derive(Debug, Default)]
pub(crate) struct Rates(Mutex<Recent>);

impl Rates {
    /// The names in use, as a look that began then has found them. Returns the grants and the waits a second; `None`:
    /// it is the first look in a minute.
    pub(crate) fn look(&self, names: &[NameInfo], began: Instant) -> Option<[String; 2]> {
        let sight = |info: &NameInfo| {
            let sight = Sight {
                fence: info.fence,
                waiters: info.waiters,
                is_held: !info.holders.is_empty(),
            };
            (info.name.to_string(), sight)
        };
        let names = names.iter().map(sight).collect();
        self.looked(names, began, Instant::now())
    }

    fn looked(
        &self,
        names: HashMap<String, Sight>,
        began: Instant,
        ended: Instant,
    ) -> Option<[String; 2]> {
        let mut recent = self.0.lock();
        let last = recent.counts.back();
        // A look beside another one may have found older fences: the next look would count their grants again.
        if last.is_none_or(|last| last.at <= began) {
            recent.add(names, ended);
        }
        recent.a_second()
    }
}

impl Recent {
    fn add(&mut self, names: HashMap<String, Sight>, at: Instant) {
        while self
            .counts
            .front()
            .is_some_and(|first| first.at + MINUTE < at)
        {
            self.counts.pop_front();
        }
        let (grants, waits) = self.until(&names);
        self.counts.push_back(Count { at, grants, waits });
        self.names = names;
    }

    /// The grants and waits between the last look and this one.
    fn until(&self, names: &HashMap<String, Sight>) -> (u32, u32) {
        let (mut grants, mut waits) = (0, 0);
        for (name, now) in names {
            let before = self.names.get(name);
            // (A name that was not in use may have been granted before, so its fence tells nothing.)
            let is_granted = before.map_or(now.is_held, |before| now.fence > before.fence);
            grants += u32::from(is_granted);
            let waited = before.map_or(0, |before| before.waiters);
            waits += now.waiters.saturating_sub(waited);
        }
        (grants, waits)
    }

    fn a_second(&self) -> Option<[String; 2]> {
        let (first, last) = (self.counts.front()?, self.counts.back()?);
        // What the first look has seen was before this time.
        let counts = self.counts.range(1..);
        let (grants, waits) = counts.fold((0, 0), |(grants, waits), count| {
            (grants + count.grants, waits + count.waits)
        });
        let time = (last.at - first.at).as_secs_f64();
        let a_second = |count| format!("{:.1}", f64::from(count) / time);
        (time > 0.0).then(|| [grants, waits].map(a_second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn names(all: &[(&str, i64, u32)]) -> HashMap<String, Sight> {
        let sight = |(name, fence, waiters): &(&str, i64, u32)| {
            let sight = Sight {
                fence: *fence,
                waiters: *waiters,
                is_held: true,
            };
            (String::from(*name), sight)
        };
        all.iter().map(sight).collect()
    }

    fn rates(grants: &str, waits: &str) -> [String; 2] {
        [grants, waits].map(String::from)
    }

    /// Looks that take no time.
    fn look(all: &Rates, names: &HashMap<String, Sight>, at: Instant) -> Option<[String; 2]> {
        all.looked(names.clone(), at, at)
    }

    #[test]
    fn what_happens_between_two_looks_is_counted() {
        let (all, begin) = (Rates::default(), Instant::now());
        let first = names(&[("a", 1, 0), ("b", 5, 2), ("c", 7, 0)]);
        assert_eq!(look(&all, &first, begin), None);
        // "a" and "b" have changed hands, "c" was released, and "d" is new.
        let second = names(&[("a", 2, 1), ("b", 6, 1), ("d", 1, 0)]);
        let seen = look(&all, &second, begin + SECOND);
        assert_eq!(seen, Some(rates("3.0", "1.0")));
        let seen = look(&all, &second, begin + SECOND * 2);
        assert_eq!(seen, Some(rates("1.5", "0.5")));
        let seen = look(&all, &second, begin + SECOND * 70);
        assert_eq!(seen, None, "nobody looked");
    }

    #[test]
    fn the_rates_are_those_of_the_last_minute() {
        let (all, begin) = (Rates::default(), Instant::now());
        for second in 0..200 {
            // One grant a second, and none after 100 s.
            let now = names(&[("a", second.min(100), 0)]);
            let at = begin + SECOND * u32::try_from(second).unwrap();
            let seen = look(&all, &now, at);
            let expected = match second {
                0 => None,
                130 => Some(rates("0.5", "0.0")),
                1..=100 => Some(rates("1.0", "0.0")),
                161.. => Some(rates("0.0", "0.0")),
                _ => continue,
            };
            assert_eq!(seen, expected, "after {second} s");
        }
    }

    #[test]
    fn a_look_beside_another_one_counts_no_grant_twice() {
        let (all, begin) = (Rates::default(), Instant::now());
        let (old, new) = (names(&[("a", 1, 0)]), names(&[("a", 2, 0)]));
        assert_eq!(look(&all, &old, begin), None);
        let seen = look(&all, &new, begin + SECOND);
        assert_eq!(seen, Some(rates("1.0", "0.0")));
        // It began before the end of that look, and ends after it.
        let seen = all.looked(old, begin + SECOND / 2, begin + SECOND * 2);
        assert_eq!(seen, Some(rates("1.0", "0.0")));
        let seen = look(&all, &new, begin + SECOND * 5);
        assert_eq!(seen, Some(rates("0.2", "0.0")));
    }
}
