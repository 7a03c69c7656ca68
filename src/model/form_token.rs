//! Tokens for forms.

use std::fmt;

use uuid::Uuid;

/// A token: 32 characters of hexadecimal, and hard to guess. The database keeps only its digest.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct FormToken(String);

impl FormToken {
    /// A new random token.
    pub(crate) fn random() -> Self {
        Self(Uuid::new_v4().simple().to_string())
    }

    /// The token, for the form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FormToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Omits the token: a reader of the log could submit the form.
impl fmt::Debug for FormToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FormToken(…)")
    }
}
