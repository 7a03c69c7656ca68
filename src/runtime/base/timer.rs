//! Waiting on the boot-time clock.

use std::time::Duration;

use crate::model::Moment;

/// Sleeps until `at`. Wakes at least twice a second to read the boot-time clock, because the runtime's timers stand
/// still while the host is suspended.
pub(crate) async fn sleep_until(at: Moment) {
    const LOOK: Duration = Duration::from_millis(500);
    loop {
        let left = at.remaining();
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(LOOK)).await;
    }
}

/// Sleeps until `at`; for ever when there is no such moment.
pub(crate) async fn sleep_until_some(at: Option<Moment>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sleep_ends_when_its_moment_has_passed() {
        let at = Moment::now() + Duration::from_millis(20);
        sleep_until(at).await;
        assert!(at.has_passed());
    }
}
