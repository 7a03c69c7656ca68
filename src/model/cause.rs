//! The driver's error that caused one of rowlock's errors.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use super::{FaultKind, Printable};

/// The driver's error that caused one of rowlock's errors. It prints the database's message, in one line without
/// control characters.
#[derive(Debug, Clone)]
pub struct Cause {
    error: Arc<sqlx::Error>,
    kind: FaultKind,
}

impl Cause {
    pub(crate) fn new(error: sqlx::Error, kind: FaultKind) -> Self {
        let error = Arc::new(error);
        Self { error, kind }
    }

    /// The kind of the driver's error.
    pub(crate) fn kind(&self) -> FaultKind {
        self.kind
    }

    /// sqlx's error.
    #[must_use]
    pub fn sqlx(&self) -> &sqlx::Error {
        &self.error
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printable(f).write_str(&said(&self.error))
    }
}

/// The database's message, without the driver's prefix.
pub(crate) fn said(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(error) => error.message().to_owned(),
        sqlx::Error::Io(error) => error.to_string(),
        sqlx::Error::Tls(error) => {
            format!(
                "TLS failed: {error}; set sslmode (PostgreSQL) or ssl-mode (MySQL, MariaDB) in the URL"
            )
        }
        other => other.to_string(),
    }
}
