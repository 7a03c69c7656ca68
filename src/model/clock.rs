//! The local clock: monotonic, and running on while the host is suspended.
//!
//! [`std::time::Instant`] stands still during a suspend (`CLOCK_MONOTONIC` on Linux), the
//! database's clock does not: a lease that ran out while a laptop slept would look fresh. So
//! local deadlines are points of the boot-time clock. (A virtual machine that was paused has no clock that ran on.)

use std::fmt;
use std::ops::{Add, Sub};
use std::time::{Duration, Instant};

/// A point of the boot-time clock of this host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(Duration);

impl Moment {
    #[cfg(unix)]
    pub(crate) fn now() -> Self {
        // macOS: CLOCK_MONOTONIC counts sleep, and there is no CLOCK_BOOTTIME (clock_gettime(3)).
        #[cfg(any(target_os = "linux", target_os = "android"))]
        const CLOCK: nix::time::ClockId = nix::time::ClockId::CLOCK_BOOTTIME;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        const CLOCK: nix::time::ClockId = nix::time::ClockId::CLOCK_MONOTONIC;
        // The call fails only for a clock that the kernel does not know; Linux has had this one
        // since 2.6.39.
        nix::time::clock_gettime(CLOCK).map_or_else(|_| Self::process_clock(), |t| Self(t.into()))
    }

    #[cfg(not(unix))]
    pub(crate) fn now() -> Self {
        Self::process_clock()
    }

    fn process_clock() -> Self {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        Self(START.get_or_init(Instant::now).elapsed())
    }

    pub(crate) fn elapsed(self) -> Duration {
        Self::now() - self
    }

    pub(crate) fn has_passed(self) -> bool {
        Self::now() >= self
    }

    /// The time until this point; zero when it has passed.
    pub(crate) fn remaining(self) -> Duration {
        self - Self::now()
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by))
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;

    fn sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(by))
    }
}

/// The time from `other` to `self`; zero when `other` is the later one.
impl Sub for Moment {
    type Output = Duration;

    fn sub(self, other: Self) -> Duration {
        self.0.saturating_sub(other.0)
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "boot+{:?}", self.0)
    }
}

/// How far the database's clock may run ahead of this host's while a lease lasts: a rate, and an absolute error that the
/// [builder](crate::Builder::clock_error) sets.
///
/// # The rate
///
/// A time service corrects a clock by letting it run faster or slower: chronyd by up to 83,333 ppm, a twelfth, unless it is
/// told otherwise (`maxslewrate` in chrony.conf(5)). Linux applies the rate to the boot-time clock, too (`CLOCK_MONOTONIC` in
/// `clock_gettime(2)`). In the worst case the database's clock runs at 13/12 of the true rate and this host's at 11/12. The
/// lease is over there when 11/13 of its time, 84.6 %, have passed here. Five sixths are 83.3 %.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClockError(Duration);

impl ClockError {
    pub(crate) const fn new(absolute: Duration) -> Self {
        Self(absolute)
    }

    /// How much of `lease` may be trusted here, counted from before it was asked for.
    pub(crate) fn trusted(self, lease: Duration) -> Duration {
        lease.saturating_sub(lease / 6 + self.0)
    }

    /// The shortest lease of which `time` may be trusted.
    pub(crate) fn lease_for(self, time: Duration) -> Duration {
        let time = time + self.0;
        time + time / 5
    }

    /// Whether enough of `lease` may be trusted: more than a third.
    pub(crate) fn allows(self, lease: Duration) -> bool {
        self.0 < lease / 2
    }
}

/// The point until which a lease may be trusted, on this host's boot-time clock.
///
/// It goes on running while the host is suspended, which [`Instant`] does not.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(pub(crate) Moment);

impl Deadline {
    /// The time that is left; zero when it has passed.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// Whether it has passed.
    #[must_use]
    pub fn has_passed(&self) -> bool {
        self.0.has_passed()
    }

    /// The same point as an [`Instant`], for timers. It is right as long as the host is not
    /// suspended in between.
    #[must_use]
    pub fn to_instant(&self) -> Instant {
        Instant::now() + self.remaining()
    }
}

impl fmt::Debug for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Deadline(in {:?})", self.remaining())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_that_passed_has_nothing_left() {
        let past = Moment::now() - Duration::from_millis(5);
        assert!(past.has_passed());
        assert_eq!(past.remaining(), Duration::ZERO);
        assert!(past.elapsed() >= Duration::from_millis(5));
        let ahead = Moment::now() + Duration::from_mins(1);
        assert!(!ahead.has_passed());
        assert!(Deadline(ahead).remaining() > Duration::from_secs(59));
        assert!(Deadline(ahead).to_instant() > Instant::now());
        assert!(Deadline(past).has_passed() && !Deadline(ahead).has_passed());
        assert!(format!("{ahead:?}").starts_with("boot+"), "{ahead:?}");
    }

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

    #[cfg(target_os = "linux")]
    #[test]
    fn the_clock_is_the_boot_time_clock() {
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let uptime: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        let here = Moment::now().0.as_secs_f64();
        assert!((here - uptime).abs() < 1.0, "{here} {uptime}");
    }
}
