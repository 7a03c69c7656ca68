//! Claiming a key: the attempt to run the work of a record.

use std::sync::Arc;
use std::time::Duration;

use super::finish;
use super::recheck::{GrantRequest, Recheck};
use crate::model::{Error, Moment, Subject};
use crate::runtime::batch::head::{JobHead, Manner, Progress};
use crate::runtime::batch::job::{AnswerTime, Job, Next, Rank, Reply, Request, Task};
use crate::runtime::held::attempt_guard::RecordGuard;
use crate::runtime::held::grant::Grant;
use crate::runtime::held::holdings::Holdings;
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::lease::RenewOutcome;
use crate::store::verbs::record::{ClaimOutcome, ClaimParams, KeepParams};

/// The outcome of a claim. The request makes the guard: when no caller receives it, dropping it frees the key.
#[derive(Debug)]
pub(crate) enum ClaimAnswer {
    Mine(RecordGuard),
    Missed,
    Locked,
}

#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) params: ClaimParams,
    holdings: Arc<Holdings>,
    pub(crate) reply: Reply<ClaimAnswer>,
}

impl Claim {
    pub(crate) fn task(
        holdings: &Arc<Holdings>,
        params: ClaimParams,
        reply: Reply<ClaimAnswer>,
    ) -> Task<Self> {
        let subject = Subject::Record(params.key.clone());
        let progress = holdings.lanes.progress();
        let head = JobHead::new(subject, "begin", Manner::Wish, progress);
        let holdings = Arc::clone(holdings);
        let request = Self {
            params,
            holdings,
            reply,
        };
        Task { head, request }
    }

    /// The claim failed. A late sending may still claim the key.
    fn not_mine(self, progress: &Progress, found: ClaimAnswer) -> Next {
        // An earlier sending, or this claim itself, may have the record locked.
        let is_unknown =
            progress.in_doubt() || (progress.sent && matches!(found, ClaimAnswer::Locked));
        let undo = is_unknown.then(|| finish::undo(&self.params, progress, Moment::now()));
        let _ = self.reply.send(Ok(found));
        Next::undo(undo, progress.in_doubt())
    }
}

impl GrantRequest for Claim {
    type Renewal = KeepParams;

    fn renewal(&self) -> KeepParams {
        KeepParams {
            key: self.params.key.clone(),
            attempt_id: self.params.attempt_id,
            lease: self.params.lease,
        }
    }

    async fn renew(all: &[KeepParams], store: &mut dyn Store) -> Result<Vec<RenewOutcome>, Fault> {
        store.record_renew(all).await
    }

    fn granted(self, _: &Progress, attempt: i64, sent: Moment, left: Duration) -> Next {
        let params = self.params;
        let clock_error = self.holdings.settings.clock_error;
        let grant = Grant::new(
            params.key.clone(),
            params.attempt_id,
            attempt,
            params.lease,
            clock_error,
            None,
            sent + clock_error.trusted(left.min(params.lease)),
        );
        let guard = RecordGuard::new(Arc::new(grant), self.holdings, &params);
        let _ = self.reply.send(Ok(ClaimAnswer::Mine(guard)));
        Next::Done
    }

    fn lapsed(self, progress: &Progress) -> Next {
        self.not_mine(progress, ClaimAnswer::Missed)
    }
}

impl Request for Claim {
    type Outcome = ClaimOutcome;

    const RANK: Rank = Rank::Claim;

    const MAY_GRANT: bool = true;

    async fn send(
        tasks: &mut [Task<Self>],
        store: &mut dyn Store,
    ) -> Result<Vec<ClaimOutcome>, Fault> {
        let all: Vec<ClaimParams> = tasks
            .iter()
            .map(|task| task.request.params.clone())
            .collect();
        store.record_claim(&all).await
    }

    fn settle(task: Task<Self>, outcome: ClaimOutcome, answered: AnswerTime) -> Next {
        let (progress, lease) = (task.head.progress, task.request.params.lease);
        match outcome {
            // An earlier sending may have claimed it, or this one long ago: confirm the lease.
            ClaimOutcome::Mine { attempt } if progress.sent || answered.is_stale(lease) => {
                Recheck::after(task, attempt)
            }
            ClaimOutcome::Mine { attempt } => {
                task.request
                    .granted(&progress, attempt, answered.sent, lease)
            }
            ClaimOutcome::Missed => task.request.not_mine(&progress, ClaimAnswer::Missed),
            ClaimOutcome::Locked => task.request.not_mine(&progress, ClaimAnswer::Locked),
        }
    }

    fn fail(self, error: Error) {
        let _ = self.reply.send(Err(error));
    }

    fn is_closed(&self) -> bool {
        self.reply.is_closed()
    }

    fn undo(&self, progress: &Progress, now: Moment) -> Option<Job> {
        let undo = || finish::undo(&self.params, progress, now).into();
        progress.sent.then(undo)
    }

    /// Two claims share an answer if they saw the same attempt.
    fn shares(&self, first: &Self) -> bool {
        let (mine, first) = (&self.params, &first.params);
        mine.key == first.key && mine.seen == first.seen
    }

    /// After the first claim the record has changed: the others missed.
    fn echo(outcome: &ClaimOutcome) -> Option<ClaimOutcome> {
        Some(match outcome {
            ClaimOutcome::Mine { .. } | ClaimOutcome::Missed => ClaimOutcome::Missed,
            ClaimOutcome::Locked => ClaimOutcome::Locked,
        })
    }
}
