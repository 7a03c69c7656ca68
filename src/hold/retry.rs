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

/// Between two attempts of a transaction: anything up to a bound that doubles ("full jitter"; M. Brooker,
/// "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
pub(crate) fn full_jitter(
    shortest: Duration,
    longest: Duration,
) -> impl Iterator<Item = Duration> + Send {
    ExponentialBuilder::new()
        .with_min_delay(shortest)
        .with_max_delay(longest)
        .without_max_times()
        .build()
        .map(|bound| bound.mul_f64(fastrand::f64()))
}

/// Before an operation is sent again that was put off `tries` times: a locked row, a lost race.
pub(crate) fn again(tries: u32, longest: Duration) -> Duration {
    let longest = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
    let pause = 1_u64
        .checked_shl(tries)
        .unwrap_or(u64::MAX)
        .clamp(2, longest);
    backoff(pause, pause).next().unwrap_or_default()
}
