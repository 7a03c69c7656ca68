//! A part of a fingerprint that is JSON.

use super::canonical::canonical;
use super::{Error, FingerprintBuilder, RecordError};

impl FingerprintBuilder {
    /// Adds a part that is JSON. White space, the order of the fields of an object, and how a string escapes its
    /// characters make no difference. All else does: a number counts as it is written (1.0 and 1 differ), the elements
    /// of an array count in their order, and a field that stands there twice counts twice. Below 64 levels, a value
    /// counts as it is written.
    ///
    /// ```
    /// use rowlock::Fingerprint;
    ///
    /// let of = |json| Fingerprint::builder().part("pay").json(json).map(rowlock::FingerprintBuilder::finish);
    /// assert_eq!(of(r#"{"cents":500,"to":"a"}"#)?, of(r#"{ "to": "\u0061", "cents": 500 }"#)?);
    /// assert_ne!(of(r#"{"cents":500,"to":"a"}"#)?, of(r#"{"cents":501,"to":"a"}"#)?);
    /// # Ok::<(), rowlock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RecordError::Json`] for what is not JSON.
    pub fn json(self, json: impl AsRef<[u8]>) -> Result<Self, Error> {
        let text = canonical(json.as_ref()).map_err(|error| {
            Error::Record(RecordError::Json {
                detail: error.to_string(),
            })
        })?;
        Ok(self.part(text))
    }
}
