//! Confirming a grant whose lease may have little time left: an earlier sending got it, or its answer came late.

use std::time::Duration;

use crate::model::{Error, Moment};
use crate::runtime::batch::head::Progress;
use crate::runtime::batch::job::{AnswerTime, Job, Next, Rank, Task, Verb};
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::lease::RenewOutcome;

/// A verb that is granted a lease.
pub(super) trait GrantVerb: Verb {
    /// The parameters of a renewal.
    type Renewal;

    fn renewal(&self) -> Self::Renewal;

    async fn renew(
        all: &[Self::Renewal],
        store: &mut dyn Store,
    ) -> Result<Vec<RenewOutcome>, Fault>;

    /// Hands the guard to the caller. `number`: the fence, or the number of the attempt. `left`: of the lease, when
    /// the request was sent. When the caller has gone, dropping the guard ends the grant.
    fn granted(self, progress: &Progress, number: i64, sent: Moment, left: Duration) -> Next;

    /// It was granted, and has expired meanwhile.
    fn lapsed(self, progress: &Progress) -> Next;
}

/// Renews the grant, which tells how much of its time is left.
#[derive(Debug)]
pub(super) struct Confirm<V> {
    verb: V,
    number: i64,
}

impl<V: GrantVerb> Confirm<V> {
    pub(super) fn after(Task { mut head, verb }: Task<V>, number: i64) -> Next {
        head.progress.sent = true;
        let verb = Self { verb, number };
        Next::Then(Task { head, verb }.into())
    }
}

impl<V: GrantVerb> Verb for Confirm<V> {
    type Outcome = RenewOutcome;

    const RANK: Rank = Rank::Confirm;

    async fn send(
        tasks: &mut [Task<Self>],
        store: &mut dyn Store,
    ) -> Result<Vec<RenewOutcome>, Fault> {
        let all: Vec<V::Renewal> = tasks.iter().map(|task| task.verb.verb.renewal()).collect();
        V::renew(&all, store).await
    }

    fn settle(task: Task<Self>, outcome: RenewOutcome, answered: AnswerTime) -> Next {
        let (progress, Self { verb, number }) = (task.head.progress, task.verb);
        match outcome {
            RenewOutcome::Live { remaining } => {
                verb.granted(&progress, number, answered.sent, remaining)
            }
            RenewOutcome::Gone => verb.lapsed(&progress),
        }
    }

    fn fail(self, error: Error) {
        self.verb.fail(error);
    }

    fn is_closed(&self) -> bool {
        self.verb.is_closed()
    }

    fn undo(&self, progress: &Progress, now: Moment) -> Option<Job> {
        self.verb.undo(progress, now)
    }

    /// Sends the verb again: it finds the grant that it got.
    fn again(task: Task<Self>) -> Job {
        let (head, verb) = (task.head, task.verb.verb);
        Task { head, verb }.into()
    }
}
