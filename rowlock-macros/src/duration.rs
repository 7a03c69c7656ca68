//! Durations: `"30s"`. Checked when the attribute is compiled, with the bounds that rowlock has at run time.

use std::time::Duration;

use proc_macro2::{Literal, Span, TokenStream};
use quote::quote;
use syn::{Error, Ident, LitStr, Result};

use crate::options::Options;

/// The bounds of a setting, and how rowlock names them.
pub(crate) struct Bounds {
    least: Duration,
    most: Duration,
    text: &'static str,
}

const fn bounds(least: Duration, most: Duration, text: &'static str) -> Bounds {
    Bounds { least, most, text }
}

/// The shortest lease, and the shortest `max_hold`. (`src/model/bounds.rs` in rowlock has the same bounds; tests on
/// both sides compare them.)
const LEAST: Duration = Duration::from_millis(100);
const DAY: Duration = Duration::from_hours(24);
const YEAR: Duration = Duration::from_hours(366 * 24);
const TEN_YEARS: Duration = Duration::from_hours(10 * 366 * 24);

/// The TTL of a lock, the lease of an attempt.
pub(crate) const LEASE: Bounds = bounds(LEAST, DAY, "100 ms to 24 h are allowed");
/// The time of a job (`rowlock-recipes/src/job` has the same upper bound).
pub(crate) const AT_LEAST_FOR: Bounds = bounds(
    Duration::from_secs(1),
    DAY,
    "1 s to 24 h are allowed, more than the machines' clocks differ",
);
pub(crate) const WAIT: Bounds = bounds(Duration::ZERO, YEAR, "at most 366 days are allowed");
pub(crate) const MAX_HOLD: Bounds = bounds(LEAST, YEAR, "100 ms to 366 days are allowed");
pub(crate) const REMEMBER_EXPIRED: Bounds =
    bounds(Duration::ZERO, TEN_YEARS, "at most 10 years are allowed");
pub(crate) const RETENTION: Bounds = bounds(
    Duration::from_secs(1),
    TEN_YEARS,
    "1 s to 10 years are allowed",
);

/// The expression for a duration within bounds.
pub(crate) fn within(option: &str, text: &LitStr, bounds: &Bounds) -> Result<TokenStream> {
    let given = text.value();
    let Some(duration) = parse(&given) else {
        let message = format!(
            "`{option}` is no duration: write a whole number and a unit (ms, s, m or min, h, d), such as \"30s\""
        );
        return Err(Error::new(text.span(), message));
    };
    if duration < bounds.least || duration > bounds.most {
        let message = format!("`{option} = \"{given}\"` is refused: {}", bounds.text);
        return Err(Error::new(text.span(), message));
    }
    let (seconds, rest) = (duration.as_secs(), duration.subsec_millis());
    Ok(if rest == 0 {
        let seconds = Literal::u64_unsuffixed(seconds);
        quote!(::std::time::Duration::from_secs(#seconds))
    } else {
        let millis = Literal::u64_unsuffixed(seconds * 1_000 + u64::from(rest));
        quote!(::std::time::Duration::from_millis(#millis))
    })
}

/// The calls of a builder that set these options, where they are given.
pub(crate) fn durations(options: &mut Options, all: &[(&str, Bounds)]) -> Result<TokenStream> {
    let mut settings = TokenStream::new();
    for (setting, bounds) in all {
        if let Some(text) = options.text(setting)? {
            let duration = within(setting, &text, bounds)?;
            let setting = Ident::new(setting, Span::call_site());
            settings.extend(quote!(.#setting(#duration)));
        }
    }
    Ok(settings)
}

/// Refuses an option that is longer than another one.
pub(crate) fn in_order(shorter: (&str, &LitStr), longer: (&str, &LitStr)) -> Result<()> {
    // (What is no duration is refused elsewhere.)
    if parse(&shorter.1.value()) <= parse(&longer.1.value()) {
        return Ok(());
    }
    let message = format!("`{}` is longer than `{}`", shorter.0, longer.0);
    Err(Error::new(longer.1.span(), message))
}

fn parse(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let millis: u64 = match unit.trim_start_matches(' ') {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    // What is too large for a number is too large for every bound.
    Some(Duration::from_millis(number.saturating_mul(millis)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_whole_number_and_a_unit() {
        for (text, millis) in [
            ("0s", 0),
            ("100ms", 100),
            ("30s", 30_000),
            ("30 s", 30_000),
            ("2m", 120_000),
            ("2min", 120_000),
            ("24h", 86_400_000),
            ("7d", 7 * 86_400_000),
        ] {
            assert_eq!(parse(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in [
            "",
            "30",
            "s",
            "-1s",
            "1.5s",
            "1s 2s",
            " 1s",
            "1 w",
            "1S",
            "99999999999999999999s",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert!(parse("18446744073709551615h").is_some_and(|long| long > TEN_YEARS));
    }
}
