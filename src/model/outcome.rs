//! What a request came to, as bytes that can be kept.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Error;

/// The longest content type, in bytes.
const MAX_CONTENT_TYPE: usize = 255;

/// What a request came to: bytes and a content type, kept and given back byte for byte. Cloning is cheap.
///
/// ```
/// use rowlock::Outcome;
///
/// let outcome = Outcome::json(&("captured", 500))?;
/// assert_eq!(outcome.content_type(), "application/json");
/// let (status, cents): (String, u32) = outcome.parse_json()?;
/// assert_eq!((status.as_str(), cents), ("captured", 500));
/// # Ok::<(), rowlock::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    content_type: Arc<str>,
    bytes: Arc<[u8]>,
}

impl Outcome {
    /// Bytes of a type: 1 to 255 characters of ASCII.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidSetting`] for another type.
    pub fn new(content_type: &str, bytes: impl Into<Vec<u8>>) -> Result<Self, Error> {
        let printable = content_type.bytes().all(|b| (b' '..=b'~').contains(&b));
        if content_type.is_empty() || content_type.len() > MAX_CONTENT_TYPE || !printable {
            return Err(Error::InvalidSetting {
                setting: "content_type",
                reason: "1 to 255 printable characters of ASCII are allowed",
            });
        }
        let bytes: Vec<u8> = bytes.into();
        Ok(Self::kept(content_type, bytes))
    }

    /// A value as JSON.
    ///
    /// # Errors
    ///
    /// [`Error::Json`] when it cannot be said in JSON.
    pub fn json(value: &impl Serialize) -> Result<Self, Error> {
        let bytes = serde_json::to_vec(value).map_err(|error| json_error(&error))?;
        Ok(Self::kept("application/json", bytes))
    }

    /// Nothing at all: where it is enough that it happened.
    #[must_use]
    pub fn empty() -> Self {
        Self::kept("application/octet-stream", Vec::new())
    }

    /// What was read from the table.
    pub(crate) fn kept(content_type: &str, bytes: impl Into<Arc<[u8]>>) -> Self {
        Self {
            content_type: content_type.into(),
            bytes: bytes.into(),
        }
    }

    /// The type of the bytes.
    #[must_use]
    pub fn content_type(&self) -> &str {
        &self.content_type
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The value that was kept as JSON.
    ///
    /// # Errors
    ///
    /// [`Error::Json`] when these bytes are not such a value.
    pub fn parse_json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.bytes).map_err(|error| json_error(&error))
    }
}

fn json_error(error: &serde_json::Error) -> Error {
    Error::Json {
        detail: error.to_string(),
    }
}

/// The type and the length: what is in it may be nobody's business.
impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Outcome({}, {} bytes)",
            self.content_type,
            self.bytes.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_shown_without_what_is_in_it() {
        let outcome = Outcome::new("text/plain", "secret").unwrap();
        assert_eq!(format!("{outcome:?}"), "Outcome(text/plain, 6 bytes)");
    }
}
