//! How much of a lease may be trusted: the margin for clocks that run apart.

use std::time::Duration;

/// How far the database's clock may run ahead of this host's while a lease lasts: a rate, and an absolute error that
/// the [builder](crate::Builder::clock_error) sets.
///
/// # The rate
///
/// A time service corrects a clock by letting it run faster or slower: chronyd by up to 83,333 ppm, a twelfth, by
/// default (`maxslewrate` in chrony.conf(5)). Linux applies the rate to the boot-time clock, too (`CLOCK_MONOTONIC` in
/// `clock_gettime(2)`). In the worst case the database's clock runs at 13/12 of the true rate and this host's at
/// 11/12. The lease ends at the database when 11/13 of its time, 84.6 %, have passed here. Five sixths are 83.3 %.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClockError(Duration);

impl ClockError {
    pub(crate) const fn new(absolute: Duration) -> Self {
        Self(absolute)
    }

    /// The part of `lease` that this host may trust, counted from before the request was sent.
    pub(crate) fn trusted(self, lease: Duration) -> Duration {
        lease.saturating_sub(lease / 6 + self.0)
    }

    /// The shortest lease that this host may trust for `time`.
    pub(crate) fn lease_for(self, time: Duration) -> Duration {
        let time = time + self.0;
        time + time / 5
    }

    /// Whether this host may trust enough of `lease`: more than a third.
    pub(crate) fn allows(self, lease: Duration) -> bool {
        self.0 < lease / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_trusted_for_less_than_the_clocks_can_run_apart() {
        let lease = Duration::from_secs(30);
        let exact = ClockError::new(Duration::ZERO);
        assert_eq!(exact.trusted(lease), Duration::from_secs(25));
        // chronyd's fastest slew on both hosts, in opposite directions.
        assert!(exact.trusted(lease).mul_f64(13.0 / 11.0) < lease);
        let second = ClockError::new(Duration::from_secs(1));
        assert_eq!(second.trusted(lease), Duration::from_secs(24));
        assert_eq!(second.trusted(Duration::from_secs(1)), Duration::ZERO);
    }

    #[test]
    fn a_lease_for_a_time_is_trusted_for_that_time() {
        let error = ClockError::new(Duration::from_millis(40));
        for millis in [0, 1, 60, 700, 86_400_000] {
            let time = Duration::from_millis(millis);
            assert_eq!(error.trusted(error.lease_for(time)), time);
        }
    }

    #[test]
    fn a_clock_error_of_half_a_lease_is_too_much() {
        let error = ClockError::new(Duration::from_millis(50));
        assert!(error.allows(Duration::from_millis(101)));
        assert!(!error.allows(Duration::from_millis(100)));
    }
}
