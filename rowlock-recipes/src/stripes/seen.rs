//! What this client knows of the stripes: how much it saw in each, and how many of its own transactions are at each.
//! That may be out of date, so it decides only where to begin.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// What this client knows of the stripes.
#[derive(Debug)]
pub(super) struct Seen {
    quantities: Box<[AtomicI64]>,
    /// How many transactions of this client have each stripe locked, or wait for it.
    users: Box<[AtomicUsize]>,
    /// Whether the last stripe that this client asked for was locked.
    crowded: AtomicBool,
    /// Their sum at the last look.
    sum: AtomicU64,
    /// How much this client has taken since.
    taken: AtomicU64,
}

impl Seen {
    /// Nothing was seen yet.
    pub(super) fn new(stripes: usize) -> Self {
        Self {
            quantities: (0..stripes).map(|_| AtomicI64::new(0)).collect(),
            users: (0..stripes).map(|_| AtomicUsize::new(0)).collect(),
            crowded: AtomicBool::new(false),
            sum: AtomicU64::new(0),
            taken: AtomicU64::new(0),
        }
    }

    pub(super) fn look(&self, quantities: &[i64]) {
        for (seen, quantity) in self.quantities.iter().zip(quantities) {
            seen.store(*quantity, Relaxed);
        }
        let sum = quantities.iter().sum::<i64>();
        self.sum.store(sum.unsigned_abs(), Relaxed);
        self.taken.store(0, Relaxed);
    }

    /// Whether the memory is good enough to begin with. Other clients take, too, so the memory is too old after this
    /// client has taken an eighth of the sum that it saw. So looks are rare while the stock is large, and at the end
    /// each take looks.
    pub(super) fn is_fresh(&self) -> bool {
        self.taken.load(Relaxed).saturating_mul(8) < self.sum.load(Relaxed)
    }

    pub(super) fn added(&self, stripe: usize, by: i64) {
        self.quantities[stripe].fetch_add(by, Relaxed);
        self.taken.fetch_add(by.unsigned_abs(), Relaxed);
    }

    /// The stripe has less than `n`.
    pub(super) fn has_less(&self, stripe: usize, n: i64) {
        self.quantities[stripe].fetch_min(n - 1, Relaxed);
    }

    /// Notes whether a stripe that this client asked for was locked.
    pub(super) fn met(&self, is_busy: bool) {
        self.crowded.store(is_busy, Relaxed);
    }

    /// Whether most stripes seem to be locked, so that asking for one after the other finds none that is free.
    pub(super) fn is_crowded(&self) -> bool {
        self.crowded.load(Relaxed)
    }

    /// Notes that a transaction uses the stripe, until the answer is dropped.
    pub(super) fn used(self: &Arc<Self>, stripe: usize) -> Used {
        self.users[stripe].fetch_add(1, Relaxed);
        Used {
            seen: Arc::clone(self),
            stripe,
        }
    }

    /// A stripe that seems to have `n`, of those that `may` be chosen: one that few transactions of this client use.
    /// It chooses at random, and one that has more is likelier: so the stripes run empty together.
    pub(super) fn pick(&self, n: i64, may: impl Fn(usize) -> bool) -> Option<usize> {
        let stripes = (0..self.quantities.len()).filter(|stripe| may(*stripe));
        let stripes = stripes.filter_map(|stripe| {
            let quantity = self.quantities[stripe].load(Relaxed);
            let weight = u128::from(quantity.unsigned_abs());
            (quantity >= n).then(|| (stripe, weight, self.users[stripe].load(Relaxed)))
        });
        let mut stripes: Vec<_> = stripes.collect();
        let fewest = stripes.iter().map(|(.., users)| *users).min()?;
        stripes.retain(|(.., users)| *users == fewest);
        let sum: u128 = stripes.iter().map(|(_, weight, _)| weight).sum();
        let mut left = fastrand::u128(0..sum);
        let chosen = stripes.iter().find(|(_, weight, _)| {
            let found = left < *weight;
            left = left.saturating_sub(*weight);
            found
        });
        chosen.map(|(stripe, ..)| *stripe)
    }
}

/// A transaction of this client that has a stripe locked, or waits for it.
#[derive(Debug)]
pub(super) struct Used {
    seen: Arc<Seen>,
    stripe: usize,
}

impl Used {
    pub(super) fn stripe(&self) -> usize {
        self.stripe
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        self.seen.users[self.stripe].fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stripe_that_has_less_is_not_picked() {
        let seen = Seen::new(3);
        assert_eq!(seen.pick(1, |_| true), None, "nothing was seen yet");
        seen.look(&[1, 5, 0]);
        for _ in 0..100 {
            assert_eq!(seen.pick(2, |_| true), Some(1));
            assert_eq!(seen.pick(1, |stripe| stripe != 1), Some(0));
        }
        seen.has_less(1, 2);
        assert_eq!(seen.pick(2, |_| true), None);
        seen.added(2, 2);
        assert_eq!(seen.pick(2, |_| true), Some(2));
    }

    #[test]
    fn a_stripe_that_has_more_is_picked_more_often() {
        let seen = Seen::new(2);
        seen.look(&[i64::MAX / 4 * 3, i64::MAX / 4]);
        let picks = (0..1_000).filter(|_| seen.pick(1, |_| true) == Some(0));
        let picks = picks.count();
        assert!(
            (600..900).contains(&picks),
            "{picks} of 1000, where 750 are expected"
        );
    }

    #[test]
    fn transactions_of_a_client_spread_over_the_stripes() {
        let seen = Arc::new(Seen::new(3));
        seen.look(&[1, 1, i64::MAX - 2]);
        let mut used = Vec::new();
        for round in 1..=2 {
            for _ in 0..3 {
                used.push(seen.used(seen.pick(1, |_| true).unwrap()));
            }
            let users: Vec<_> = seen.users.iter().map(|users| users.load(Relaxed)).collect();
            assert_eq!(users, [round; 3]);
        }
        used.retain(|used| used.stripe != 1);
        assert_eq!(seen.pick(1, |_| true), Some(1));
    }

    #[test]
    fn a_look_is_due_after_an_eighth_is_taken() {
        let seen = Seen::new(2);
        assert!(!seen.is_fresh());
        seen.look(&[40, 40]);
        seen.added(0, -9);
        assert!(seen.is_fresh());
        seen.added(1, -1);
        assert!(!seen.is_fresh());
        seen.look(&[0, 0]);
        assert!(!seen.is_fresh(), "when all are empty, each take looks");
    }
}
