//! What a contender does: it acquires and releases locks.

use std::time::Duration;

use async_trait::async_trait;

use crate::Failure;

/// How long a task waits for a connection at most, where each operation needs a connection.
pub(crate) const POOL_WAIT: Duration = Duration::from_mins(2);

/// One process's client of a lock service.
#[async_trait]
pub(crate) trait Contender: Send + Sync {
    /// Waits until `task` holds `name`. `task` is the number of the task in this process.
    async fn acquire(&self, task: u32, name: &str) -> Result<Box<dyn Held>, Failure>;

    /// The run is over: gives back names that the client keeps, which the next run would wait for.
    async fn leave(&self) {}
}

/// A lock that a task holds.
#[async_trait]
pub(crate) trait Held: Send {
    /// Releases the lock. It is an error if the lock had ended before.
    async fn release(self: Box<Self>) -> Result<(), Failure>;
}
