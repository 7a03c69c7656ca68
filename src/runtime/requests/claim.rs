//! Claiming a key: the attempt to run the work of a record.

use std::sync::Arc;

use super::finish;
use crate::model::{Error, Moment, Subject};
use crate::runtime::batch::head::{JobHead, Manner, Progress};
use crate::runtime::batch::job::{AnswerTime, Job, Next, Rank, Reply, Task, Verb};
use crate::runtime::held::attempt_guard::RecordGuard;
use crate::runtime::held::grant::Grant;
use crate::runtime::held::holdings::Holdings;
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::lease::RenewOutcome;
use crate::store::verbs::record::{ClaimOutcome, ClaimParams, KeepParams};

/// The outcome of a claim. The verb makes the guard: when no caller receives it, dropping it frees the key.
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
        let verb = Self {
            params,
            holdings,
            reply,
        };
        Task { head, verb }
    }

    /// Hands the guard to the caller. When the caller has gone, dropping the guard frees the key.
    fn mine(self, attempt: i64, deadline: Moment) -> Next {
        let params = self.params;
        let clock_error = self.holdings.settings.clock_error;
        let key = params.key.clone();
        let grant = Grant::new(
            key,
            params.attempt_id,
            attempt,
            params.lease,
            clock_error,
            None,
            deadline,
        );
        let guard = RecordGuard::new(Arc::new(grant), self.holdings, &params);
        let _ = self.reply.send(Ok(ClaimAnswer::Mine(guard)));
        Next::Done
    }

    /// The claim failed. A late sending may still claim the key.
    fn not_mine(self, progress: &Progress, found: ClaimAnswer) -> Next {
        // An earlier sending, or this claim itself, may have the record locked.
        let is_unknown =
            progress.in_doubt() || (progress.sent && matches!(found, ClaimAnswer::Locked));
        let undo = is_unknown.then(|| finish::undo(&self.params, progress, Moment::now()));
        let _ = self.reply.send(Ok(found));
        undo.map_or(Next::Done, |undo| {
            let undo = if progress.in_doubt() {
                undo.repeated()
            } else {
                undo
            };
            Next::Later(undo.into())
        })
    }
}

impl Verb for Claim {
    type Outcome = ClaimOutcome;

    const RANK: Rank = Rank::Claim;

    const MAY_GRANT: bool = true;

    async fn send(
        tasks: &mut [Task<Self>],
        store: &mut dyn Store,
    ) -> Result<Vec<ClaimOutcome>, Fault> {
        let all: Vec<ClaimParams> = tasks.iter().map(|task| task.verb.params.clone()).collect();
        store.record_claim(&all).await
    }

    fn settle(task: Task<Self>, outcome: ClaimOutcome, answered: AnswerTime) -> Next {
        let (progress, claim) = (task.head.progress, task.verb);
        match outcome {
            // An earlier sending may have claimed it, or this one long ago: confirm the lease.
            ClaimOutcome::Mine { attempt }
                if progress.sent || answered.is_stale(claim.params.lease) =>
            {
                let mut head = task.head;
                head.progress.sent = true;
                let verb = ConfirmClaim { claim, attempt };
                Next::Then(Task { head, verb }.into())
            }
            ClaimOutcome::Mine { attempt } => {
                let clock_error = claim.holdings.settings.clock_error;
                let deadline = answered.sent + clock_error.trusted(claim.params.lease);
                claim.mine(attempt, deadline)
            }
            ClaimOutcome::Missed => claim.not_mine(&progress, ClaimAnswer::Missed),
            ClaimOutcome::Locked => claim.not_mine(&progress, ClaimAnswer::Locked),
        }
    }

    fn fail(self, error: Error) {
        let _ = self.reply.send(Err(error));
    }

    fn is_closed(&self) -> bool {
        self.reply.is_closed()
    }

    fn undo(task: &Task<Self>, now: Moment) -> Option<Job> {
        let (progress, params) = (&task.head.progress, &task.verb.params);
        progress
            .sent
            .then(|| finish::undo(params, progress, now).into())
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

/// Confirms a claim whose lease may have little time left.
#[derive(Debug)]
struct ConfirmClaim {
    claim: Claim,
    attempt: i64,
}

impl Verb for ConfirmClaim {
    type Outcome = RenewOutcome;

    const RANK: Rank = Rank::Confirm;

    async fn send(
        tasks: &mut [Task<Self>],
        store: &mut dyn Store,
    ) -> Result<Vec<RenewOutcome>, Fault> {
        let params = |task: &Task<Self>| {
            let params = &task.verb.claim.params;
            KeepParams {
                key: params.key.clone(),
                attempt_id: params.attempt_id,
                lease: params.lease,
            }
        };
        let all: Vec<KeepParams> = tasks.iter().map(params).collect();
        store.record_renew(&all).await
    }

    fn settle(task: Task<Self>, outcome: RenewOutcome, answered: AnswerTime) -> Next {
        let (progress, Self { claim, attempt }) = (task.head.progress, task.verb);
        match outcome {
            RenewOutcome::Live { remaining } => {
                let clock_error = claim.holdings.settings.clock_error;
                claim.mine(attempt, answered.sent + clock_error.trusted(remaining))
            }
            RenewOutcome::Gone => claim.not_mine(&progress, ClaimAnswer::Missed),
        }
    }

    fn fail(self, error: Error) {
        self.claim.fail(error);
    }

    fn is_closed(&self) -> bool {
        self.claim.is_closed()
    }

    fn undo(task: &Task<Self>, now: Moment) -> Option<Job> {
        let (progress, params) = (&task.head.progress, &task.verb.claim.params);
        progress
            .sent
            .then(|| finish::undo(params, progress, now).into())
    }

    /// Sends the claim again: it finds the attempt that it began.
    fn again(task: Task<Self>) -> Job {
        let (head, verb) = (task.head, task.verb.claim);
        Task { head, verb }.into()
    }
}
