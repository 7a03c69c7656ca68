//! JSON without what makes no difference: white space, the order of the fields of an object, and how a character is
//! escaped.

use std::fmt::{Formatter, Write as _};

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// Below this depth a value keeps its text: the code parses a value again at each level.
const MAX_DEPTH: usize = 64;

/// The canonical text of a value.
pub(super) fn canonical(json: &[u8]) -> Result<String, serde_json::Error> {
    let value: &RawValue = serde_json::from_slice(json)?;
    let mut text = String::with_capacity(json.len());
    write(value, &mut text, 0)?;
    Ok(text)
}

/// An object with its fields in their order. A field that occurs twice stays twice.
struct Object<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<'de>, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Object(fields))
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

/// A number keeps its text: as floats, two different numbers could become equal.
fn write(value: &RawValue, text: &mut String, depth: usize) -> Result<(), serde_json::Error> {
    let raw = value.get();
    match raw.as_bytes().first() {
        Some(b'{') if depth < MAX_DEPTH => {
            let mut object: Object<'_> = serde_json::from_str(raw)?;
            // The sort is stable: fields with the same name keep their order.
            object.0.sort_by(|(one, _), (other, _)| one.cmp(other));
            text.push('{');
            for (name, value) in object.0 {
                let _ = write!(text, "{}:", Value::from(name));
                write(value, text, depth + 1)?;
                text.push(',');
            }
            text.push('}');
        }
        Some(b'[') if depth < MAX_DEPTH => {
            let values: Vec<&RawValue> = serde_json::from_str(raw)?;
            text.push('[');
            for value in values {
                write(value, text, depth + 1)?;
                text.push(',');
            }
            text.push(']');
        }
        Some(b'"') => {
            let string: String = serde_json::from_str(raw)?;
            let _ = write!(text, "{}", Value::from(string));
        }
        _ => text.push_str(raw),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> String {
        canonical(json.as_bytes()).unwrap()
    }

    #[test]
    fn layout_makes_no_difference_and_values_do() {
        let one = of(r#"{"a":{"x":[1,"\u0061"],"y":null},"b":2}"#);
        assert_eq!(
            one,
            of(r#" { "b" : 2, "a" : { "y":null, "x":[ 1, "a" ] } } "#)
        );
        for json in [
            r#"{"a":{"x":[1,"a"],"y":0},"b":2}"#,
            r#"{"a":{"x":["a",1],"y":null},"b":2}"#,
            r#"{"a":{"x":[1,"a"],"y":null}}"#,
            r#"{"b":{"x":[1,"a"],"y":null},"a":2}"#,
            r#"[{"a":{"x":[1,"a"],"y":null},"b":2}]"#,
        ] {
            assert_ne!(one, of(json), "{json}");
        }
    }

    #[test]
    fn what_a_float_would_make_one_are_two() {
        for (one, other) in [
            ("123456789012345678901", "123456789012345678902"),
            ("0.1", "0.10000000000000000001"),
            ("1", "1.0"),
            ("1", "\"1\""),
        ] {
            assert_ne!(of(one), of(other));
        }
    }

    #[test]
    fn a_field_that_stands_there_twice_is_another_value() {
        assert_ne!(of(r#"{"a":1,"a":2}"#), of(r#"{"a":2}"#));
        assert_ne!(of(r#"{"a":1,"a":2}"#), of(r#"{"a":2,"a":1}"#));
    }

    #[test]
    fn what_is_nested_deeply_keeps_its_text() {
        let nested = |inside: &str| {
            let depth = 100_000;
            of(&format!(
                "{}{inside}{}",
                "[".repeat(depth),
                "]".repeat(depth)
            ))
        };
        assert_eq!(nested("1"), nested("1"));
        assert_ne!(nested("1"), nested("2"));
    }

    #[test]
    fn what_is_no_json_is_an_error() {
        for json in ["", "{", "{\"a\":1}x", "{\"a\":\"\u{0}\"}", "nul", "{a:1}"] {
            assert!(canonical(json.as_bytes()).is_err(), "{json}");
        }
        assert!(canonical(b"\"\xff\"").is_err());
    }
}
