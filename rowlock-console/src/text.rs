//! What others have written, as HTML: names, holders, keys, messages; and times.
//!
//! maud escapes what HTML would obey. Here, characters that a reader cannot see, or that turn the direction of others,
//! become escapes of their own, and each text is isolated from the text around it (`bdi`). So two texts that differ in
//! what cannot be seen look different, too.

use std::iter;
use std::time::Duration;

use chrono::{DateTime, Utc};
use icu_properties::props::{DefaultIgnorableCodePoint, GeneralCategory, GeneralCategoryGroup};
use icu_properties::{CodePointMapData, CodePointSetData};
use maud::{Markup, html};

/// The most characters of one text on a page.
const SHOWN: usize = 4_096;

/// A text that somebody has chosen.
pub(crate) fn text(text: &str) -> Markup {
    begin(text, text.len())
}

/// The begin of a text that has `size` bytes.
fn begin(text: &str, size: usize) -> Markup {
    let cut = text.char_indices().nth(SHOWN).map(|(at, _)| at);
    let shown = &text[..cut.unwrap_or(text.len())];
    let before = iter::once(' ').chain(shown.chars());
    html! {
        bdi {
            @for ((at, c), before) in shown.char_indices().zip(before) {
                @if c == ' ' && (before == ' ' || at + 1 == size) {
                    // A browser shows no space at the begin and the end of a text, and two as one.
                    span.escape { (c.escape_unicode()) }
                } @else if is_hidden(c) {
                    span.escape { (c.escape_default()) }
                } @else {
                    (c)
                }
            }
        }
        @if cut.is_some() || size > text.len() { " … (" (size) " bytes)" }
    }
}

/// A text that somebody has chosen, where HTML has room for a text only: in the title of a page.
pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::new();
    for c in text.chars() {
        if is_hidden(c) {
            plain.extend(c.escape_default());
        } else {
            plain.push(c);
        }
    }
    plain
}

/// Bytes that somebody has chosen: as text if they are text, otherwise in hexadecimal.
pub(crate) fn bytes(bytes: &[u8]) -> Markup {
    part(bytes, bytes.len())
}

/// The bytes that [`part`] needs.
pub(crate) const PART: u32 = 16_384;

/// [`bytes`] of which only the first ones are there, of `size`.
pub(crate) fn part(bytes: &[u8], size: usize) -> Markup {
    let readable = match std::str::from_utf8(bytes) {
        Ok(readable) => Some(readable),
        // Cut in the middle of a character.
        Err(error) if error.error_len().is_none() && size > bytes.len() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).ok()
        }
        Err(_) => None,
    };
    if let Some(readable) = readable {
        return begin(readable, size);
    }
    html! {
        span.escape title="in hexadecimal" { "0x" (hex::encode(&bytes[..bytes.len().min(SHOWN)])) }
        @if size > SHOWN { " … (" (size) " bytes)" }
    }
}

/// What has no picture of its own: all that is neither a letter, a mark, a number, punctuation nor a symbol, except
/// the space; what Unicode lets a font leave out (UAX #44, `Default_Ignorable_Code_Point`); and symbols that are
/// blank.
fn is_hidden(c: char) -> bool {
    if matches!(c, ' '..='~') {
        return false;
    }
    let category = CodePointMapData::<GeneralCategory>::new().get(c);
    let is_blank = matches!(c, '\u{2800}' | '\u{16fe4}' | '\u{1d159}');
    is_blank
        || GeneralCategoryGroup::Other.contains(category)
        || GeneralCategoryGroup::Separator.contains(category)
        || CodePointSetData::new::<DefaultIgnorableCodePoint>().contains(c)
}

/// Such bytes where HTML has room for a text only.
pub(crate) fn plain_bytes(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => plain(text),
        Err(_) => format!("0x{}", hex::encode(bytes)),
    }
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
    fn what_cannot_be_seen_is_escaped() {
        for hidden in [
            "\u{34f}",
            "\u{17b4}",
            "\u{fe0f}",
            "\u{e0100}",
            "\u{2800}",
            "\u{3164}",
            "\u{115f}",
            "\u{ffa0}",
            "\u{a0}",
            "\u{2003}",
            "\u{3000}",
            "\u{200d}",
            "\u{180e}",
            "\u{206f}",
            "\u{e000}",
            "\u{fffe}",
            "\u{10ffff}",
            "\u{85}",
            "\u{2028}",
            "\u{1d159}",
        ] {
            let shown = text(&format!("a{hidden}b")).into_string();
            let escape = hidden.escape_default();
            let expected = format!("<bdi>a<span class=\"escape\">{escape}</span>b</bdi>");
            assert_eq!(shown, expected);
        }
        for seen in ["a b", "日本語", "é\u{301}", "हिन्दी", "→🔒©", "~!@", "ﷺ"]
        {
            assert_eq!(text(seen).into_string(), format!("<bdi>{seen}</bdi>"));
        }
    }

    #[test]
    fn a_space_that_a_browser_would_drop_is_escaped() {
        let space = "<span class=\"escape\">\\u{20}</span>";
        for (name, shown) in [
            ("a b", "a b".to_owned()),
            ("a  b", format!("a {space}b")),
            (" a ", format!("{space}a{space}")),
            ("  ", format!("{space}{space}")),
        ] {
            assert_eq!(text(name).into_string(), format!("<bdi>{shown}</bdi>"));
        }
        // A text that goes on after the cut does not end there.
        let cut = text(&format!("{} a", "é".repeat(SHOWN - 1))).into_string();
        assert!(!cut.contains("escape"), "{cut}");
    }

    #[test]
    fn the_begin_of_a_text_is_shown_as_the_whole_one() {
        for whole in [
            "é".repeat(10 * SHOWN),
            "🔒".repeat(2 * SHOWN),
            format!("x{}", "🔒".repeat(2 * SHOWN)),
        ] {
            let whole = whole.as_bytes();
            let most = PART as usize;
            let shown = part(&whole[..whole.len().min(most)], whole.len());
            assert_eq!(shown.into_string(), bytes(whole).into_string());
        }
        let no_text = vec![0xff; 5 * SHOWN];
        let shown = part(&no_text[..PART as usize], no_text.len());
        assert_eq!(shown.into_string(), bytes(&no_text).into_string());
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
