//! The digest of a request.

use std::fmt;

use sha2::{Digest, Sha256};

/// The digest of a request, 32 bytes. rowlock refuses a request whose key was used with another fingerprint.
///
/// It is a SHA-256 over parts, each prefixed with its length, so that `("ab", "c")` and `("a", "bc")` differ.
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
    /// The fingerprint of one part.
    #[must_use]
    pub fn of(part: impl AsRef<[u8]>) -> Self {
        Self::builder().part(part).finish()
    }

    /// Begins a fingerprint of several parts.
    pub fn builder() -> FingerprintBuilder {
        FingerprintBuilder::default()
    }

    /// A digest that the caller has computed.
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

/// Prints the first eight bytes in hexadecimal.
impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({}…)", hex::encode(&self.0[..8]))
    }
}

/// Gathers the parts of a [`Fingerprint`].
#[derive(Debug, Clone, Default)]
#[must_use = "finish it"]
pub struct FingerprintBuilder(Sha256);

impl FingerprintBuilder {
    /// Adds a part.
    pub fn part(mut self, part: impl AsRef<[u8]>) -> Self {
        let part = part.as_ref();
        self.0.update((part.len() as u64).to_be_bytes());
        self.0.update(part);
        self
    }

    /// Adds a part that came in pieces.
    pub fn pieces(self, pieces: FingerprintPieces) -> Self {
        self.part(pieces.0.finalize())
    }

    /// The fingerprint of all parts.
    #[must_use]
    pub fn finish(self) -> Fingerprint {
        Fingerprint(self.0.finalize().into())
    }
}

/// A part that comes in pieces, such as the body of a request: for [`FingerprintBuilder::pieces`]. The boundaries
/// between the pieces make no difference.
///
/// The length of such a part is known only at its end, so the fingerprint contains the part's own SHA-256. It differs
/// from the fingerprint of the same bytes as one [`part`](FingerprintBuilder::part).
///
/// ```
/// use rowlock::{Fingerprint, FingerprintPieces};
///
/// let mut body = FingerprintPieces::new();
/// for piece in ["{\"cents\":", "500}"] {
///     body.add(piece);
/// }
/// let request = Fingerprint::builder().part("POST").part("/payments").pieces(body).finish();
/// # let mut whole = FingerprintPieces::new();
/// # whole.add("{\"cents\":500}");
/// # assert_eq!(request, Fingerprint::builder().part("POST").part("/payments").pieces(whole).finish());
/// # let one = Fingerprint::builder().part("POST").part("/payments").part("{\"cents\":500}").finish();
/// # assert_ne!(request, one);
/// ```
#[derive(Debug, Clone, Default)]
pub struct FingerprintPieces(Sha256);

impl FingerprintPieces {
    /// A part without pieces.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a piece.
    pub fn add(&mut self, piece: impl AsRef<[u8]>) {
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
    fn a_fingerprint_is_shown_by_its_beginning() {
        let fingerprint = Fingerprint::from_bytes([0xa7; 32]);
        assert_eq!(format!("{fingerprint:?}"), "Fingerprint(a7a7a7a7a7a7a7a7…)");
    }
}
