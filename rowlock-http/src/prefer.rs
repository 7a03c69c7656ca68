//! How long a client says that it waits: `Prefer: wait=10` (RFC 7240, section 4.3).

use std::time::Duration;

use http::{HeaderMap, HeaderName};

const PREFER: HeaderName = HeaderName::from_static("prefer");

/// The wait that a request prefers. A preference that is not understood is ignored. Of two, the first counts (section
/// 2).
pub(crate) fn wait(headers: &HeaderMap) -> Option<Duration> {
    let mut lines = headers.get_all(PREFER).iter();
    let seconds = lines.find_map(|line| preferences(line.as_bytes()).find_map(of_wait))?;
    let is_number = seconds.iter().all(u8::is_ascii_digit);
    let seconds = std::str::from_utf8(seconds).ok().filter(|_| is_number)?;
    seconds.parse().ok().map(Duration::from_secs)
}

/// The parts between commas. A comma in quotes is text.
fn preferences(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    line.split(move |byte| {
        let was_escaped = std::mem::take(&mut is_escaped);
        match byte {
            b'"' if !was_escaped => is_quoted = !is_quoted,
            b'\\' if is_quoted => is_escaped = !was_escaped,
            _ => {}
        }
        *byte == b',' && !is_quoted
    })
}

/// The value of `wait`, without parameters.
fn of_wait(preference: &[u8]) -> Option<&[u8]> {
    let preference = preference.split(|byte| *byte == b';').next()?;
    let mut parts = preference.splitn(2, |byte| *byte == b'=');
    let is_wait = parts.next()?.trim_ascii().eq_ignore_ascii_case(b"wait");
    is_wait.then(|| parts.next().unwrap_or_default().trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[&str]) -> Option<u64> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(PREFER, line.parse().unwrap());
        }
        wait(&headers).map(|wait| wait.as_secs())
    }

    #[test]
    fn a_wait_is_found_among_other_preferences() {
        for lines in [
            &["wait=10"][..],
            &["respond-async, wait=10"],
            &["respond-async", "Wait=10"],
            &["handling=lenient; foo=\"bar\", wait=10;x"],
            &["what is this", "wait=10"],
            &["wait=10", "wait=20"],
            &["wait=10, wait=20"],
            &["foo=\"a, wait=20\", wait=10, wait=30"],
            &["foo=\"a\\\", wait=20\", wait=10"],
            &["wait = 10"],
            &["WAIT=10 ; wait=20"],
            &["respond-async; wait=20, wait=10"],
            // No value of a Dictionary.
            &["depth=5x, @, wait=10"],
        ] {
            assert_eq!(of(lines), Some(10), "{lines:?}");
        }
        assert_eq!(of(&["wait=0"]), Some(0));
    }

    #[test]
    fn what_is_no_wait_is_ignored() {
        for line in [
            "",
            "wait",
            "wait=-1",
            "wait=1.5",
            "wait=\"10\"",
            "wait=ten",
            "respond-async",
            "wait=+10",
            "wait=x, wait=10",
            "foo=\"open, wait=10",
            "await=10",
        ] {
            assert_eq!(of(&[line]), None, "{line}");
        }
    }
}
