//! What the driver said, behind one of our errors.

use std::fmt;
use std::sync::Arc;

/// The driver's error behind one of ours; prints what the database said.
#[derive(Debug, Clone)]
pub struct Cause(Arc<sqlx::Error>);

impl Cause {
    pub(crate) fn new(error: sqlx::Error) -> Self {
        Self(Arc::new(error))
    }

    /// The error of sqlx.
    #[must_use]
    pub fn sqlx(&self) -> &sqlx::Error {
        &self.0
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&said(&self.0))
    }
}

/// What the database said, without the driver's words around it.
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
