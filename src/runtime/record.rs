//! Records: what a lane is asked to do with them, and the guard of a running attempt.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use uuid::Uuid;

use super::Core;
use super::grant::Grant;
use super::op::{Fate, Op, Reply};
use super::token::NewToken;
use crate::model::FormToken;
use crate::model::Moment;
use crate::model::{Error, Loss, Outcome, RecordKey};
use crate::store::record::{
    ClaimAsk, CleanedRows, DecideAsk, Decision, FinishAsk, Finished, ListAsk, RecordEnd, RecordRow,
    StepAsk, StepBegun, StepRow,
};

/// What has come of a claim. The guard is made by the lane: when nobody is there to receive it any more, dropping it
/// frees the key.
#[derive(Debug)]
pub(crate) enum Claiming {
    Mine(RecordGuard),
    Missed,
    Locked,
}

/// An operation on a record or a form token.
#[derive(Debug)]
pub(crate) struct RecordOp {
    pub(crate) work: RecordWork,
    pub(crate) fate: Fate,
}

/// A walk through the lock rows, to remove those that nobody uses; see [`Store::lock_clean`](crate::store::Store::lock_clean).
#[derive(Debug, Default)]
pub(crate) struct LockWalk {
    /// The rows that are looked at in one statement.
    pub(crate) limit: u32,
    /// The last name that was looked at.
    pub(crate) after: Vec<u8>,
    pub(crate) removed: u64,
}

#[derive(Debug)]
pub(crate) enum RecordWork {
    Read(Read),
    /// Whether a transaction that has not ended has it.
    IsClaimed(RecordKey, Reply<bool>),
    Claim(Box<Claim>),
    /// Without a reply: in the background.
    Finish(FinishAsk, Option<Reply<Finished>>),
    Undo(UndoClaim),
    StepBegin(StepAsk, Arc<Core>, Reply<(StepBegun, UndoStep)>),
    Forget(RecordKey, i64, Reply<()>),
    /// Without a reply: a step that was begun for a caller who is gone.
    StepFinish(StepAsk, Option<Outcome>, Option<Reply<Finished>>),
    Steps(RecordKey, Reply<Vec<StepRow>>),
    List(ListAsk, Reply<Vec<RecordRow>>),
    Decide(DecideAsk, Reply<bool>),
    IssueToken(NewToken, Reply<FormToken>),
    Clean(u32, Reply<CleanedRows>),
    CleanLocks(LockWalk, Reply<u64>),
}

#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) key: RecordKey,
    /// The size of the outcome, once it is known that it does not fit into a share of a statement.
    pub(crate) size: Option<usize>,
    pub(crate) reply: Reply<Option<RecordRow>>,
}

#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) ask: ClaimAsk,
    pub(crate) core: Arc<Core>,
    pub(crate) reply: Reply<Claiming>,
}

/// Frees a key that a claim may have taken for nobody. It names the owner of that attempt only, and waits for nobody's.
#[derive(Debug)]
pub(crate) struct UndoClaim {
    pub(crate) ask: FinishAsk,
    /// A sending of the claim may reach the server yet.
    pub(crate) late: bool,
    /// It has found nothing to undo so far.
    pub(crate) repeated: bool,
}

impl RecordWork {
    /// The record; two operations on one record never share a statement.
    pub(crate) fn key(&self) -> Option<&RecordKey> {
        match self {
            Self::Read(read) => Some(&read.key),
            Self::IsClaimed(key, _) | Self::Steps(key, _) | Self::Forget(key, ..) => Some(key),
            Self::Claim(claim) => Some(&claim.ask.key),
            Self::Finish(ask, _) | Self::Undo(UndoClaim { ask, .. }) => Some(&ask.key),
            Self::StepBegin(ask, ..) | Self::StepFinish(ask, ..) => Some(&ask.key),
            Self::Decide(ask, _) => Some(&ask.key),
            Self::List(..) | Self::IssueToken(..) | Self::Clean(..) | Self::CleanLocks(..) => None,
        }
    }

    /// Whether it may take long: it reads a whole table, or is an administrator's order.
    pub(crate) fn is_errand(&self) -> bool {
        self.cleans() || matches!(self, Self::List(..))
    }

    /// Whether it removes rows that nobody needs any more.
    pub(crate) fn cleans(&self) -> bool {
        matches!(self, Self::Clean(..) | Self::CleanLocks(..))
    }

    /// Whether it changes nothing.
    pub(crate) fn only_looks(&self) -> bool {
        matches!(
            self,
            Self::Read(_) | Self::IsClaimed(..) | Self::Steps(..) | Self::List(..)
        )
    }

    /// How large the outcome is that it writes, in bytes.
    pub(crate) fn written(&self) -> Option<usize> {
        let outcome = match self {
            Self::Finish(ask, _) => match &ask.end {
                RecordEnd::Done { outcome, .. } => outcome,
                RecordEnd::Free { .. } => return None,
            },
            Self::StepFinish(_, Some(outcome), _) => outcome,
            Self::Decide(ask, _) => match &ask.decision {
                Decision::Resolve(Some(outcome)) => outcome,
                _ => return None,
            },
            _ => return None,
        };
        Some(outcome.bytes().len())
    }

    /// Whether `other`, which came before it, answers for both when they share a statement: two reads of one record,
    /// two claims of it by what was seen of it.
    pub(crate) fn shares_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Read(mine), Self::Read(other)) => {
                mine.key == other.key && mine.size == other.size
            }
            (Self::Claim(mine), Self::Claim(other)) => {
                mine.ask.key == other.ask.key && mine.ask.seen == other.ask.seen
            }
            _ => false,
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Self::Read(read) => read.reply.is_closed(),
            Self::Claim(claim) => claim.reply.is_closed(),
            Self::Finish(..) | Self::StepFinish(..) | Self::Undo(_) => false,
            Self::StepBegin(.., reply) => reply.is_closed(),
            Self::Steps(_, reply) => reply.is_closed(),
            Self::List(_, reply) => reply.is_closed(),
            Self::IsClaimed(_, reply) | Self::Decide(_, reply) => reply.is_closed(),
            Self::IssueToken(_, reply) => reply.is_closed(),
            Self::Forget(.., reply) => reply.is_closed(),
            Self::Clean(_, reply) => reply.is_closed(),
            Self::CleanLocks(_, reply) => reply.is_closed(),
        }
    }

    pub(crate) fn fail(self, error: Error) {
        match self {
            Self::Read(read) => drop(read.reply.send(Err(error))),
            Self::Claim(claim) => drop(claim.reply.send(Err(error))),
            Self::Finish(_, reply) | Self::StepFinish(_, _, reply) => {
                drop(reply.map(|reply| reply.send(Err(error))));
            }
            Self::Undo(_) => {}
            Self::StepBegin(.., reply) => drop(reply.send(Err(error))),
            Self::Steps(_, reply) => drop(reply.send(Err(error))),
            Self::List(_, reply) => drop(reply.send(Err(error))),
            Self::IsClaimed(_, reply) | Self::Decide(_, reply) => drop(reply.send(Err(error))),
            Self::IssueToken(_, reply) => drop(reply.send(Err(error))),
            Self::Forget(.., reply) => drop(reply.send(Err(error))),
            Self::Clean(_, reply) => drop(reply.send(Err(error))),
            Self::CleanLocks(_, reply) => drop(reply.send(Err(error))),
        }
    }

    pub(crate) fn doing(&self) -> &'static str {
        match self {
            Self::Read(_) | Self::IsClaimed(..) | Self::Steps(..) => "look up",
            Self::Claim(_) => "begin",
            Self::Finish(ask, _) => match ask.end {
                RecordEnd::Done { .. } => "complete",
                RecordEnd::Free { .. } => "release",
            },
            Self::Undo(_) => "release",
            Self::StepBegin(..) => "begin a step of",
            Self::StepFinish(..) => "keep a step of",
            Self::List(..) => "list records",
            Self::Decide(..) => "decide",
            Self::Forget(..) => "forget",
            Self::IssueToken(..) => "issue a form token",
            Self::Clean(..) | Self::CleanLocks(..) => "clean",
        }
    }
}

impl Core {
    /// The record of a key.
    pub(crate) async fn read_record(&self, key: &RecordKey) -> Result<Option<RecordRow>, Error> {
        let read = |reply| {
            RecordWork::Read(Read {
                key: key.clone(),
                size: None,
                reply,
            })
        };
        self.record(read).await
    }

    /// Hands work on records in, and waits for what comes of it.
    pub(crate) async fn record<T>(
        &self,
        work: impl FnOnce(Reply<T>) -> RecordWork,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        self.send(Op::Record(RecordOp {
            work: work(reply),
            fate: Fate::within(self.settings.patience),
        }));
        answer.await.unwrap_or_else(|_| Err(self.stopped()))
    }

    /// A step was begun, and did not happen: its record is in no doubt. (When this is given up, the end of the attempt says so.)
    pub(crate) fn forget_step(&self, ask: StepAsk) {
        self.send(Op::Record(RecordOp {
            work: RecordWork::StepFinish(ask, None, None),
            fate: Fate::within(self.settings.patience),
        }));
    }
}

/// Goes with the news that a step may begin: whoever does not take them has not begun it.
#[derive(Debug)]
pub(crate) struct UndoStep(Option<(Arc<Core>, StepAsk)>);

impl UndoStep {
    /// `None`: there is nothing to undo.
    pub(crate) fn new(begun: Option<(Arc<Core>, StepAsk)>) -> Self {
        Self(begun)
    }

    pub(crate) fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for UndoStep {
    fn drop(&mut self) {
        if let Some((core, ask)) = self.0.take() {
            core.forget_step(ask);
        }
    }
}

/// A running attempt. Dropping it frees the key in the background, unless the attempt has ended.
#[derive(Debug)]
pub(crate) struct RecordGuard {
    pub(crate) grant: Arc<Grant<RecordKey>>,
    pub(crate) core: Arc<Core>,
    /// How long the key is remembered when the attempt is given up; the same, when something was begun.
    forget: Duration,
    begun: Duration,
    /// An outcome is on its way: nothing is freed.
    ending: AtomicBool,
    /// The work is done, whether or not its outcome can be recorded: nothing is freed.
    worked: AtomicBool,
    /// How many attempts are not held against the key when this is dropped: this one, until its caller has received it.
    pardon: AtomicI32,
    /// Something was begun that the next attempt must go on with.
    bound: AtomicBool,
    /// A step that must not be repeated has begun, and may have happened.
    in_doubt: AtomicBool,
    ended: AtomicBool,
}

impl RecordGuard {
    pub(crate) fn new(grant: Arc<Grant<RecordKey>>, core: Arc<Core>, ask: &ClaimAsk) -> Self {
        grant.add_guard();
        core.renewals.add_record(&grant);
        Self {
            grant,
            core,
            forget: ask.forget,
            begun: ask.begun,
            ending: AtomicBool::new(false),
            worked: AtomicBool::new(false),
            pardon: AtomicI32::new(1),
            bound: AtomicBool::new(false),
            in_doubt: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    pub(crate) fn key(&self) -> &RecordKey {
        &self.grant.name
    }

    pub(crate) fn owner(&self) -> Uuid {
        self.grant.id
    }

    pub(crate) fn receive(&self) {
        self.pardon.store(0, Ordering::Release);
    }

    /// From here on the attempt does not count when its guard is dropped.
    #[cfg(feature = "tower")]
    pub(crate) fn pardon(&self) {
        self.pardon.fetch_max(1, Ordering::AcqRel);
    }

    /// The attempt is given up in good order: none is held against the key, also when that cannot be said to the
    /// database now, and dropping the guard says it.
    pub(crate) fn give_up(&self) -> RecordEnd {
        self.pardon.store(i32::MAX, Ordering::Release);
        self.free()
    }

    /// The work is done: from here on, dropping the guard does not free the key, which would let the work be done again.
    #[cfg(feature = "tower")]
    pub(crate) fn has_worked(&self) {
        self.worked.store(true, Ordering::Release);
    }

    /// The next attempt has to be of the same request.
    pub(crate) fn bind(&self) {
        self.bound.store(true, Ordering::Release);
    }

    /// Whether a step may have happened of which nothing is kept.
    pub(crate) fn doubt(&self, in_doubt: bool) {
        self.in_doubt.store(in_doubt, Ordering::Release);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(crate) fn ask(&self, end: RecordEnd) -> FinishAsk {
        FinishAsk {
            key: self.grant.name.clone(),
            owner: self.grant.id,
            attempt: self.grant.fence,
            end,
        }
    }

    fn free(&self) -> RecordEnd {
        let pardon = self.pardon.load(Ordering::Acquire);
        RecordEnd::Free {
            bound: self.bound.load(Ordering::Acquire),
            pardon,
            // What a step has done, and how many attempts have vanished, outlives the retention of an outcome.
            forget: if pardon == 0 { self.begun } else { self.forget },
            begun: self.begun,
            in_doubt: self.in_doubt.load(Ordering::Acquire),
        }
    }

    /// Ends the attempt. Dropping the future does not stop it. After an error it may be tried again.
    pub(crate) async fn finish(&self, end: RecordEnd) -> Result<Finished, Error> {
        let ask = self.ask(end);
        let work = |reply| RecordWork::Finish(ask, Some(reply));
        // Whoever drops this future, and then the guard, must not free what is being completed.
        self.ending.store(true, Ordering::Release);
        let finished = self.core.record(work).await;
        self.ending.store(false, Ordering::Release);
        let finished = finished?;
        if finished != Finished::Locked {
            self.end();
        }
        Ok(finished)
    }

    fn end(&self) {
        if !self.ended.swap(true, Ordering::AcqRel) {
            self.core.renewals.remove(self.grant.id);
            self.grant.drop_guard(Moment::now());
        }
    }

    /// Resolves when the lease is lost; never, when the attempt ends instead.
    pub(crate) async fn lost(&self) -> Loss {
        match self.grant.lost().await {
            Some(loss) => loss,
            None => std::future::pending().await,
        }
    }
}

impl Drop for RecordGuard {
    fn drop(&mut self) {
        if self.has_ended() {
            return;
        }
        if self.ending.load(Ordering::Acquire) || self.worked.load(Ordering::Acquire) {
            return self.end();
        }
        let ask = self.ask(self.free());
        let mut fate = Fate::within(self.core.settings.patience);
        // In the background there is time until the lease ends by itself.
        fate.give_up = fate.give_up.max(self.grant.status().deadline);
        self.end();
        self.core.send(Op::Record(RecordOp {
            work: RecordWork::Finish(ask, None),
            fate,
        }));
    }
}
