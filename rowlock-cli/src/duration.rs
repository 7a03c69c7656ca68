//! Durations on the command line: `10` (seconds), `500ms`, `5m`, `1h30m`.

use std::time::Duration;

/// The longest that is read: a bound of the program, far beyond those of rowlock.
const LONGEST: Duration = Duration::from_secs(u32::MAX as u64);

const DAY: Duration = Duration::from_hours(24);

/// Units of humantime.
const INEXACT: [&str; 8] = ["M", "month", "months", "y", "yr", "yrs", "year", "years"];

fn units(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphabetic())
}

/// Parses seconds, or whole numbers with their units.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let duration = match text.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) if let Some(unit) = units(text).find(|unit| INEXACT.contains(unit)) => {
            return Err(format!(
                "`{unit}` has no fixed length: give days (d), hours (h) or minutes (m)"
            ));
        }
        Err(_) => humantime::parse_duration(text).ok(),
    };
    match duration {
        Some(duration) if duration <= LONGEST => Ok(duration),
        Some(_) => Err(format!(
            "`{text}` is too long: at most {}s",
            LONGEST.as_secs()
        )),
        None => Err(format!(
            "`{text}` is not a duration: give seconds, or whole numbers with units, like 500ms, 10s, 5m or 1h30m"
        )),
    }
}

/// A duration for people, as [`parse`] reads it. (Humantime writes months and years.)
pub(crate) fn span(of: Duration) -> String {
    let days = of.as_secs() / DAY.as_secs();
    let rest = of.saturating_sub(Duration::from_secs(days * DAY.as_secs()));
    let time = humantime::format_duration(rest);
    match days {
        0 => time.to_string(),
        _ if rest.is_zero() => format!("{days}d"),
        _ => format!("{days}d {time}"),
    }
}

/// The two largest units of a duration, for a table.
pub(crate) fn about(of: Duration) -> String {
    let whole = span(Duration::from_secs(of.as_secs()));
    let units: Vec<&str> = whole.split(' ').take(2).collect();
    units.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_can_be_typed() {
        let spans = [
            ("0s", "0s"),
            ("1500ms", "1s 500ms"),
            ("90", "1m 30s"),
            ("25h", "1d 1h"),
            ("48h", "2d"),
            ("400d", "400d"),
        ];
        for (typed, printed) in spans {
            let duration = parse(typed).unwrap();
            assert_eq!(span(duration), printed);
            assert_eq!(parse(printed), Ok(duration));
        }
    }

    #[test]
    fn seconds_and_numbers_with_units() {
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("10"), Ok(Duration::from_secs(10)));
        assert_eq!(parse("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse("5m"), Ok(Duration::from_mins(5)));
        assert_eq!(parse("1h30m"), Ok(Duration::from_mins(90)));
        assert_eq!(parse("2days"), parse("1day 24h"));
        assert_eq!(parse("0s"), Ok(Duration::ZERO));
    }

    #[test]
    fn other_texts_are_refused_and_the_error_shows_the_right_form() {
        for text in [
            "",
            "s",
            "-5s",
            "10 parsecs",
            "99999999999999999999",
            "99999999999999999999s",
            "18446744073709551615h",
        ] {
            assert!(parse(text).unwrap_err().contains("like 500ms"), "{text}");
        }
        for text in ["18446744073709551615", "4294967296"] {
            assert!(
                parse(text).unwrap_err().contains("at most 4294967295s"),
                "{text}"
            );
        }
        for text in ["10M", "1month", "1y"] {
            assert!(parse(text).unwrap_err().contains("days (d)"), "{text}");
        }
    }
}
