//! Losing a lease on purpose, in a test of an application.

use tokio::sync::oneshot;

use super::Held;
use crate::model::{Error, Loss};

impl Held {
    /// Loses the lease, as if another holder had been granted the name: [`is_held`](Self::is_held) is false at once,
    /// [`lost`](Self::lost) resolves, [`with`](Self::with) drops its work, a [pin](Self::pin) and a release are
    /// [`Error::Lost`]. When this returns, the name is free. For tests of an application (feature `testing`).
    ///
    /// # Errors
    ///
    /// A database out of reach, or a transaction that has the lease pinned: the lease is lost, and the name is free
    /// after the TTL.
    ///
    /// # Cancel safety
    ///
    /// Once polled, the lease is lost. The name is freed in the background.
    pub async fn lose(&self) -> Result<(), Error> {
        self.guard.grant().lose(Loss::TakenOver);
        let (reply, answer) = oneshot::channel();
        self.guard.send(Some(reply));
        self.core.lanes.heard(answer).await.map(drop)
    }
}
