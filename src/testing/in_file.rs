//! A client on a file of its own.

use std::fmt;
use std::ops::Deref;

use sqlx::SqlitePool;
use tempfile::TempDir;

use crate::client::Rowlock;
use crate::model::Error;

/// A client, and a pool of the application's, on a SQLite file that nobody else has.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), rowlock::Error> {
/// let rowlock = rowlock::testing::TestClient::new().await?;
/// let held = rowlock.lock("stock:42").acquire().await?;
/// held.lose().await?;
/// assert!(!held.is_held());
/// # Ok(())
/// # }
/// ```
///
/// # Drop
///
/// The file is removed. Guards and clones of the client that are still there lose their database.
pub struct TestClient {
    rowlock: Rowlock,
    pool: SqlitePool,
    /// Dropped last.
    _dir: TempDir,
}

impl TestClient {
    /// Makes the file with rowlock's tables.
    ///
    /// # Errors
    ///
    /// No temporary folder can be made ([`Error::Unreachable`]); the errors of [`Rowlock::connect`].
    pub async fn new() -> Result<Self, Error> {
        let dir = tempfile::tempdir().map_err(|error| Error::Unreachable {
            target: std::env::temp_dir().display().to_string(),
            detail: error.to_string(),
        })?;
        let url = format!("sqlite:{}?mode=rwc", dir.path().join("test.db").display());
        let rowlock = Rowlock::connect(&url).await?;
        let pool = SqlitePool::connect_lazy(&url).map_err(Error::from)?;
        Ok(Self {
            rowlock,
            pool,
            _dir: dir,
        })
    }

    /// A pool for the tables of the application, in the same file: begin a transaction that writes with
    /// `begin_with("BEGIN IMMEDIATE")`, or with [`Retry`](crate::Retry).
    #[must_use]
    pub fn pool(&self) -> &SqlitePool {
        &self.pool
    }
}

impl Deref for TestClient {
    type Target = Rowlock;

    fn deref(&self) -> &Rowlock {
        &self.rowlock
    }
}

impl fmt::Debug for TestClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut client = f.debug_struct("TestClient");
        client
            .field("rowlock", &self.rowlock)
            .finish_non_exhaustive()
    }
}
