//! What is kept of a lease that may linger.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;

use crate::model::{Moment, Name};
use crate::runtime::wait::queue::Queue;

/// A lease that may linger.
#[derive(Debug)]
pub(super) struct MayLinger {
    pub(super) linger: Duration,
    pub(super) name: Name,
    /// Its number among the keepers.
    pub(super) number: u64,
    pub(super) queue: Arc<Queue>,
    /// Until when it lingers; `None`: a task has it.
    pub(super) until: Option<Moment>,
    pub(super) is_recalled: bool,
    /// The task that sees to it that it ends in time.
    pub(super) timer: Option<AbortHandle>,
}

impl Drop for MayLinger {
    fn drop(&mut self) {
        self.queue.keepers.remove(&self.name, self.number);
        if let Some(timer) = &self.timer {
            timer.abort();
        }
    }
}
