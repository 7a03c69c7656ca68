//! For tests of an application: a client on a SQLite file of its own, leases that are lost, answers that do not come.
//! (Feature `testing`.)
//!
//! [`TestClient`] is a client with a database of its own, in one line. [`Held::lose`](crate::Held::lose) and
//! [`IdempotencyGuard::lose`](crate::IdempotencyGuard::lose) make a lease end in the middle of the work.
//! [`answers`] holds back what a database answers to a client, of any engine, or cuts its connections.
//!
//! Nothing here changes what rowlock promises, so an application that is right under these is right.
//!
//! # Time
//!
//! Leases have the time of the boot-time clock, which no test can stop: `tokio::time::pause` changes nothing in them,
//! and a lease is renewed as always. rowlock's calls work in a runtime whose time is paused. But a
//! `tokio::time::timeout` around such a call may be over at once, because tokio moves a paused clock on while the
//! runtime waits for the database. Put no timer of tokio's around them in such a test, or call
//! `tokio::time::resume` first.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use sqlx::SqlitePool;
use tempfile::TempDir;

use crate::client::Rowlock;
use crate::model::Error;
use crate::runtime::Core;
use crate::runtime::batch::gate::GateMode;

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

/// What the database answers to `rowlock` and its clones, on any engine. The application's own pools are not meant.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), rowlock::Error> {
/// use rowlock::testing::{TestClient, answers};
///
/// let rowlock = TestClient::new().await?;
/// let held = rowlock.lock("stock:42").ttl(std::time::Duration::from_secs(1)).acquire().await?;
/// answers(&rowlock).hold_back(); // no renewal is confirmed
/// held.lost().await;
/// answers(&rowlock).pass();
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn answers(rowlock: &Rowlock) -> Answers {
    Answers(Arc::clone(&rowlock.core))
}

/// Says what becomes of the answers to a client; made by [`answers`].
#[derive(Debug)]
pub struct Answers(Arc<Core>);

impl Answers {
    /// From now on statements are executed, and their answers do not come: as if the network was silent. An operation
    /// that waits for one fails after its [`operation_timeout`](crate::Builder::operation_timeout), a lease is lost at
    /// its deadline.
    pub fn hold_back(&self) {
        self.0.lanes.gate().set(GateMode::HeldBack);
    }

    /// Cuts the connections: answers that were held back are lost, and no connection is made from now on.
    pub fn cut(&self) {
        self.0.lanes.gate().set(GateMode::Cut);
    }

    /// Everything is as always again. Answers that were held back come now.
    pub fn pass(&self) {
        self.0.lanes.gate().set(GateMode::Pass);
    }
}
