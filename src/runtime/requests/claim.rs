//! Claiming a key: the attempt to run the work of a record.

use std::sync::Arc;

use super::finish;
use crate::model::{Error, Moment, Subject};
use crate::runtime::batch::head::{Head, Manner, Progress};
use crate::runtime::batch::job::{Answered, Job, Next, Rank, Reply, Task, Verb};
use crate::runtime::held::attempt_guard::RecordGuard;
use crate::runtime::held::grant::Grant;
use crate::runtime::held::holdings::Holdings;
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::lease::Renewed;
use crate::store::verbs::record::{ClaimAsk, Claimed, KeepAsk};

/// The outcome of a claim. The verb makes the guard: when no caller receives it, dropping it frees the key.
#[derive(Debug)]
pub(crate) enum Claiming {
    Mine(RecordGuard),
    Missed,
    Locked,
}

#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) ask: ClaimAsk,
    holdings: Arc<Holdings>,
    pub(crate) reply: Reply<Claiming>,
}

impl Claim {
    pub(crate) fn task(
        holdings: &Arc<Holdings>,
        ask: ClaimAsk,
        reply: Reply<Claiming>,
    ) -> Task<Self> {
        let subject = Subject::Record(ask.key.clone());
        let progress = holdings.lanes.progress();
        let head = Head::new(subject, "begin", Manner::Wish, progress);
        let holdings = Arc::clone(holdings);
        let verb = Self {
            ask,
            holdings,
            reply,
        };
        Task { head, verb }
    }

    /// Hands the guard to the caller. When the caller has gone, dropping the guard frees the key.
    fn mine(self, attempt: i64, deadline: Moment) -> Next {
        let ask = self.ask;
        let clock_error = self.holdings.settings.clock_error;
        let key = ask.key.clone();
        let grant = Grant::new(
            key,
            ask.attempt_id,
            attempt,
            ask.lease,
            clock_error,
            None,
            deadline,
        );
        let guard = RecordGuard::new(Arc::new(grant), self.holdings, &ask);
        let _ = self.reply.send(Ok(Claiming::Mine(guard)));
        Next::Done
    }

    /// The claim failed. A late sending may still claim the key.
    fn not_mine(self, progress: &Progress, found: Claiming) -> Next {
        // An earlier sending, or this claim itself, may have the record locked.
        let is_unknown =
            progress.in_doubt() || (progress.sent && matches!(found, Claiming::Locked));
        let undo = is_unknown.then(|| finish::undo(&self.ask, progress, Moment::now()));
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
    type Outcome = Claimed;

    const RANK: Rank = Rank::Claim;

    const MAY_GRANT: bool = true;

    async fn send(tasks: &mut [Task<Self>], store: &mut dyn Store) -> Result<Vec<Claimed>, Fault> {
        let asks: Vec<ClaimAsk> = tasks.iter().map(|task| task.verb.ask.clone()).collect();
        store.record_claim(&asks).await
    }

    fn settle(task: Task<Self>, outcome: Claimed, answered: Answered) -> Next {
        let (progress, claim) = (task.head.progress, task.verb);
        match outcome {
            // An earlier sending may have claimed it, or this one long ago: confirm the lease.
            Claimed::Mine { attempt } if progress.sent || answered.is_stale(claim.ask.lease) => {
                let mut head = task.head;
                head.progress.sent = true;
                let verb = Confirm { claim, attempt };
                Next::Then(Task { head, verb }.into())
            }
            Claimed::Mine { attempt } => {
                let clock_error = claim.holdings.settings.clock_error;
                let deadline = answered.sent + clock_error.trusted(claim.ask.lease);
                claim.mine(attempt, deadline)
            }
            Claimed::Missed => claim.not_mine(&progress, Claiming::Missed),
            Claimed::Locked => claim.not_mine(&progress, Claiming::Locked),
        }
    }

    fn fail(self, error: Error) {
        let _ = self.reply.send(Err(error));
    }

    fn is_closed(&self) -> bool {
        self.reply.is_closed()
    }

    fn undo(task: &Task<Self>, now: Moment) -> Option<Job> {
        let (progress, ask) = (&task.head.progress, &task.verb.ask);
        progress
            .sent
            .then(|| finish::undo(ask, progress, now).into())
    }

    /// Two claims share an answer if they saw the same attempt.
    fn shares(&self, first: &Self) -> bool {
        let (mine, first) = (&self.ask, &first.ask);
        mine.key == first.key && mine.seen == first.seen
    }

    /// After the first claim the record has changed: the others missed.
    fn echo(outcome: &Claimed) -> Option<Claimed> {
        Some(match outcome {
            Claimed::Mine { .. } | Claimed::Missed => Claimed::Missed,
            Claimed::Locked => Claimed::Locked,
        })
    }
}

/// Confirms a claim whose lease may have little time left.
#[derive(Debug)]
struct Confirm {
    claim: Claim,
    attempt: i64,
}

impl Verb for Confirm {
    type Outcome = Renewed;

    const RANK: Rank = Rank::Confirm;

    async fn send(tasks: &mut [Task<Self>], store: &mut dyn Store) -> Result<Vec<Renewed>, Fault> {
        let ask = |task: &Task<Self>| {
            let ask = &task.verb.claim.ask;
            KeepAsk {
                key: ask.key.clone(),
                attempt_id: ask.attempt_id,
                lease: ask.lease,
            }
        };
        let asks: Vec<KeepAsk> = tasks.iter().map(ask).collect();
        store.record_renew(&asks).await
    }

    fn settle(task: Task<Self>, outcome: Renewed, answered: Answered) -> Next {
        let (progress, Self { claim, attempt }) = (task.head.progress, task.verb);
        match outcome {
            Renewed::Live { remaining } => {
                let clock_error = claim.holdings.settings.clock_error;
                claim.mine(attempt, answered.sent + clock_error.trusted(remaining))
            }
            Renewed::Gone => claim.not_mine(&progress, Claiming::Missed),
        }
    }

    fn fail(self, error: Error) {
        self.claim.fail(error);
    }

    fn is_closed(&self) -> bool {
        self.claim.is_closed()
    }

    fn undo(task: &Task<Self>, now: Moment) -> Option<Job> {
        let (progress, ask) = (&task.head.progress, &task.verb.claim.ask);
        progress
            .sent
            .then(|| finish::undo(ask, progress, now).into())
    }

    /// Sends the claim again: it finds the attempt that it began.
    fn again(task: Task<Self>) -> Job {
        let (head, verb) = (task.head, task.verb.claim);
        Task { head, verb }.into()
    }
}
