//! How long to wait before the next try, mostly with jitter: operations that fail together must not return together.

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

/// The pause before an operation that was put off `times` times (a locked row, a lost race) is sent again: 2 ms,
/// doubled each time, at most `longest`. No jitter.
pub(crate) fn pause(times: u32, longest: Duration) -> Duration {
    let longest = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
    let pause = 1_u64
        .checked_shl(times)
        .unwrap_or(u64::MAX)
        .clamp(2, longest.max(2));
    Duration::from_millis(pause)
}

/// [`pause`] with jitter: up to as much again.
pub(crate) fn again(times: u32, longest: Duration) -> Duration {
    pause(times, longest).mul_f64(1.0 + fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_doubles_up_to_the_longest() {
        let longest = Duration::from_millis(200);
        let pauses: Vec<_> = (0..10)
            .map(|times| pause(times, longest).as_millis())
            .collect();
        assert_eq!(pauses, [2, 2, 4, 8, 16, 32, 64, 128, 200, 200]);
        assert_eq!(pause(u32::MAX, longest), longest);
        // No shorter than two milliseconds, however short the longest is.
        assert_eq!(pause(5, Duration::ZERO), Duration::from_millis(2));
        for _ in 0..100 {
            let again = again(3, longest).as_millis();
            assert!((8..=16).contains(&again), "{again}");
        }
    }
}
