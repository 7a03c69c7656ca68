//! Renews a grant, to learn how much of its time is left: an earlier sending got it, or its answer came late.

use std::time::Duration;

use crate::model::{Error, Moment};
use crate::runtime::batch::head::Progress;
use crate::runtime::batch::job::{AnswerTime, Job, Next, Rank, Request, Task};
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::lease::RenewOutcome;

/// A request that is granted a lease.
pub(super) trait GrantRequest: Request {
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
pub(super) struct Recheck<V> {
    request: V,
    number: i64,
}

impl<V: GrantRequest> Recheck<V> {
    pub(super) fn after(Task { mut head, request }: Task<V>, number: i64) -> Next {
        head.progress.sent = true;
        let request = Self { request, number };
        Next::Then(Task { head, request }.into())
    }
}

impl<V: GrantRequest> Request for Recheck<V> {
    type Outcome = RenewOutcome;

    const RANK: Rank = Rank::Recheck;

    async fn send(
        tasks: &mut [Task<Self>],
        store: &mut dyn Store,
    ) -> Result<Vec<RenewOutcome>, Fault> {
        let all: Vec<V::Renewal> = tasks
            .iter()
            .map(|task| task.request.request.renewal())
            .collect();
        V::renew(&all, store).await
    }

    fn settle(task: Task<Self>, outcome: RenewOutcome, answered: AnswerTime) -> Next {
        let (progress, Self { request, number }) = (task.head.progress, task.request);
        match outcome {
            RenewOutcome::Live { remaining } => {
                request.granted(&progress, number, answered.sent, remaining)
            }
            RenewOutcome::Gone => request.lapsed(&progress),
        }
    }

    fn fail(self, error: Error) {
        self.request.fail(error);
    }

    fn is_closed(&self) -> bool {
        self.request.is_closed()
    }

    fn undo(&self, progress: &Progress, now: Moment) -> Option<Job> {
        self.request.undo(progress, now)
    }

    /// Sends the request again: it finds the grant that it got.
    fn again(task: Task<Self>) -> Job {
        let (head, request) = (task.head, task.request.request);
        Task { head, request }.into()
    }
}
