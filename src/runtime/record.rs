//! Records: what a lane is asked to do with them.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::Core;
use super::attempt::RecordGuard;
use super::op::{Fate, Op, Reply};
use super::token::NewToken;
use crate::model::FormToken;
use crate::model::{Error, Outcome, RecordKey};
use crate::store::clean::CleanedRows;
use crate::store::record::{ClaimAsk, FinishAsk, Finished, RecordEnd, RecordRow};
use crate::store::record_admin::{DecideAsk, Decision, ListAsk};
use crate::store::step::{StepAsk, StepBegun, StepRow};

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

/// A walk through the lock rows, to remove those that nobody uses; see
/// [`lock_clean`](crate::store::clean::CleanStore::lock_clean).
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
