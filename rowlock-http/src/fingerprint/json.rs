//! The parts of a JSON body that count: those that paths of RFC 9535 select, or all others.

use std::collections::BTreeMap;

use rowlock::Error;
use serde_json::Value;
use serde_json::value::RawValue;
use serde_json_path::{JsonPath, PathElement};
use serde_with::de::DeserializeAsWrap;
use serde_with::{MapPreventDuplicates, Same};

/// The parts of a JSON body that count.
#[derive(Debug, Clone)]
pub(crate) struct Choice {
    paths: Vec<JsonPath>,
    which: Which,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// What the paths select.
    Only,
    /// All but what the paths select.
    Except,
}

/// The fields of an object. A field that stands there twice is an error: parsers differ in which one they take.
type Fields<'a> =
    DeserializeAsWrap<BTreeMap<String, &'a RawValue>, MapPreventDuplicates<Same, Same>>;

/// What the paths select, as a tree of the values on the way to it.
#[derive(Debug, Default)]
struct Selected {
    /// It is selected with all that is in it.
    is_whole: bool,
    fields: BTreeMap<String, Selected>,
    elements: BTreeMap<usize, Selected>,
}

impl Choice {
    pub(crate) fn of<I>(which: Which, paths: I) -> Result<Self, Error>
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        let paths = paths.into_iter();
        let paths = paths.map(|path| JsonPath::parse(path.as_ref()));
        let paths = paths.collect::<Result<_, _>>();
        let paths = paths.map_err(|_| Error::InvalidSetting {
            setting: match which {
                Which::Only => "json_only",
                Which::Except => "json_except",
            },
            reason: "one of the paths is not a JSONPath (RFC 9535), such as $.order.id or $.items[*].price",
        })?;
        Ok(Self { paths, which })
    }

    pub(crate) fn only(path: JsonPath) -> Self {
        Self {
            paths: vec![path],
            which: Which::Only,
        }
    }

    /// The JSON that counts. `None`: this is not JSON, is nested too deeply, or has an object with a field that stands there twice.
    pub(crate) fn chosen(&self, json: &[u8]) -> Option<String> {
        let raw: &RawValue = serde_json::from_slice(json).ok()?;
        let value: Value = serde_json::from_str(raw.get()).ok()?;
        let mut selected = Selected::default();
        for node in self
            .paths
            .iter()
            .flat_map(|path| path.query_located(&value))
        {
            selected.add(node.location().iter());
        }
        let mut text = String::new();
        self.write(raw, Some(&selected), &mut text)?;
        Some(text)
    }

    /// Whether a value counts, wholly or in part.
    fn counts(&self, selected: Option<&Selected>) -> bool {
        match self.which {
            Which::Only => selected.is_some(),
            Which::Except => selected.is_none_or(|selected| !selected.is_whole),
        }
    }

    /// Writes what counts of a value. A number keeps its text: as floats, two different numbers could become equal.
    fn write(&self, raw: &RawValue, selected: Option<&Selected>, text: &mut String) -> Option<()> {
        let json = raw.get();
        let inside = selected.filter(|selected| !selected.is_whole);
        match (inside, json.as_bytes().first()) {
            (Some(inside), Some(b'{')) => {
                let fields: Fields<'_> = serde_json::from_str(json).ok()?;
                text.push('{');
                let mut comma = "";
                for (name, value) in fields.into_inner() {
                    let selected = inside.fields.get(&name);
                    if self.counts(selected) {
                        text.push_str(comma);
                        text.push_str(&Value::from(name).to_string());
                        text.push(':');
                        self.write(value, selected, text)?;
                        comma = ",";
                    }
                }
                text.push('}');
            }
            (Some(inside), Some(b'[')) => {
                let elements: Vec<&RawValue> = serde_json::from_str(json).ok()?;
                text.push('[');
                let mut comma = "";
                for (index, value) in elements.into_iter().enumerate() {
                    let selected = inside.elements.get(&index);
                    if self.counts(selected) {
                        text.push_str(comma);
                        self.write(value, selected, text)?;
                        comma = ",";
                    }
                }
                text.push(']');
            }
            // Nothing of it is selected.
            (Some(_), _) if self.which == Which::Only => text.push_str("null"),
            _ => text.push_str(json),
        }
        Some(())
    }
}

impl Selected {
    fn add<'a>(&mut self, path: impl Iterator<Item = &'a PathElement<'a>>) {
        let mut at = self;
        for element in path {
            at = match element {
                PathElement::Name(name) => at.fields.entry((*name).to_owned()).or_default(),
                PathElement::Index(index) => at.elements.entry(*index).or_default(),
            };
        }
        at.is_whole = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(paths: &[&str], json: &str) -> Option<String> {
        let choice = Choice::of(Which::Only, paths).unwrap();
        choice.chosen(json.as_bytes())
    }

    fn except(paths: &[&str], json: &str) -> Option<String> {
        let choice = Choice::of(Which::Except, paths).unwrap();
        choice.chosen(json.as_bytes())
    }

    #[test]
    fn only_what_the_paths_select_counts() {
        let json = r#"{"b":2.50,"a":{"x":[{"id":1,"at":"now"},{"id":2}],"y":null},"c":3}"#;
        for (paths, chosen) in [
            (&["$.b"][..], r#"{"b":2.50}"#),
            (&["$.a.x[*].id"], r#"{"a":{"x":[{"id":1},{"id":2}]}}"#),
            (&["$.a.x[1]", "$.c"], r#"{"a":{"x":[{"id":2}]},"c":3}"#),
            (
                &["$.a", "$.a.y"],
                r#"{"a":{"x":[{"id":1,"at":"now"},{"id":2}],"y":null}}"#,
            ),
            (&["$.none"], "{}"),
            (&["$"], json),
        ] {
            assert_eq!(only(paths, json).as_deref(), Some(chosen), "{paths:?}");
        }
        assert_eq!(only(&["$.a"], "7").as_deref(), Some("null"));
        assert_eq!(
            only(&["$[*].a"], r#"[{"a":1,"b":2},3]"#).as_deref(),
            Some(r#"[{"a":1}]"#)
        );
    }

    #[test]
    fn all_but_what_the_paths_select_counts() {
        let json = r#"{"a":{"x":[{"id":1,"at":"now"},{"id":2}]},"sent":17}"#;
        for (paths, chosen) in [
            (
                &["$.sent"][..],
                r#"{"a":{"x":[{"id":1,"at":"now"},{"id":2}]}}"#,
            ),
            (&["$..at", "$.sent"], r#"{"a":{"x":[{"id":1},{"id":2}]}}"#),
            (&["$.a.x[0]"], r#"{"a":{"x":[{"id":2}]},"sent":17}"#),
            (&["$.none"], json),
        ] {
            assert_eq!(except(paths, json).as_deref(), Some(chosen), "{paths:?}");
        }
        assert_eq!(except(&["$.a"], "7").as_deref(), Some("7"));
    }

    #[test]
    fn a_number_keeps_its_text() {
        let large = r#"{"a":123456789012345678901,"b":0.10000000000000000001}"#;
        assert_eq!(only(&["$.*"], large).as_deref(), Some(large));
        assert_eq!(except(&["$.c"], large).as_deref(), Some(large));
    }

    #[test]
    fn a_body_whose_fields_are_not_certain_is_not_taken_apart() {
        for json in [
            r#"{"a":1,"a":2}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"{"x":{"a":1,"a":2}}"#,
            "",
            "{",
            "{}x",
        ] {
            assert_eq!(only(&["$.x.a"], json), None, "{json}");
            assert_eq!(except(&["$.x.a"], json), None, "{json}");
        }
        // What does not count may be uncertain.
        assert!(except(&["$.x"], r#"{"x":{"a":1,"a":2}}"#).is_some());
        assert!(only(&["$.y"], r#"{"x":{"a":1,"a":2},"y":1}"#).is_some());
    }

    #[test]
    fn what_is_nested_too_deeply_is_not_taken_apart() {
        let nested = |depth| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(only(&["$.a"], &nested(100)).is_some());
        assert_eq!(only(&["$.a"], &nested(100_000)), None);
    }

    #[test]
    fn what_is_no_path_is_an_error() {
        for path in ["", "a.b", "$.", "$.a[", "$[?@.a ==]"] {
            let choice = Choice::of(Which::Only, [path]);
            assert!(choice.is_err(), "{path}");
        }
    }
}
