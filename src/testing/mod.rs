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
//! Leases run by the boot-time clock. `tokio::time::pause` does not stop it, and a lease is renewed as always.
//! rowlock's calls work in a runtime whose time is paused. But a `tokio::time::timeout` around such a call may be over
//! at once, because tokio moves a paused clock on while the runtime waits for the database. Put no timer of tokio's
//! around them in such a test, or call `tokio::time::resume` first.

use std::sync::Arc;

use crate::client::Rowlock;
use crate::runtime::Core;
use crate::runtime::batch::gate::GateMode;

#[cfg(feature = "sqlite")]
mod in_file;

#[cfg(feature = "sqlite")]
pub use in_file::TestClient;

/// What the database answers to `rowlock` and its clones, on any engine. Your own pools are not affected.
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

    /// Answers pass again. Those that were held back come now.
    pub fn pass(&self) {
        self.0.lanes.gate().set(GateMode::Pass);
    }
}
