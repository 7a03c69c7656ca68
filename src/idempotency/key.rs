//! What names a record, and what its request looked like.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::Error;

/// The longest scope, key or step, in bytes.
const MAX_BYTES: usize = 255;

/// How the scopes of the HTTP layer begin.
pub(crate) const HTTP: &[u8] = b"http:";

/// The name of an idempotency record: a key within a scope, each 1 to 255 bytes, whatever bytes they are.
///
/// The scope is whose key it is (a tenant, a user, a queue): two users' equal keys are two records. Both are
/// compared byte by byte on every engine. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey {
    scope: Arc<[u8]>,
    key: Arc<[u8]>,
}

impl RecordKey {
    /// Checks both and keeps them.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`] when one of them is empty or longer than 255 bytes.
    pub fn new(scope: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Result<Self, Error> {
        Ok(Self {
            scope: checked("scope", scope.as_ref())?.into(),
            key: checked("key", key.as_ref())?.into(),
        })
    }

    /// Whose key it is.
    #[must_use]
    pub fn scope(&self) -> &[u8] {
        &self.scope
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Sixteen bytes that stand for it with more parts, and hardly for anything else.
    pub(crate) fn digest(&self, purpose: &str, parts: &[&[u8]]) -> Uuid {
        let own = Fingerprint::builder()
            .part(purpose)
            .part(&*self.scope)
            .part(&*self.key);
        let whole = parts.iter().fold(own, FingerprintBuilder::part).finish();
        let mut half = [0; 16];
        half.copy_from_slice(&whole.0[..16]);
        Uuid::from_bytes(half)
    }
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `"key" of "scope"`, with what is not printable escaped.
impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", quoted(&self.key), quoted(&self.scope))
    }
}

/// Bytes for people to read: text where they are some.
pub(crate) fn quoted(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => format!("{text:?}"),
        Err(_) => format!("\"{}\"", bytes.escape_ascii()),
    }
}

fn checked<'a>(what: &'static str, bytes: &'a [u8]) -> Result<&'a [u8], Error> {
    let reason = if bytes.is_empty() {
        "it is empty"
    } else if bytes.len() > MAX_BYTES {
        "it is longer than 255 bytes"
    } else {
        return Ok(bytes);
    };
    Err(Error::InvalidKey { what, reason })
}

/// A scope of the application's own. The keys in those of the HTTP layer are chosen by its clients, whoever runs the layer on this
/// database: the application's must not be among them.
pub(super) fn check_scope(scope: &[u8]) -> Result<(), Error> {
    if !scope.starts_with(HTTP) {
        return Ok(());
    }
    Err(Error::InvalidKey {
        what: "scope",
        reason: "it begins with `http:`, as only those of the HTTP layer do: put something before it",
    })
}

/// The name of a step: 1 to 255 bytes of text without NUL.
pub(crate) fn check_step(step: &str) -> Result<(), Error> {
    checked("step", step.as_bytes())?;
    if step.as_bytes().starts_with(HTTP) {
        return Err(Error::InvalidKey {
            what: "step",
            reason: "it begins with `http:`, as only that of the HTTP layer does: put something before it",
        });
    }
    if step.contains('\0') {
        let reason = "it contains a NUL character";
        return Err(Error::InvalidKey {
            what: "step",
            reason,
        });
    }
    Ok(())
}

/// What a request asks for, as 32 bytes: the same key with another fingerprint is another request, and is refused.
///
/// It is a SHA-256 over parts, each with its length in front, so that `("ab", "c")` and `("a", "bc")` differ.
///
/// ```
/// use rowlock::Fingerprint;
///
/// let one = Fingerprint::builder().part("POST").part("/payments").part(br#"{"cents":500}"#).finish();
/// let other = Fingerprint::builder().part("POST").part("/payments").part(br#"{"cents":501}"#).finish();
/// assert_ne!(one, other);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Of one part.
    #[must_use]
    pub fn of(part: impl AsRef<[u8]>) -> Self {
        Self::builder().part(part).finish()
    }

    /// Of several parts.
    pub fn builder() -> FingerprintBuilder {
        FingerprintBuilder::default()
    }

    /// A digest that was made elsewhere.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The digest.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<&Fingerprint> for Fingerprint {
    fn from(fingerprint: &Fingerprint) -> Self {
        *fingerprint
    }
}

/// In hexadecimal, the first eight bytes.
impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprint(")?;
        for byte in &self.0[..8] {
            write!(f, "{byte:02x}")?;
        }
        f.write_str("…)")
    }
}

/// Gathers the parts of a [`Fingerprint`].
#[derive(Debug, Clone, Default)]
#[must_use = "finish it"]
pub struct FingerprintBuilder(Sha256);

impl FingerprintBuilder {
    /// One part more.
    pub fn part(mut self, part: impl AsRef<[u8]>) -> Self {
        let part = part.as_ref();
        self.0.update((part.len() as u64).to_be_bytes());
        self.0.update(part);
        self
    }

    /// One part more, that came in pieces: its digest, because its length was not known before.
    #[cfg(feature = "tower")]
    pub(crate) fn pieces(self, pieces: Pieces) -> Self {
        self.part(pieces.0.finalize())
    }

    /// The fingerprint of all parts.
    #[must_use]
    pub fn finish(self) -> Fingerprint {
        Fingerprint(self.0.finalize().into())
    }
}

/// A part that comes in pieces.
#[cfg(feature = "tower")]
#[derive(Debug, Clone, Default)]
pub(crate) struct Pieces(Sha256);

#[cfg(feature = "tower")]
impl Pieces {
    pub(crate) fn add(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_part_ends_makes_a_difference() {
        let of = |parts: &[&str]| {
            let add = |it: FingerprintBuilder, part: &&str| it.part(part);
            parts.iter().fold(Fingerprint::builder(), add).finish()
        };
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["a"]), of(&["a", ""]));
        assert_eq!(of(&["a", "b"]), of(&["a", "b"]));
    }

    #[test]
    fn the_bounds_are_1_and_255_bytes_whatever_they_are() {
        assert!(RecordKey::new([0xff], [0]).is_ok());
        assert!(RecordKey::new("s", [7; 255]).is_ok());
        assert!(RecordKey::new("s", [7; 256]).is_err());
        assert!(RecordKey::new("", "k").is_err());
        assert!(RecordKey::new("s", "").is_err());
        assert!(check_step("charge").is_ok());
        assert!(check_step("").is_err());
        assert!(check_step("a\0").is_err());
        assert!(check_step("http:handler").is_err());
    }

    #[test]
    fn a_fingerprint_is_shown_by_its_beginning() {
        let fingerprint = Fingerprint::from_bytes([0xa7; 32]);
        assert_eq!(format!("{fingerprint:?}"), "Fingerprint(a7a7a7a7a7a7a7a7…)");
    }

    #[test]
    fn what_is_not_printable_is_escaped() {
        let key = RecordKey::new("me", [b'a', 0xff, b'\n']).unwrap();
        assert_eq!(key.to_string(), r#""a\xff\n" of "me""#);
        assert_eq!(format!("{key:?}"), key.to_string());
    }
}
