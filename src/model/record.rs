//! The name of an idempotency record: a scope and a key. And the rules for scopes, keys and steps.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

use super::{Fingerprint, FingerprintBuilder, InvalidError};

/// The longest scope, key or step, in bytes.
const MAX_BYTES: usize = 255;

/// The prefix of the scopes of HTTP clients: `http:`. [`Idempotency::begin`](crate::Idempotency::begin) and all other
/// calls of an application that begin an attempt refuse such a scope. Calls that look at a record, or decide about it,
/// accept it.
pub const HTTP_SCOPES: &str = "http:";

/// Whose key it is: a tenant, a user, a queue. Equal keys of two users are two records. With its key it names a
/// record: each is 1 to 255 bytes of any value.
///
/// ```
/// use rowlock::Scope;
///
/// let key = Scope("customer:7").key("order-4711");
/// # let _ = key;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope<S>(pub S);

impl<S: AsRef<[u8]>> Scope<S> {
    /// A key of this scope: what the request is called, the same for each retry.
    pub fn key<K: AsRef<[u8]>>(self, key: K) -> Key<S, K> {
        Key { scope: self.0, key }
    }
}

/// A key, and whose key it is: made by [`Scope::key`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key<S, K> {
    pub(crate) scope: S,
    pub(crate) key: K,
}

impl<S: AsRef<[u8]>, K: AsRef<[u8]>> Key<S, K> {
    /// The record of this name.
    pub(crate) fn record(&self) -> Result<RecordKey, InvalidError> {
        RecordKey::new(&self.scope, &self.key)
    }

    /// [`Self::record`], for an attempt of the application's own.
    pub(crate) fn own_record(&self) -> Result<RecordKey, InvalidError> {
        check_scope(self.scope.as_ref())?;
        self.record()
    }
}

/// The name of an idempotency record: a key within a scope, each 1 to 255 bytes of any value.
///
/// The scope says whose key it is (a tenant, a user, a queue): equal keys of two users are two records. Both are
/// compared byte by byte on every engine. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey {
    scope: Arc<[u8]>,
    key: Arc<[u8]>,
}

impl RecordKey {
    /// Checks the scope and the key.
    ///
    /// # Errors
    ///
    /// [`InvalidError`] when the scope or the key is empty or longer than 255 bytes.
    pub fn new(scope: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Result<Self, InvalidError> {
        Ok(Self {
            scope: checked("scope", scope.as_ref())?.into(),
            key: checked("key", key.as_ref())?.into(),
        })
    }

    /// The record of a key that an HTTP client has chosen.
    pub(crate) fn http(
        principal: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
    ) -> Result<Self, InvalidError> {
        let principal = checked("scope", principal.as_ref())?;
        Self::new([HTTP_SCOPES.as_bytes(), principal].concat(), key)
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

    /// A digest of this key, the purpose and the parts, in sixteen bytes.
    pub(crate) fn digest(&self, purpose: &str, parts: &[&[u8]]) -> Uuid {
        let own = Fingerprint::builder()
            .part(purpose)
            .part(&*self.scope)
            .part(&*self.key);
        let whole = parts.iter().fold(own, FingerprintBuilder::part).finish();
        let mut half = [0; 16];
        half.copy_from_slice(&whole.as_bytes()[..16]);
        Uuid::from_bytes(half)
    }

    /// The idempotency key that a step of this record sends to another server. That server may remember the key for
    /// longer than rowlock remembers the record, so the key includes the fingerprint: another request gets another
    /// key.
    pub(crate) fn downstream(&self, fingerprint: &Fingerprint, step: &str) -> String {
        self.digest("rowlock.step", &[step.as_bytes(), fingerprint.as_bytes()])
            .simple()
            .to_string()
    }
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `"key" of "scope"`, with unprintable bytes escaped.
impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", quoted(&self.key), quoted(&self.scope))
    }
}

/// Bytes for people to read: as text if they are UTF-8, else escaped.
fn quoted(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => format!("{text:?}"),
        Err(_) => format!("\"{}\"", bytes.escape_ascii()),
    }
}

fn checked<'a>(what: &'static str, bytes: &'a [u8]) -> Result<&'a [u8], InvalidError> {
    let reason = if bytes.is_empty() {
        "it is empty"
    } else if bytes.len() > MAX_BYTES {
        "it is longer than 255 bytes"
    } else {
        return Ok(bytes);
    };
    Err(InvalidError::Key { what, reason })
}

/// A scope of the application. It must not begin with `http:`, because HTTP clients choose the keys in those scopes,
/// and could choose one of the application's keys.
pub(crate) fn check_scope(scope: &[u8]) -> Result<(), InvalidError> {
    if !scope.starts_with(HTTP_SCOPES.as_bytes()) {
        return Ok(());
    }
    Err(InvalidError::Key {
        what: "scope",
        reason: "it begins with `http:`, which is for scopes of the HTTP layer: put a prefix before it",
    })
}

/// The name of an application's step: 1 to 255 bytes of text without NUL, which do not begin with `http:`.
pub(crate) fn check_step(step: &str) -> Result<(), InvalidError> {
    check_any_step(step)?;
    if step.starts_with(HTTP_SCOPES) {
        return Err(InvalidError::Key {
            what: "step",
            reason: "it begins with `http:`, which is for the step of the HTTP layer: put a prefix before it",
        });
    }
    Ok(())
}

/// The name of a step of an application or of an HTTP layer.
pub(crate) fn check_any_step(step: &str) -> Result<(), InvalidError> {
    checked("step", step.as_bytes())?;
    if step.contains('\0') {
        let reason = "it contains a NUL character";
        return Err(InvalidError::Key {
            what: "step",
            reason,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(check_any_step("http:handler").is_ok());
        assert!(check_any_step("http:\0").is_err());
    }

    #[test]
    fn the_record_of_an_http_client_is_the_principals() {
        let alice = RecordKey::http("alice", "k").unwrap();
        assert_eq!(alice.scope(), b"http:alice");
        assert!(check_scope(alice.scope()).is_err());
        assert!(RecordKey::http("", "k").is_err());
        assert!(RecordKey::http([7; 250], "k").is_ok());
        assert!(RecordKey::http([7; 251], "k").is_err());
    }

    #[test]
    fn what_is_not_printable_is_escaped() {
        let key = RecordKey::new("me", [b'a', 0xff, b'\n']).unwrap();
        assert_eq!(key.to_string(), r#""a\xff\n" of "me""#);
        assert_eq!(format!("{key:?}"), key.to_string());
    }
}
