//! The outcome of a request, as bytes that rowlock keeps.

use crate::model::RecordError;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Error, InvalidError, finite};

/// The longest content type, in bytes.
const MAX_CONTENT_TYPE: usize = 255;

/// The outcome of a request: bytes and a content type. rowlock keeps them and replays them byte for byte. Cloning is
/// cheap.
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
    /// Bytes with a content type of 1 to 255 printable ASCII characters.
    ///
    /// # Errors
    ///
    /// [`InvalidError::Setting`] for any other content type.
    pub fn new(content_type: &str, bytes: impl Into<Vec<u8>>) -> Result<Self, Error> {
        let printable = content_type.bytes().all(|b| (b' '..=b'~').contains(&b));
        if content_type.is_empty() || content_type.len() > MAX_CONTENT_TYPE || !printable {
            return Err(Error::Invalid(InvalidError::Setting {
                setting: "content_type",
                reason: "1 to 255 printable ASCII characters are allowed",
            }));
        }
        let bytes: Vec<u8> = bytes.into();
        Ok(Self::kept(content_type, bytes))
    }

    /// A value as JSON.
    ///
    /// # Errors
    ///
    /// [`RecordError::Json`] when JSON cannot represent the value: a map whose keys are no texts, NaN, infinity.
    pub fn json(value: &impl Serialize) -> Result<Self, Error> {
        finite::check(value).map_err(|error| json_error(&error))?;
        let bytes = serde_json::to_vec(value).map_err(|error| json_error(&error))?;
        Ok(Self::kept("application/json", bytes))
    }

    /// As [`json`](Self::json). The error says whose result it is, and that the work is done.
    pub(crate) fn json_of(value: &impl Serialize, of: impl fmt::Display) -> Result<Self, Error> {
        Self::json(value).map_err(|error| match error {
            Error::Record(RecordError::Json { detail }) => Error::Record(RecordError::Json {
                detail: format!("the result of {of}, which has run: {detail}"),
            }),
            other => other,
        })
    }

    /// An outcome without bytes, for work whose only result is that it happened.
    #[must_use]
    pub fn empty() -> Self {
        Self::kept("application/octet-stream", Vec::new())
    }

    /// An outcome that was read from the table.
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
    /// [`RecordError::Json`] when the bytes are not the JSON of a `T`.
    pub fn parse_json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.bytes).map_err(|error| json_error(&error))
    }

    /// As [`parse_json`](Self::parse_json). The error says whose result it is.
    pub(crate) fn parse_json_of<T: DeserializeOwned>(
        &self,
        of: impl fmt::Display,
    ) -> Result<T, Error> {
        serde_json::from_slice(&self.bytes).map_err(|error| {
            Error::Record(RecordError::Json {
                detail: format!("the kept result of {of}: {error}"),
            })
        })
    }
}

fn json_error(error: &serde_json::Error) -> Error {
    Error::Record(RecordError::Json {
        detail: error.to_string(),
    })
}

/// Prints the type and the length. The bytes may be confidential.
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
