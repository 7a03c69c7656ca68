//! How long to wait before the next try. Always with jitter: what fails together must not come
//! back together.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

fn backoff(min: u64, max: u64) -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(min))
        .with_max_delay(Duration::from_millis(max))
        .without_max_times()
        .with_jitter()
        .build()
}

/// Between two attempts to connect.
pub(crate) fn reconnect() -> ExponentialBackoff {
    backoff(20, 500)
}

/// Between two looks at a name that is held. (A timer at the holder's expiry comes on top.)
pub(crate) fn poll() -> ExponentialBackoff {
    backoff(2, 40)
}

/// Before a statement is sent again that lost against another transaction.
pub(crate) fn again() -> Duration {
    backoff(2, 2).next().unwrap_or_default()
}
