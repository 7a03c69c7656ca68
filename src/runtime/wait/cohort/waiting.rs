//! The tasks of a cohort: the first one asks the database, the others wait.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::delegate::Delegation;
use super::{Cohort, Word};
use crate::model::Error;
use crate::runtime::held::guard::Guard;
use crate::store::verbs::queue::FenceBlock;

/// A task that asks the database for its cohort. When it is dropped, others may ask.
#[derive(Debug)]
pub(crate) struct Asking {
    cohort: Arc<Cohort>,
    number: u64,
}

impl Asking {
    pub(super) fn new(cohort: &Arc<Cohort>, number: u64) -> Self {
        let cohort = Arc::clone(cohort);
        Self { cohort, number }
    }

    /// It was granted the lease. `Err`: the lease was lost meanwhile.
    pub(crate) fn granted(self, guard: Guard, reserved: FenceBlock) -> Result<Guard, Self> {
        if !guard.is_held() {
            return Err(self);
        }
        let kept = self.cohort.keep(reserved);
        let fence = guard.grant().fence();
        let fences = reserved.fences(fence);
        let has_more = !fences.is_empty();
        guard.join(Arc::<Cohort>::clone(&self.cohort), &fences);
        let mut state = self.cohort.state.lock();
        let before = state.begin(&guard, fences, kept);
        let idle = state.idle_delegate();
        drop(state);
        Cohort::end(before, fence);
        self.cohort.dismiss(idle);
        if has_more {
            self.cohort.watch(guard.grant().id);
        }
        Ok(guard)
    }

    /// The lease is not free: the task waits, ahead of those that have arrived since. If one of these has had the
    /// lease, and it lingers now, the task takes it. `delegate`: the work of a delegate.
    pub(crate) fn waits<F: Future<Output = ()> + Send + 'static>(
        self,
        delegate: impl FnOnce(Delegation) -> F,
    ) -> Result<Guard, CohortWaiter> {
        match self.cohort.pick_or_lock() {
            Ok(guard) => Ok(guard),
            Err(state) => Err(self.cohort.wait(state, self.number, delegate)),
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.cohort.state.lock().is_asking = false;
    }
}

/// A task that waits in its cohort. Dropping it leaves the cohort.
#[derive(Debug)]
pub(crate) struct CohortWaiter {
    cohort: Arc<Cohort>,
    number: u64,
    word: oneshot::Receiver<Word>,
}

/// What a waiting task is told.
#[derive(Debug)]
pub(crate) enum WaitEnd {
    /// Its turn has come.
    Held(Guard),
    /// It was not there when its turn came, or nobody waits for it any more. It has to wait again.
    Again,
    Failed(Error),
}

impl CohortWaiter {
    pub(super) fn new(cohort: &Arc<Cohort>, number: u64, word: oneshot::Receiver<Word>) -> Self {
        Self {
            cohort: Arc::clone(cohort),
            number,
            word,
        }
    }

    /// Resolves when the waiting is over.
    ///
    /// Cancel safe.
    pub(crate) async fn told(&mut self) -> WaitEnd {
        match (&mut self.word).await {
            Ok(Ok(offer)) => match offer.take() {
                Some(guard) if guard.is_held() => WaitEnd::Held(guard),
                _ => WaitEnd::Again,
            },
            Ok(Err(error)) => WaitEnd::Failed(error),
            Err(_) => WaitEnd::Again,
        }
    }
}

impl Drop for CohortWaiter {
    fn drop(&mut self) {
        let mut state = self.cohort.state.lock();
        let sender = state.waiting.remove(&self.number);
        // If its word is under way, it leaves with it; then the turn of its cohort goes on.
        let idle = sender.as_ref().and_then(|_| state.idle_delegate());
        drop(state);
        self.cohort.dismiss(idle);
        self.word.close();
        if let Ok(Ok(offer)) = self.word.try_recv() {
            // Dropping the guard hands it on, or releases it.
            drop(offer.take());
        }
    }
}
