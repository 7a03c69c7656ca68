//! Ending an attempt, and undoing a claim whose outcome no caller will receive.

use super::MAX_UNDO;
use crate::model::{Error, Moment, Subject};
use crate::runtime::batch::head::{Head, Manner, Progress};
use crate::runtime::batch::job::{Answered, Next, Rank, Reply, Task, Verb};
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::record::{ANY_ATTEMPT, ClaimAsk, FinishAsk, Finished, RecordEnd};

#[derive(Debug)]
pub(crate) struct Finish {
    pub(crate) ask: FinishAsk,
    end: End,
}

/// The kind of end.
#[derive(Debug)]
enum End {
    /// Ends an attempt; without a reply, in the background.
    Attempt(Option<Reply<Finished>>),
    /// Undoes a claim that may have begun an attempt for no caller. It names only that attempt's id, and no other job
    /// waits for it.
    Undo {
        /// A sending of the claim may still reach the server.
        late: bool,
    },
}

/// Frees the key of a claim whose outcome no caller will receive. The claim does not count as an attempt.
pub(crate) fn undo(claim: &ClaimAsk, progress: &Progress, now: Moment) -> Task<Finish> {
    let ask = FinishAsk {
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
        head: Head::new(subject, "release", Manner::Duty, progress),
        verb: Finish {
            ask,
            end: End::Undo { late },
        },
    }
}

impl Finish {
    pub(crate) fn task(
        ask: FinishAsk,
        reply: Option<Reply<Finished>>,
        progress: Progress,
    ) -> Task<Self> {
        let doing = match ask.end {
            RecordEnd::Done { .. } => "complete",
            RecordEnd::Free { .. } => "release",
        };
        let head = Head {
            in_order: true,
            bytes: ask.size(),
            ..Head::new(
                Subject::Record(ask.key.clone()),
                doing,
                Manner::Duty,
                progress,
            )
        };
        let end = End::Attempt(reply);
        let verb = Self { ask, end };
        Task { head, verb }
    }
}

impl Verb for Finish {
    type Outcome = Finished;

    const RANK: Rank = Rank::Finish;

    async fn send(tasks: &mut [Task<Self>], store: &mut dyn Store) -> Result<Vec<Finished>, Fault> {
        let asks: Vec<FinishAsk> = tasks.iter().map(|task| task.verb.ask.clone()).collect();
        store.record_finish(&asks).await
    }

    fn settle(task: Task<Self>, finished: Finished, _: Answered) -> Next {
        if finished == Finished::Locked {
            return Next::Later(task.into());
        }
        match task.verb.end {
            End::Attempt(reply) => {
                if let Some(reply) = reply {
                    let _ = reply.send(Ok(finished));
                }
                Next::Done
            }
            // After one sending has ended, the others find another record than they saw.
            End::Undo { late: true } if finished != Finished::Ended => {
                Next::Later(task.repeated().into())
            }
            End::Undo { .. } => Next::Done,
        }
    }

    fn fail(self, error: Error) {
        if let End::Attempt(Some(reply)) = self.end {
            let _ = reply.send(Err(error));
        }
    }

    /// The end matters to the next attempt too, so a caller that has gone does not cancel it.
    fn is_closed(&self) -> bool {
        false
    }
}
