//! The local clock: it is monotonic, and runs while the host is suspended.
//!
//! [`std::time::Instant`] stands still during a suspend (`CLOCK_MONOTONIC` on Linux), and the
//! database's clock does not: a lease that ran out while a laptop slept would look fresh. So
//! local deadlines are points of the boot-time clock. (While a virtual machine is paused, all its clocks stand still.)

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

/// The time from `other` to `self`; zero when `other` is later.
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

/// The point until which a lease may be trusted, on this host's boot-time clock.
///
/// This clock runs while the host is suspended. [`Instant`] does not.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(pub(crate) Moment);

impl Deadline {
    /// The time until the deadline; zero after it.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// Whether the deadline has passed.
    #[must_use]
    pub fn has_passed(&self) -> bool {
        self.0.has_passed()
    }

    /// The same point as an [`Instant`], for timers. It is wrong if the host is suspended before
    /// the deadline.
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

    #[cfg(target_os = "linux")]
    #[test]
    fn the_clock_is_the_boot_time_clock() {
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let uptime: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        let here = Moment::now().0.as_secs_f64();
        assert!((here - uptime).abs() < 1.0, "{here} {uptime}");
    }
}
