//! Durations on the command line: `500ms`, `10s`, `5m`, `2h`.

use std::time::Duration;

/// Parses a whole number and its unit.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let refuse = || {
        format!(
            "`{text}` is not a duration: give a whole number and a unit, like 500ms, 10s, 5m or 2h"
        )
    };
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| refuse())?;
    let milliseconds: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(refuse()),
    };
    number
        .checked_mul(milliseconds)
        .map(Duration::from_millis)
        .ok_or_else(refuse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_a_unit() {
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse("5m"), Ok(Duration::from_mins(5)));
        assert_eq!(parse("2h"), Ok(Duration::from_hours(2)));
        assert_eq!(parse("0s"), Ok(Duration::ZERO));
    }

    #[test]
    fn other_texts_are_refused_and_the_error_shows_the_right_form() {
        for text in [
            "",
            "10",
            "s",
            "-5s",
            "1.5s",
            "10 s",
            "99999999999999999999s",
            "18446744073709551615h",
        ] {
            assert!(parse(text).unwrap_err().contains("like 500ms"), "{text}");
        }
    }
}
