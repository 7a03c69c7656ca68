//! The end of a wait, on a clock that also counts while the host is suspended: after a night, a wait of ten minutes is
//! over.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// macOS: `CLOCK_MONOTONIC` counts sleep, and there is no `CLOCK_BOOTTIME` (`clock_gettime(3)`).
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;

/// A point of the boot-time clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Until(Duration);

impl Until {
    pub(crate) fn after(wait: Duration) -> Self {
        Self(since_boot().saturating_add(wait))
    }

    /// Zero after the end.
    pub(crate) fn remaining(self) -> Duration {
        self.0.saturating_sub(since_boot())
    }
}

/// Every kernel that Rust supports has this clock.
fn since_boot() -> Duration {
    clock_gettime(CLOCK).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_has_an_end() {
        assert!(Until::after(Duration::from_mins(1)).remaining() > Duration::from_secs(59));
        assert_eq!(Until::after(Duration::ZERO).remaining(), Duration::ZERO);
    }
}
