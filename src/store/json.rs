//! A batch of asks as one JSON parameter, for the engines without arrays. Names and owners are in
//! hexadecimal: bytes, whatever the connection's character set.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{ReleaseAsk, RenewAsk, TakeAsk, to_micros};
use crate::Name;

/// `[[name, owner, ttl, holder], …]`
pub(crate) fn takes<'a>(asks: impl IntoIterator<Item = &'a TakeAsk>) -> String {
    array(asks.into_iter().map(|ask| {
        json!([
            hex(&ask.name),
            ask.owner.simple().to_string(),
            to_micros(ask.ttl),
            &*ask.holder
        ])
    }))
}

/// `[[name, owner, ttl, holds or null], …]`
pub(crate) fn renewals(asks: &[RenewAsk]) -> String {
    array(asks.iter().map(|ask| {
        json!([
            hex(&ask.name),
            ask.owner.simple().to_string(),
            to_micros(ask.ttl),
            ask.holds
        ])
    }))
}

/// `[[name, owner], …]`
pub(crate) fn releases(asks: &[ReleaseAsk]) -> String {
    array(
        asks.iter()
            .map(|ask| json!([hex(&ask.name), ask.owner.simple().to_string()])),
    )
}

/// `[[name], …]`
pub(crate) fn names<'a>(names: impl IntoIterator<Item = &'a Name>) -> String {
    array(names.into_iter().map(|name| json!([hex(name)])))
}

fn array(rows: impl Iterator<Item = Value>) -> String {
    rows.collect::<Value>().to_string()
}

fn hex(name: &Name) -> String {
    name.as_bytes().iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_travels_as_its_bytes() {
        let name = Name::new("é\"1").unwrap();
        assert_eq!(names([&name]), r#"[["c3a92231"]]"#);
    }
}
