//! The bounds of settings. rowlock checks them before it asks the database.

use std::time::Duration;

use super::{Error, InvalidError};

pub(crate) const MIN_TTL: Duration = Duration::from_millis(100);
const MAX_TTL: Duration = Duration::from_hours(24);
pub(crate) const MAX_WAIT: Duration = Duration::from_hours(366 * 24);
/// The longest holder text, in bytes.
const MAX_HOLDER: usize = 200;
/// The longest reason for a pause, in bytes.
const MAX_WHY: usize = 255;

/// Checks a value for [`Lock::ttl`](crate::Lock::ttl), for a recipe or a program that checks its user's settings
/// before it connects. `setting` is the name that the error shows. A client with a larger
/// [`clock_error`](crate::Builder::clock_error) may require a longer TTL.
///
/// # Errors
///
/// [`InvalidError::Duration`].
///
/// ```
/// use std::time::Duration;
///
/// assert!(rowlock::extend::check_ttl("ttl", Duration::from_secs(30)).is_ok());
/// let error = rowlock::extend::check_ttl("lease_for", Duration::from_millis(5)).unwrap_err();
/// assert_eq!(error.to_string(), "lease_for = 5ms is refused: 100 ms to 24 h are allowed");
/// ```
pub fn check_ttl(setting: &'static str, ttl: Duration) -> Result<(), Error> {
    within(
        setting,
        ttl,
        MIN_TTL..=MAX_TTL,
        "100 ms to 24 h are allowed",
    )
}

/// Checks a value for [`Lock::wait`](crate::Lock::wait), for a recipe or a program that checks its user's settings
/// before it connects.
///
/// # Errors
///
/// [`InvalidError::Duration`].
pub fn check_wait(wait: Duration) -> Result<(), Error> {
    let bounds = Duration::ZERO..=MAX_WAIT;
    within("wait", wait, bounds, "at most 366 days are allowed")
}

pub(crate) fn check_quarantine(time: Duration) -> Result<(), Error> {
    let bounds = MIN_TTL..=MAX_WAIT;
    within("quarantine", time, bounds, "100 ms to 366 days are allowed")
}

pub(crate) fn check_pause(time: Duration) -> Result<(), Error> {
    let bounds = MIN_TTL..=MAX_WAIT;
    within("pause", time, bounds, "100 ms to 366 days are allowed")
}

pub(crate) fn check_linger(linger: Duration) -> Result<(), Error> {
    let bounds = Duration::from_millis(1)..=Duration::from_mins(1);
    within("linger", linger, bounds, "1 ms to 1 min are allowed")
}

pub(crate) fn within(
    setting: &'static str,
    given: Duration,
    allowed: std::ops::RangeInclusive<Duration>,
    bounds: &'static str,
) -> Result<(), Error> {
    if allowed.contains(&given) {
        return Ok(());
    }
    Err(Error::Invalid(InvalidError::Duration {
        setting,
        given,
        bounds,
    }))
}

/// `rowlock ls` prints the holder, so its length is limited.
pub(crate) fn check_holder(holder: &str) -> Result<(), Error> {
    text("holder", holder, (MAX_HOLDER, "1 to 200 bytes are allowed"))
}

/// Who a pause is from.
pub(crate) fn check_by(by: &str) -> Result<(), Error> {
    text("by", by, (MAX_HOLDER, "1 to 200 bytes are allowed"))
}

/// The reason for a pause.
pub(crate) fn check_why(why: &str) -> Result<(), Error> {
    text("why", why, (MAX_WHY, "1 to 255 bytes are allowed"))
}

fn text(setting: &'static str, given: &str, most: (usize, &'static str)) -> Result<(), Error> {
    let reason = if given.is_empty() || given.len() > most.0 {
        most.1
    } else if given.contains('\0') {
        "it contains a NUL character"
    } else {
        return Ok(());
    };
    Err(Error::Invalid(InvalidError::Setting { setting, reason }))
}
