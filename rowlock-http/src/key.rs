//! The header field: a String of RFC 8941, or the same without quotes.

use std::convert::Infallible;

use http::{HeaderMap, HeaderName};
use sfv::visitor::{Ignored, ParameterVisitor, parameter_visitor_with};
use sfv::{BareItemFromInput, Parser, Version};

pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

const NOT_A_STRING: &str = "Send the key in double quotes (RFC 8941, section 3.3.3), like this: \
                            Idempotency-Key: \"8e03978e-40d5-43dd-bc93-6894a57f9324\".";

const NOT_A_KEY: &str = "Send the key in double quotes (RFC 8941, section 3.3.3), like this: \
                         Idempotency-Key: \"8e03978e-40d5-43dd-bc93-6894a57f9324\". Without quotes, a key has visible \
                         ASCII characters, but no quotes, commas, semicolons or backslashes.";

/// What programs send whose variable has no value. As keys they would make all such requests of a user one request.
const NO_VALUES: [&str; 5] = ["undefined", "null", "nil", "None", "NaN"];

pub(crate) const NO_VALUE: &str = "The key is the text of a missing value (undefined, null, …). Set the key in your program: a fresh one for each new request.";

pub(crate) fn is_no_value(key: &str) -> bool {
    NO_VALUES.contains(&key)
}

/// The key of a request, if it has one. The error says what is wrong with the header field, and what to send.
pub(crate) fn of(headers: &HeaderMap, strict: bool) -> Result<Option<String>, &'static str> {
    let mut lines = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(line) = lines.next() else {
        return Ok(None);
    };
    // Two lines are one list (RFC 8941, section 4.2). Two halves of a string would become one string.
    if lines.next().is_some() {
        return Err("Send the header field once, on one line.");
    }
    match parse(line.as_bytes(), strict) {
        Some(key) if key.is_empty() => Err("The key is empty. Send at least one character."),
        Some(key) if !strict && is_no_value(&key) => Err(NO_VALUE),
        Some(key) => Ok(Some(key)),
        None if strict => Err(NOT_A_STRING),
        None => Err(NOT_A_KEY),
    }
}

fn parse(value: &[u8], strict: bool) -> Option<String> {
    let parser = Parser::new(value).with_version(Version::Rfc8941);
    match parser.parse_item_with_visitor(string) {
        Ok(key) => Some(key),
        Err(_) if strict => None,
        Err(_) => bare(value),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the item is not a string")]
struct NoString;

/// The item, if it is a string. The parser checks its parameters, and ignores them.
fn string(
    item: BareItemFromInput<'_>,
) -> Result<impl ParameterVisitor<'_, Out = String>, NoString> {
    match item {
        BareItemFromInput::String(string) => {
            let key = string.as_str().to_owned();
            Ok(parameter_visitor_with(Ignored, move |()| {
                Ok::<_, Infallible>(key)
            }))
        }
        _ => Err(NoString),
    }
}

/// A key without quotes. Refuses text that may be half a string, a list or a parameter.
fn bare(value: &[u8]) -> Option<String> {
    let meant = |byte: &u8| byte.is_ascii_graphic() && !b"\"',;\\".contains(byte);
    // HTTP/1 has removed blanks around the value, HTTP/2 has not.
    let text = std::str::from_utf8(value.trim_ascii()).ok()?;
    (!text.is_empty() && text.as_bytes().iter().all(meant)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn strict(value: &[u8]) -> Option<String> {
        parse(value, true)
    }

    /// Every byte, compared with `chr` of the ABNF in RFC 8941, section 3.3.3.
    #[test]
    fn every_byte_in_a_string_is_judged_as_the_grammar_says() {
        for byte in 0..=255_u8 {
            let alone = strict(&[b'"', byte, b'"']);
            let unescaped = matches!(byte, 0x20..=0x21 | 0x23..=0x5b | 0x5d..=0x7e);
            let expected = unescaped.then(|| char::from(byte).to_string());
            assert_eq!(alone, expected, "0x{byte:02x}");
            let escaped = strict(&[b'"', b'\\', byte, b'"']);
            let expected = matches!(byte, b'"' | b'\\').then(|| char::from(byte).to_string());
            assert_eq!(escaped, expected, "\\0x{byte:02x}");
        }
    }

    #[test]
    fn what_is_no_string_is_refused() {
        let refused = [
            "",
            " ",
            "foo",
            "'foo'",
            "\"foo",
            "foo\"",
            "\"foo\\",
            "\"foo\\\"",
            "\"foo\"bar",
            "\"foo\" \"bar\"",
            "\"foo\", \"bar\"",
            "\"foo\";",
            "\"foo\";A=1",
            "\"foo\";a=@1",
            "(\"foo\")",
            "a=\"foo\"",
            "17",
            "1.5",
            "?1",
            ":Zm9v:",
            "@1659578233",
            "%\"foo\"",
            "\u{201c}foo\u{201d}",
        ];
        for value in refused {
            assert_eq!(strict(value.as_bytes()), None, "{value}");
        }
    }

    #[test]
    fn what_stands_around_a_string_is_no_part_of_it() {
        for value in [
            "\"foo\"",
            "  \"foo\"  ",
            "\"foo\";a",
            "\"foo\"; a=1;b=\"x\"",
        ] {
            assert_eq!(strict(value.as_bytes()).as_deref(), Some("foo"), "{value}");
        }
        assert_eq!(strict(br#""""#).as_deref(), Some(""));
        let escaped = strict(br#""foo \"bar\" \\""#);
        assert_eq!(escaped.as_deref(), Some(r#"foo "bar" \"#));
    }

    #[test]
    fn a_bare_key_is_taken_and_nothing_that_is_half_a_string() {
        let either = |value: &str| parse(value.as_bytes(), false);
        for value in ["foo", "8e03978e-40d5-43dd-bc93-6894a57f9324", "17", "a:b/c"] {
            assert_eq!(either(value).as_deref(), Some(value));
            assert_eq!(either(&format!("\"{value}\"")).as_deref(), Some(value));
        }
        for value in [
            "", "\"foo", "foo\"", "'foo'", "a b", "a,b", "a;b", "a\\b", "\u{fc}", "a\tb",
        ] {
            assert_eq!(either(value), None, "{value}");
        }
    }

    #[test]
    fn blanks_around_a_bare_key_are_no_part_of_it() {
        assert_eq!(parse(b" foo\t", false).as_deref(), Some("foo"));
    }

    #[test]
    fn the_text_of_a_missing_value_is_no_key() {
        for value in ["undefined", "null", "None", "\"undefined\""] {
            let mut headers = HeaderMap::new();
            headers.append(IDEMPOTENCY_KEY, HeaderValue::from_static(value));
            let refused = of(&headers, false).unwrap_err();
            assert!(refused.contains("missing value"), "{refused}");
            assert_eq!(
                of(&headers, true).is_ok(),
                value.starts_with('"'),
                "the draft allows any string"
            );
        }
    }

    #[test]
    fn two_lines_are_refused_also_when_they_make_one_string() {
        let mut headers = HeaderMap::new();
        assert_eq!(of(&headers, false), Ok(None));
        headers.append(IDEMPOTENCY_KEY, HeaderValue::from_static("\"a"));
        headers.append(IDEMPOTENCY_KEY, HeaderValue::from_static("b\""));
        assert!(of(&headers, false).is_err());
        assert!(of(&headers, true).is_err());
    }
}
