//! Ending an attempt, and undoing a claim whose outcome no caller will receive.

use super::MAX_UNDO;
use crate::model::{Error, Moment, Subject};
use crate::runtime::batch::head::{JobHead, Manner, Progress};
use crate::runtime::batch::job::{AnswerTime, Next, Rank, Reply, Request, Task};
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::record::{
    ANY_ATTEMPT, ClaimParams, FinishOutcome, FinishParams, RecordEnd,
};

#[derive(Debug)]
pub(crate) struct Finish {
    pub(crate) params: FinishParams,
    end: FinishKind,
}

/// The kind of end.
#[derive(Debug)]
enum FinishKind {
    /// Ends an attempt; without a reply, in the background.
    Attempt(Option<Reply<FinishOutcome>>),
    /// Undoes a claim that may have begun an attempt for no caller. It names only that attempt's id, and no other job
    /// waits for it.
    Undo {
        /// A sending of the claim may still reach the server.
        late: bool,
    },
}

/// Frees the key of a claim whose outcome no caller will receive. The claim does not count as an attempt.
pub(crate) fn undo(claim: &ClaimParams, progress: &Progress, now: Moment) -> Task<Finish> {
    let params = FinishParams {
        key: claim.key.clone(),
        attempt_id: claim.attempt_id,
        attempt: ANY_ATTEMPT,
        end: RecordEnd::Free {
            bound: false,
            pardon: 1,
            remember: claim.remember,
            remember_begun: claim.remember_begun,
            step_is_open: false,
        },
    };
    let subject = Subject::Record(claim.key.clone());
    let late = progress.in_doubt();
    let progress = Progress::until(now + claim.lease.min(MAX_UNDO));
    Task {
        head: JobHead::new(subject, "release", Manner::Duty, progress),
        request: Finish {
            params,
            end: FinishKind::Undo { late },
        },
    }
}

impl Finish {
    pub(crate) fn task(
        params: FinishParams,
        reply: Option<Reply<FinishOutcome>>,
        progress: Progress,
    ) -> Task<Self> {
        let doing = match params.end {
            RecordEnd::Done { .. } => "complete",
            RecordEnd::Free { .. } => "release",
        };
        let head = JobHead {
            in_order: true,
            bytes: params.size(),
            ..JobHead::new(
                Subject::Record(params.key.clone()),
                doing,
                Manner::Duty,
                progress,
            )
        };
        let end = FinishKind::Attempt(reply);
        let request = Self { params, end };
        Task { head, request }
    }
}

impl Request for Finish {
    type Outcome = FinishOutcome;

    const RANK: Rank = Rank::Finish;

    async fn send(
        tasks: &mut [Task<Self>],
        store: &mut dyn Store,
    ) -> Result<Vec<FinishOutcome>, Fault> {
        let all: Vec<FinishParams> = tasks
            .iter()
            .map(|task| task.request.params.clone())
            .collect();
        store.record_finish(&all).await
    }

    fn settle(task: Task<Self>, finished: FinishOutcome, _: AnswerTime) -> Next {
        if finished == FinishOutcome::Locked {
            return Next::Later(task.into());
        }
        match task.request.end {
            FinishKind::Attempt(reply) => {
                if let Some(reply) = reply {
                    let _ = reply.send(Ok(finished));
                }
                Next::Done
            }
            // After one sending has ended, the others find another record than they saw.
            FinishKind::Undo { late: true } if finished != FinishOutcome::Ended => {
                Next::Later(task.repeated().into())
            }
            FinishKind::Undo { .. } => Next::Done,
        }
    }

    fn fail(self, error: Error) {
        if let FinishKind::Attempt(Some(reply)) = self.end {
            let _ = reply.send(Err(error));
        }
    }

    /// The end matters to the next attempt too, so a caller that has gone does not cancel it.
    fn is_closed(&self) -> bool {
        false
    }
}
