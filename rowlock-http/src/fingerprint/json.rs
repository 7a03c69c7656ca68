//! The parts of a JSON body that count: those that paths of RFC 9535 select, or all others.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::ptr;
use std::sync::Arc;

use rowlock::{Error, InvalidError};
use serde_json::Value;
use serde_json::value::RawValue;
use serde_with::de::DeserializeAsWrap;
use serde_with::{MapPreventDuplicates, Same};

use super::path::{Path, Size, inside};
use super::unambiguous::{Checked, Unambiguous};

/// The parts of a JSON body that count. Cloning is cheap.
#[derive(Debug, Clone)]
pub(crate) struct Choice {
    paths: Arc<[Path]>,
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

/// What the paths select in a body.
#[derive(Debug)]
pub(crate) struct Chosen<'a> {
    /// The values, each as often as the paths select it.
    pub(crate) values: Vec<&'a Value>,
    /// The JSON that counts.
    pub(crate) text: String,
}

/// The selected values by their addresses: a body may have many, at long paths.
#[derive(Debug, Default)]
struct Selected {
    /// With all that is in them.
    whole: HashSet<*const Value>,
    /// Something in them.
    partly: HashSet<*const Value>,
}

impl Choice {
    pub(crate) fn of<I>(which: Which, paths: I) -> Result<Self, Error>
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        let paths = paths.into_iter();
        let paths = paths.map(|path| Path::new(path.as_ref()));
        let paths = paths.collect::<Result<_, _>>();
        let paths = paths.map_err(|_| Error::Invalid(InvalidError::Setting {
            setting: match which {
                Which::Only => "json_only",
                Which::Except => "json_except",
            },
            reason: "one of the paths is not a JSONPath (RFC 9535), such as $.order.id or $.items[*].price",
        }))?;
        Ok(Self { paths, which })
    }

    /// What one path selects.
    pub(crate) fn at(path: &str) -> Result<Self, Error> {
        let path = Path::new(path).map_err(|_| {
            Error::Invalid(InvalidError::Setting {
                setting: "key_in_json",
                reason: "it is not a JSONPath (RFC 9535), such as $.id",
            })
        })?;
        Ok(Self {
            paths: [path].into(),
            which: Which::Only,
        })
    }

    /// The JSON that counts. `None`: all bytes count, because the paths select nothing, or the body cannot be [taken
    /// apart](Self::select).
    pub(crate) fn chosen(&self, json: &[u8]) -> Option<String> {
        let value = parse(json).ok()?;
        let chosen = self.select(json, &value)?;
        // A path that is wrong would make all requests one.
        let counts = self.which == Which::Except || !chosen.values.is_empty();
        counts.then_some(chosen.text)
    }

    /// Selects in `value`, which is `json`. `None`: `json` has an object with a field that stands there twice, or
    /// would take the paths too many steps.
    pub(crate) fn select<'a>(&self, json: &[u8], value: &'a Value) -> Option<Chosen<'a>> {
        let raw: &RawValue = serde_json::from_slice(json).ok()?;
        let size = Size::of(value, json.len());
        if !self.paths.iter().all(|path| path.is_bounded_in(size)) {
            return None;
        }
        let values = self.paths.iter().flat_map(|path| path.query(value));
        let values: Vec<_> = values.collect();
        let mut selected = Selected {
            whole: values.iter().map(|value| ptr::from_ref(*value)).collect(),
            partly: HashSet::new(),
        };
        selected.look_through(value);
        selected.partly.insert(ptr::from_ref(value));
        if values.is_empty() && self.which == Which::Only {
            // A field that stands there twice may hide what the paths would select.
            serde_json::from_slice::<Unambiguous>(json).ok()?;
        }
        let mut text = String::new();
        self.write(raw, value, &selected, &mut text)?;
        Some(Chosen { values, text })
    }

    /// Whether a value counts, wholly or in part.
    fn counts(&self, value: &Value, selected: &Selected) -> bool {
        match self.which {
            Which::Only => selected.is_whole(value) || selected.is_partly(value),
            Which::Except => !selected.is_whole(value),
        }
    }

    /// Writes what counts of a value. A number keeps its text: as floats, two different numbers could become equal.
    fn write(
        &self,
        raw: &RawValue,
        value: &Value,
        selected: &Selected,
        text: &mut String,
    ) -> Option<()> {
        let is_apart = selected.is_partly(value) && !selected.is_whole(value);
        match value {
            Value::Object(values) if is_apart => {
                let fields: Fields<'_> = serde_json::from_str(raw.get()).ok()?;
                text.push('{');
                let mut comma = "";
                for (name, raw) in fields.into_inner() {
                    let value = values.get(&name)?;
                    if self.counts(value, selected) {
                        text.push_str(comma);
                        text.push_str(&Value::from(name).to_string());
                        text.push(':');
                        self.write(raw, value, selected, text)?;
                        comma = ",";
                    }
                }
                text.push('}');
            }
            Value::Array(values) if is_apart => {
                let elements: Vec<&RawValue> = serde_json::from_str(raw.get()).ok()?;
                text.push('[');
                let mut comma = "";
                for (raw, value) in elements.into_iter().zip(values) {
                    if self.counts(value, selected) {
                        text.push_str(comma);
                        self.write(raw, value, selected, text)?;
                        comma = ",";
                    }
                }
                text.push(']');
            }
            _ => text.push_str(raw.get()),
        }
        Some(())
    }
}

/// The paths.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths: Vec<_> = self.paths.iter().map(ToString::to_string).collect();
        f.write_str(&paths.join(", "))
    }
}

/// The error: this is not JSON, or is nested more than 128 levels deep, also in what `serde_json` would parse anew.
pub(crate) fn parse(json: &[u8]) -> Result<Value, serde_json::Error> {
    serde_json::from_slice::<Checked<false>>(json)?;
    serde_json::from_slice(json)
}

impl Selected {
    /// Notes the values in which something is selected. Returns whether this one is, or has, such a value.
    fn look_through(&mut self, value: &Value) -> bool {
        let mut has = false;
        for inner in inside(value) {
            has |= self.look_through(inner);
        }
        if has {
            self.partly.insert(ptr::from_ref(value));
        }
        has || self.is_whole(value)
    }

    fn is_whole(&self, value: &Value) -> bool {
        self.whole.contains(&ptr::from_ref(value))
    }

    fn is_partly(&self, value: &Value) -> bool {
        self.partly.contains(&ptr::from_ref(value))
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
            (&["$"], json),
        ] {
            assert_eq!(only(paths, json).as_deref(), Some(chosen), "{paths:?}");
        }
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

    /// `serde_json` parses the text in a field of this name anew, with another 128 levels: the stack would end.
    #[test]
    fn text_that_would_be_parsed_anew_is_not_taken_apart() {
        let mut body = String::from("1");
        for _ in 0..300 {
            let text = body.replace('\\', "\\u005c").replace('"', "\\u0022");
            let (opens, closes) = ("[".repeat(125), "]".repeat(125));
            body = format!(r#"{opens}{{"$serde_json::private::RawValue":"{text}"}}{closes}"#);
            if body.len() > 1 << 20 {
                break;
            }
        }
        let escaped = r#"{"a":{"\u0024serde_json::private::RawValue":"[1]"}}"#;
        for body in [&format!(r#"{{"a":{body}}}"#), escaped] {
            assert_eq!(only(&["$.a"], body), None);
            assert_eq!(except(&["$.b"], body), None);
            assert!(parse(body.as_bytes()).is_err());
        }
    }

    #[test]
    fn what_is_no_path_is_an_error() {
        for path in ["", "a.b", "$.", "$.a[", "$[?@.a ==]"] {
            let choice = Choice::of(Which::Only, [path]);
            assert!(choice.is_err(), "{path}");
        }
    }

    #[test]
    fn paths_that_select_nothing_choose_nothing() {
        for json in ["{}", "7", "[]", r#"{"b":1,"c":{"A":2}}"#] {
            assert_eq!(only(&["$.a", "$.c.a"], json), None, "{json}");
        }
        assert_eq!(
            only(&["$.a"], r#"{"a":null}"#).as_deref(),
            Some(r#"{"a":null}"#)
        );
    }

    /// Each of these would take minutes, and gigabytes of memory.
    #[test]
    fn a_body_that_would_take_too_many_steps_is_not_taken_apart() {
        let nested = |n: usize, opens: &str, end: &str, closes: &str| {
            let one = format!("{}{end}{}", opens.repeat(n), closes.repeat(n));
            let many = vec![&*one; (1 << 20) / one.len()];
            format!("[{}]", many.join(","))
        };
        let deep = nested(120, r#"{"a":"#, r#"{"at":1}"#, "}");
        let lists = nested(120, "[", "1", "]");
        let wide = nested(1, "[", "1", "]");
        for (path, body) in [
            ("$..at", &deep),
            ("$..a..at", &deep),
            ("$..*", &lists),
            ("$..*..*..*", &lists),
            ("$..[?@..a]", &deep),
            ("$[?@[0] == $[1][0]]", &wide),
            ("$[?count($..*) > 1]", &wide),
        ] {
            for chosen in [only(&[path], body), except(&[path], body)] {
                assert_eq!(chosen, None, "{path}");
            }
        }
        // An honest body of that size, and small ones.
        let items = vec![r#"{"sku":"a-17","count":2,"trace":{"at":17,"by":"x"}}"#; 19_000];
        let items = format!(r#"{{"items":[{}]}}"#, items.join(","));
        for path in [
            "$..at",
            "$.items[?@.count > 1].sku",
            "$['a..b','$','at'].x",
            "$..trace..at",
        ] {
            assert!(except(&[path], &items).is_some(), "{path}");
        }
        let small = r#"{"a":{"a":{"at":1,"b":[1,2]}},"x":2}"#;
        for path in ["$..a..at", "$..*..*..*", "$..[?@.at == $.a.a.at]"] {
            assert!(except(&[path], small).is_some(), "{path}");
        }
    }
}
