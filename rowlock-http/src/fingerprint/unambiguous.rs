//! What stands in a JSON text, before it becomes a [`Value`](serde_json::Value).

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

/// The field that `serde_json` takes for its own in an object: it parses the text in it as JSON, however deep that is
/// nested. So a body could use up the stack.
const RAW: &str = "$serde_json::private::RawValue";

/// JSON without [`RAW`], at most 128 levels deep. With `ONCE`, no object has a field twice.
pub(super) struct Checked<const ONCE: bool>;

/// JSON in which each field stands once.
pub(super) type Unambiguous = Checked<true>;

impl<'de, const ONCE: bool> Deserialize<'de> for Checked<ONCE> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Self)
    }
}

impl<'de, const ONCE: bool> Visitor<'de> for Checked<ONCE> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self, A::Error> {
        let mut names = HashSet::new();
        while let Some((name, Self)) = fields.next_entry::<String, Self>()? {
            if name == RAW {
                return Err(A::Error::custom(format_args!(
                    "no field may be named {RAW}"
                )));
            }
            if ONCE && !names.insert(name) {
                return Err(A::Error::custom("a field stands twice"));
            }
        }
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self, A::Error> {
        while elements.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }
}
