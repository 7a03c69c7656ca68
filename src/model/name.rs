//! Validated lock names.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use uuid::Uuid;

use super::InvalidError;

/// The longest name, in bytes.
const MAX_BYTES: usize = 255;

/// The name of a lock: 1 to 255 bytes of UTF-8 without NUL.
///
/// Names are compared byte by byte on every engine: `Order1`, `order1` and `order1 ` (with a
/// trailing space) are three names. Cloning is cheap.
///
/// ```
/// use rowlock::Name;
///
/// let name: Name = "order:4711".parse()?;
/// assert_eq!(name.as_str(), "order:4711");
/// assert!("".parse::<Name>().is_err());
/// # Ok::<(), rowlock::InvalidError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// Checks `name`.
    ///
    /// # Errors
    ///
    /// [`InvalidError`] when `name` is empty, longer than 255 bytes, or contains a NUL.
    pub fn new(name: &str) -> Result<Self, InvalidError> {
        let reason = if name.is_empty() {
            "it is empty"
        } else if name.len() > MAX_BYTES {
            "it is longer than 255 bytes"
        } else if name.contains('\0') {
            "it contains a NUL character"
        } else {
            return Ok(Self(name.into()));
        };
        Err(InvalidError::Name {
            name: shorten(name),
            reason,
        })
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // The name of a permit is not for callers.
        self.0.split('\0').next().unwrap_or_default()
    }

    /// The names of rows, as the tables have them. What is no name is left out.
    pub(crate) fn all_of(rows: &[Vec<u8>]) -> Vec<Self> {
        let names = rows.iter().map(|bytes| Self::from_bytes(bytes));
        names.flatten().collect()
    }

    /// A name that was read from the table. `None` when rowlock cannot have written it.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let Some((lock, grant_id)) = text.split_once('\0') else {
            return Self::new(text).ok();
        };
        let name = Self::new(lock)
            .ok()?
            .permit(Uuid::try_parse(grant_id).ok()?);
        (name.as_bytes() == bytes).then_some(name)
    }

    /// The name of a permit of this lock's.
    pub(crate) fn permit(&self, grant_id: Uuid) -> Self {
        Self(format!("{self}\0{}", grant_id.simple()).into())
    }

    /// The name of the lock, if this is the name of a permit.
    pub(crate) fn of_permit(&self) -> Option<Self> {
        let (lock, _) = self.0.split_once('\0')?;
        Some(Self(lock.into()))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// At most 40 characters of `name`, so that a message stays readable.
fn shorten(name: &str) -> String {
    let mut short: String = name.chars().take(40).collect();
    if short.len() < name.len() {
        short.push('…');
    }
    short
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Name {
    type Err = InvalidError;

    fn from_str(name: &str) -> Result<Self, InvalidError> {
        Self::new(name)
    }
}

impl TryFrom<&str> for Name {
    type Error = InvalidError;

    fn try_from(name: &str) -> Result<Self, InvalidError> {
        Self::new(name)
    }
}

impl TryFrom<&String> for Name {
    type Error = InvalidError;

    fn try_from(name: &String) -> Result<Self, InvalidError> {
        Self::new(name)
    }
}

impl TryFrom<String> for Name {
    type Error = InvalidError;

    fn try_from(name: String) -> Result<Self, InvalidError> {
        Self::new(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_are_1_and_255_bytes() {
        assert!(Name::new("a").is_ok());
        assert!(Name::new(&"é".repeat(127)).is_ok());
        assert!(Name::new(&"x".repeat(255)).is_ok());
        assert!(Name::new("").is_err());
        assert!(Name::new(&"x".repeat(256)).is_err());
        assert!(Name::new(&"é".repeat(128)).is_err());
        assert!(Name::new("a\0b").is_err());
    }

    #[test]
    fn a_refusal_names_the_start_of_the_name_and_the_reason() {
        let message = Name::new(&"é".repeat(200)).unwrap_err().to_string();
        assert!(message.contains("longer than 255 bytes"), "{message}");
        assert!(
            message.contains(&format!("{}…", "é".repeat(40))),
            "{message}"
        );
    }

    #[test]
    fn bytes_that_rowlock_never_wrote_are_no_name() {
        assert_eq!(Name::from_bytes(b"\xff"), None);
        assert_eq!(Name::from_bytes(b""), None);
        assert_eq!(Name::from_bytes(b"ok").unwrap().as_str(), "ok");
    }
}
