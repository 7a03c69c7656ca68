//! What this client saw last: which stripes have how much. It may be out of date, so it decides only where to look first.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// The quantities that this client saw last.
#[derive(Debug)]
pub(super) struct Seen {
    quantities: Box<[AtomicI64]>,
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

    /// Whether another look is not due. Other clients take, too, so the next look comes after this client has taken an eighth of what
    /// it saw. So there are few looks as long as there is much, and a look for each take at the end.
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

    /// A random stripe that seems to have `n`, of those that `may` be chosen: one that has more is chosen more often, so
    /// that the stripes run empty together.
    pub(super) fn pick(&self, n: i64, may: impl Fn(usize) -> bool) -> Option<usize> {
        let quantity = |stripe: usize| self.quantities[stripe].load(Relaxed);
        let weight = |quantity: i64| u128::from(quantity.unsigned_abs());
        let stripes = (0..self.quantities.len()).filter(|stripe| may(*stripe));
        let enough: Vec<_> = stripes
            .map(|stripe| (stripe, quantity(stripe)))
            .filter(|(_, quantity)| *quantity >= n)
            .collect();
        let sum: u128 = enough.iter().map(|(_, quantity)| weight(*quantity)).sum();
        if sum == 0 {
            return None;
        }
        let mut left = fastrand::u128(0..sum);
        for (stripe, quantity) in enough {
            let weight = weight(quantity);
            if left < weight {
                return Some(stripe);
            }
            left -= weight;
        }
        None
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
        seen.look(&[i64::MAX, i64::MAX / 3]);
        let picks = (0..1_000).filter(|_| seen.pick(1, |_| true) == Some(0));
        let picks = picks.count();
        assert!((600..900).contains(&picks), "{picks} of 1000, where 750 are expected");
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
