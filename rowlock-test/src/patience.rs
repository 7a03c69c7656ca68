//! Time: how long a test waits for an event that must come, and what it may say of how long something took.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// How long a test waits before it gives up. No test takes that long if the event comes, however busy the machine is.
///
/// Two minutes, times the number in `ROWLOCK_TEST_SLOWNESS`, which `test.sh` measures: 1 on a machine that is not
/// busy.
pub fn patience() -> Duration {
    static SLOWNESS: LazyLock<u32> = LazyLock::new(|| {
        let slowness = std::env::var("ROWLOCK_TEST_SLOWNESS");
        slowness.map_or(1, |text| {
            text.parse()
                .expect("ROWLOCK_TEST_SLOWNESS is a whole number")
        })
    });
    Duration::from_mins(2) * *SLOWNESS
}

/// Whether this is left, at some time since `began`, of a time that began after it. (SQLite tells up to a millisecond
/// less than there is.)
pub fn is_left_of(time: Duration, began: Instant, left: Duration) -> bool {
    left <= time && left + began.elapsed() + Duration::from_millis(1) >= time
}

/// Repeats `run` until it takes less than `bound`, and returns that time. Broken code never does; sound code is slower
/// only while the machine stands still.
pub async fn takes_less_than(bound: Duration, mut run: impl AsyncFnMut()) -> Duration {
    let began = Instant::now();
    loop {
        let asked = Instant::now();
        run().await;
        let took = asked.elapsed();
        if took < bound {
            return took;
        }
        assert!(began.elapsed() < patience(), "it always takes {took:?}");
    }
}
