//! What others have written, as HTML: names, holders, keys, messages; and times.
//!
//! maud escapes what HTML would obey. Here, characters that a reader cannot see, or that turn the direction of others,
//! become escapes of their own, and each text is isolated from the text around it (`bdi`).

use std::time::Duration;

use chrono::{DateTime, Utc};
use maud::{Markup, html};

/// The most characters of one text on a page.
const SHOWN: usize = 4_096;

/// A text that somebody has chosen.
pub(crate) fn text(text: &str) -> Markup {
    let cut = text.char_indices().nth(SHOWN).map(|(at, _)| at);
    let shown = &text[..cut.unwrap_or(text.len())];
    html! {
        bdi {
            @for part in shown.split_inclusive(is_escaped) {
                @let last = part.chars().next_back().filter(|last| is_escaped(*last));
                (part[..part.len() - last.map_or(0, char::len_utf8)])
                @if let Some(last) = last {
                    span.escape { (last.escape_default()) }
                }
            }
        }
        @if cut.is_some() { " … (" (text.len()) " bytes)" }
    }
}

/// A text that somebody has chosen, where HTML has room for a text only: in the title of a page.
pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::new();
    for c in text.chars() {
        if is_escaped(c) {
            plain.extend(c.escape_default());
        } else {
            plain.push(c);
        }
    }
    plain
}

/// Bytes that somebody has chosen: as text if they are text, otherwise in hexadecimal.
pub(crate) fn bytes(bytes: &[u8]) -> Markup {
    if let Ok(readable) = std::str::from_utf8(bytes) {
        return text(readable);
    }
    html! {
        span.escape title="in hexadecimal" { "0x" (hex::encode(&bytes[..bytes.len().min(SHOWN)])) }
        @if bytes.len() > SHOWN { " … (" (bytes.len()) " bytes)" }
    }
}

/// Such bytes where HTML has room for a text only.
pub(crate) fn plain_bytes(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => plain(text),
        Err(_) => format!("0x{}", hex::encode(bytes)),
    }
}

/// Control characters, ends of lines, marks that turn the direction of letters, and characters without a width.
fn is_escaped(c: char) -> bool {
    let is_hidden = matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    c.is_control() || is_hidden
}

/// A duration in whole seconds: its two largest units.
pub(crate) fn span(span: Duration) -> String {
    let all = humantime::format_duration(Duration::from_secs(span.as_secs())).to_string();
    let units: Vec<&str> = all.split(' ').take(2).collect();
    units.join(" ")
}

/// A duration, to the millisecond while it is short.
pub(crate) fn took(took: Duration) -> String {
    if took >= Duration::from_secs(10) {
        return span(took);
    }
    let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    humantime::format_duration(Duration::from_millis(millis)).to_string()
}

/// A time of the database's clock.
pub(crate) fn time(at: DateTime<Utc>) -> Markup {
    html! {
        time datetime=(at.format("%FT%TZ")) { (at.format("%F %T UTC")) }
    }
}

/// The time between two times of the database's clock, none if they are the other way round.
pub(crate) fn between(from: DateTime<Utc>, until: DateTime<Utc>) -> Duration {
    (until - from).to_std().unwrap_or_default()
}

/// A text as a sentence: with a mark at its end.
pub(crate) fn sentence(text: &str) -> String {
    let end = if text.ends_with(['.', '!', '?']) {
        ""
    } else {
        "."
    };
    format!("{text}{end}")
}

/// `1 lock`, `2 locks`.
pub(crate) fn count(number: u64, one: &str, more: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        number => format!("{number} {more}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_page_would_obey_is_text() {
        let shown = text("<b>&\"'</b>\n\u{202e}é").into_string();
        let escaped = |c| format!("<span class=\"escape\">{c}</span>");
        assert_eq!(
            shown,
            format!(
                "<bdi>&lt;b&gt;&amp;&quot;'&lt;/b&gt;{}{}é</bdi>",
                escaped("\\n"),
                escaped("\\u{202e}")
            )
        );
        assert_eq!(text("").into_string(), "<bdi></bdi>");
        assert!(bytes(b"a\xff").into_string().contains("0x61ff"));
        let long = text(&"é".repeat(SHOWN + 1)).into_string();
        assert!(
            long.contains(&format!("({} bytes)", 2 * (SHOWN + 1))),
            "{long}"
        );
    }

    #[test]
    fn durations_are_read_by_people() {
        assert_eq!(span(Duration::from_millis(200_900)), "3m 20s");
        assert_eq!(span(Duration::from_secs(93_599)), "1day 1h");
        assert_eq!(sentence("Is it so?"), "Is it so?");
        assert_eq!(sentence("It is"), "It is.");
        assert_eq!(took(Duration::from_micros(12_900)), "12ms");
        assert_eq!(took(Duration::from_millis(61_500)), "1m 1s");
        assert_eq!(count(1, "lock", "locks"), "1 lock");
        assert_eq!(count(0, "lock", "locks"), "0 locks");
    }
}
