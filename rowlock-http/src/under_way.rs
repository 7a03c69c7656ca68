//! What is under way behind a layer, whether or not a client waits for it.

use std::sync::Arc;

use tokio::sync::watch;

/// How many tasks there are. Clones count together.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnderWay(Arc<watch::Sender<usize>>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Task(UnderWay);

impl UnderWay {
    pub(crate) fn one(&self) -> Task {
        self.0.send_modify(|count| *count += 1);
        Task(self.clone())
    }

    /// Waits until there is none.
    pub(crate) async fn none(&self) {
        // The sender is here.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}
