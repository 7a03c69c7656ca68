//! The tasks of a layer that are under way, whether or not a client waits for them.

use std::sync::Arc;

use tokio::sync::watch;

/// The number of tasks. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnderWay(Arc<watch::Sender<usize>>);

/// One task, until this is dropped.
#[derive(Debug)]
pub(crate) struct Task(UnderWay);

impl UnderWay {
    pub(crate) fn one(&self) -> Task {
        self.0.send_modify(|count| *count += 1);
        Task(self.clone())
    }

    /// Waits until no task is left.
    pub(crate) async fn none(&self) {
        // This fails only without a sender, and `self` has the sender.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}
