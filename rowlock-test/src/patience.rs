//! How long a test waits for an event that must come.

use std::sync::LazyLock;
use std::time::Duration;

/// How long a test waits before it gives up. No test takes that long if the event comes, however busy the machine is.
///
/// Two minutes, times the number in `ROWLOCK_TEST_SLOWNESS`, which `test.sh` measures: 1 on a machine that is not busy.
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
