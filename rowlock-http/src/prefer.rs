//! How long a client says that it waits: `Prefer: wait=10` (RFC 7240, section 4.3).

use std::time::Duration;

use http::{HeaderMap, HeaderName};
use sfv::{BareItem, Dictionary, ListEntry, Parser};

const PREFER: HeaderName = HeaderName::from_static("prefer");

/// So many preferences of a line are read one by one.
const MOST: usize = 32;

/// The wait that a request prefers. A preference that is not understood is ignored, as that section says. The field is read as the Dictionary that it is
/// in practice (draft-ietf-httpbis-retrofit), its names in any case.
pub(crate) fn wait(headers: &HeaderMap) -> Option<Duration> {
    headers.get_all(PREFER).iter().find_map(|line| {
        let line = line.as_bytes().to_ascii_lowercase();
        // Of two, the first counts (section 2). In a Dictionary the last one would: so what is before it is read alone.
        let commas = (0..line.len()).filter(|at| line[*at] == b',');
        let wait = commas.take(MOST).chain([line.len()]).find_map(|end| {
            let preferences: Dictionary = Parser::new(&line[..end]).parse().ok()?;
            preferences.get("wait").cloned()
        });
        let Some(ListEntry::Item(wait)) = wait else {
            return None;
        };
        let BareItem::Integer(seconds) = wait.bare_item else {
            return None;
        };
        u64::try_from(seconds).ok().map(Duration::from_secs)
    })
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
        ] {
            assert_eq!(of(&[line]), None, "{line}");
        }
    }
}
