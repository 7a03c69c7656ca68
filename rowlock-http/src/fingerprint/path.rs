//! A path of RFC 9535, and how many steps it takes in a body.

use std::fmt;

use serde_json::Value;
use serde_json_path::{JsonPath, ParseError};

/// How many steps the paths may take for each byte of a body, and how many they may take in any body. RFC 9535,
/// section 4.1: a request could make a path of several descendants take time and memory without a limit.
const STEPS_PER_BYTE: u64 = 8;
const STEPS: u64 = 1 << 16;

#[derive(Debug)]
pub(super) struct Path {
    query: JsonPath,
    /// How many of its segments visit all descendants.
    descendants: u32,
    /// How many queries inside of filters begin at the root.
    from_root: u32,
}

impl Path {
    pub(super) fn new(path: &str) -> Result<Self, ParseError> {
        let text = without_strings(path);
        let count = |part: &str| u32::try_from(text.matches(part).count()).unwrap_or(u32::MAX);
        Ok(Self {
            descendants: count(".."),
            from_root: count("$").saturating_sub(1),
            query: JsonPath::parse(path)?,
        })
    }

    pub(super) fn query<'a>(&self, value: &'a Value) -> impl Iterator<Item = &'a Value> {
        self.query.query(value).all().into_iter()
    }

    /// Whether the body can be queried in time and memory in proportion to it.
    pub(super) fn is_bounded_in(&self, size: Size) -> bool {
        let limit = STEPS.max(STEPS_PER_BYTE.saturating_mul(size.bytes));
        self.steps(size) <= limit
    }

    /// At most so many values it visits: each descendant segment may visit a value once for each value around it, and
    /// a query from the root visits all, for each value that is tested.
    fn steps(&self, size: Size) -> u64 {
        let around = size.depth.saturating_pow(self.descendants);
        let again = size.values.saturating_pow(self.from_root);
        size.values.saturating_mul(around).saturating_mul(again)
    }
}

/// A path without what stands in quotes.
fn without_strings(path: &str) -> String {
    let (mut rest, mut quote, mut is_escaped) = (String::new(), None, false);
    for char in path.chars() {
        match quote {
            None if matches!(char, '\'' | '"') => quote = Some(char),
            None => rest.push(char),
            Some(_) if is_escaped => is_escaped = false,
            Some(_) if char == '\\' => is_escaped = true,
            Some(end) if char == end => quote = None,
            Some(_) => {}
        }
    }
    rest
}

/// How large a body is, how many values it has, and how deep they are nested.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    bytes: u64,
    values: u64,
    depth: u64,
}

impl Size {
    pub(super) fn of(value: &Value, bytes: usize) -> Self {
        let mut size = Self {
            bytes: bytes as u64,
            values: 0,
            depth: 0,
        };
        size.count(value, 1);
        size
    }

    fn count(&mut self, value: &Value, depth: u64) {
        self.values += 1;
        self.depth = self.depth.max(depth);
        for inner in inside(value) {
            self.count(inner, depth + 1);
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.query.fmt(f)
    }
}

/// The values that stand in this one.
pub(super) fn inside(value: &Value) -> impl Iterator<Item = &Value> {
    let elements = value.as_array().into_iter().flatten();
    let fields = value.as_object().into_iter().flat_map(|map| map.values());
    elements.chain(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_quotes_is_no_query() {
        for (path, descendants, from_root) in [
            ("$.a", 0, 0),
            ("$..a..b", 2, 0),
            (r"$['..', '$', 'it\'s ..$']", 0, 0),
            (r#"$[?@["$.."] == "$..\"$"]..x"#, 1, 0),
            ("$[?@..a && $..c || @.x == $.b]", 2, 2),
        ] {
            let path = Path::new(path).unwrap_or_else(|error| panic!("{path}: {error}"));
            assert_eq!(
                (path.descendants, path.from_root),
                (descendants, from_root),
                "{path:?}"
            );
        }
    }
}
