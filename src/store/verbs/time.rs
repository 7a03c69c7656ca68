//! The database's times and durations, in microseconds.

use std::time::Duration;

use chrono::{DateTime, Utc};

/// A time from the database: microseconds since 1970-01-01 UTC.
pub(crate) fn time(at: i64) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_micros(at)
}

/// Microseconds from the database as a duration; a negative number becomes zero.
pub(crate) fn micros(us: i64) -> Duration {
    Duration::from_micros(u64::try_from(us).unwrap_or(0))
}

/// A duration in microseconds for the database. Durations are bounded far below saturation.
pub(crate) fn to_micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
