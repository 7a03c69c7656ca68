//! What a lane is asked to do.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::Core;
use super::grant::Grant;
use super::guard::Guard;
use super::record::{RecordOp, RecordWork};
use crate::model::Moment;
use crate::model::{Busy, Error, LockInfo, Name, ReleaseOutcome, Subject};
use crate::store::lease::{ReleaseAsk, TakeAsk};

pub(crate) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// The outcome of an attempt to take a lease. The guard is made by the lane: when nobody is there
/// to receive it any more, dropping it releases the lease.
#[derive(Debug)]
pub(crate) enum Attempt {
    Held(Guard),
    Busy(Busy),
}

#[derive(Debug)]
pub(crate) enum Op {
    Take(Take),
    Release(Release),
    Look(Look),
    Record(RecordOp),
    /// Answered when everything before it is done.
    Flush(oneshot::Sender<()>),
}

/// A fresh grant.
#[derive(Debug)]
pub(crate) struct Take {
    pub(crate) ask: TakeAsk,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) core: Arc<Core>,
    pub(crate) reply: Reply<Attempt>,
    pub(crate) fate: Fate,
}

/// The end of a grant: its last guard is gone, or nobody will learn of it.
#[derive(Debug)]
pub(crate) struct Release {
    pub(crate) ask: ReleaseAsk,
    /// `None`: an acquire is undone whose outcome is unknown.
    pub(crate) grant: Option<Arc<Grant>>,
    /// How many sendings of its acquire may reach the server yet.
    pub(crate) late: u32,
    /// An undo that found nothing to undo so far.
    pub(crate) repeated: bool,
    pub(crate) reply: Option<Reply<ReleaseOutcome>>,
    pub(crate) fate: Fate,
}

/// A look at the table, or an administrator's order. Runs alone.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) what: LookAt,
    pub(crate) fate: Fate,
}

#[derive(Debug)]
pub(crate) enum LookAt {
    Inspect(Name, Reply<Option<LockInfo>>),
    List(Reply<Vec<LockInfo>>),
    /// Makes the row when there is none and the flag says so.
    Row(Name, bool, Reply<Option<Seen>>),
    ForceRelease(Name, Reply<Option<LockInfo>>),
}

/// The row of a name.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) fence: i64,
    /// Who has the row: a lease that has run out may still be pinned.
    pub(crate) owner: Option<LockInfo>,
}

impl Seen {
    /// Who has a live lease.
    pub(crate) fn holder(&self) -> Option<&LockInfo> {
        self.owner
            .as_ref()
            .filter(|owner| !owner.remaining.is_zero())
    }
}

/// How far an operation has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fate {
    /// From here on it is not tried again.
    pub(crate) give_up: Moment,
    /// It was sent and not answered: it may have happened, at least in part.
    pub(crate) sent: bool,
    /// How often the connection broke under it: the server may be working on as many sendings still, or get them late.
    pub(crate) doubts: u32,
    /// How often the connection broke under a statement that it was in.
    pub(crate) breaks: u32,
    /// With how many others, and itself, it may share a batch: few, when statements that it is in break the connection.
    pub(crate) company: usize,
    /// How often it was put off.
    pub(crate) tries: u32,
    /// Its place among all that have arrived at the lane.
    pub(crate) number: u64,
}

impl Fate {
    pub(crate) fn within(patience: Duration) -> Self {
        Self::until(Moment::now() + patience)
    }

    pub(crate) fn until(give_up: Moment) -> Self {
        Self {
            give_up,
            sent: false,
            doubts: 0,
            breaks: 0,
            company: usize::MAX,
            tries: 0,
            number: 0,
        }
    }

    /// Whether an earlier sending of it may have happened.
    pub(crate) fn in_doubt(&self) -> bool {
        self.doubts > 0
    }
}

impl Fate {
    /// The connection broke under a statement that it was in, with as many others and itself. From the break of the number
    /// `patient` on, one of them may be guilty: they are sent again with fewer others.
    pub(crate) fn broke(&mut self, together: usize, patient: u32) {
        self.breaks += 1;
        if self.breaks >= patient {
            self.company = self.company.min((together / 16).max(1));
        }
    }

    /// It was answered: whatever broke the connection was something else.
    pub(crate) fn innocent(self) -> Self {
        Self {
            breaks: 0,
            company: usize::MAX,
            ..self
        }
    }
}

impl Op {
    /// What it is about; two operations on one subject never share a statement.
    pub(crate) fn subject(&self) -> Option<Subject> {
        let name = match self {
            Self::Take(op) => &op.ask.name,
            Self::Release(op) => &op.ask.name,
            Self::Look(op) => match &op.what {
                LookAt::Inspect(name, _)
                | LookAt::Row(name, ..)
                | LookAt::ForceRelease(name, _) => name,
                LookAt::List(_) => return None,
            },
            Self::Record(op) => return op.work.key().cloned().map(Subject::Record),
            Self::Flush(_) => return None,
        };
        Some(Subject::Lock(name.clone()))
    }

    pub(crate) fn fate(&self) -> Option<Fate> {
        match self {
            Self::Take(op) => Some(op.fate),
            Self::Release(op) => Some(op.fate),
            Self::Look(op) => Some(op.fate),
            Self::Record(op) => Some(op.fate),
            Self::Flush(_) => None,
        }
    }

    pub(crate) fn fate_mut(&mut self) -> Option<&mut Fate> {
        match self {
            Self::Take(op) => Some(&mut op.fate),
            Self::Release(op) => Some(&mut op.fate),
            Self::Look(op) => Some(&mut op.fate),
            Self::Record(op) => Some(&mut op.fate),
            Self::Flush(_) => None,
        }
    }

    /// Whether it frees a name whoever holds it.
    pub(crate) fn is_forced(&self) -> bool {
        matches!(self, Self::Look(op) if matches!(op.what, LookAt::ForceRelease(..)))
    }

    /// Whether it removes rows that nobody needs any more.
    pub(crate) fn cleans(&self) -> bool {
        matches!(self, Self::Record(op) if op.work.cleans())
    }

    /// Whether it undoes what may never come: it is repeated after long pauses, and nobody waits for it.
    pub(crate) fn is_repeated_undo(&self) -> bool {
        match self {
            Self::Release(op) => op.repeated,
            Self::Record(op) => matches!(&op.work, RecordWork::Undo(undo) if undo.repeated),
            _ => false,
        }
    }

    /// The connection broke under it. A look changes nothing: there is nothing to doubt.
    pub(crate) fn doubt(&mut self) {
        let looks = match self {
            Self::Look(_) => !self.is_forced(),
            Self::Record(op) => op.work.only_looks(),
            _ => false,
        };
        if let Some(fate) = self.fate_mut().filter(|_| !looks) {
            fate.doubts += 1;
        }
    }

    /// Whether nobody waits for it any more and it can be left undone without a trace.
    pub(crate) fn is_abandoned(&self) -> bool {
        match self {
            Self::Take(op) => op.reply.is_closed() && !op.fate.sent,
            Self::Release(_) => false,
            Self::Look(op) => match &op.what {
                LookAt::Inspect(_, reply) => reply.is_closed(),
                LookAt::List(reply) => reply.is_closed(),
                LookAt::Row(.., reply) => reply.is_closed(),
                LookAt::ForceRelease(..) => false,
            },
            Self::Record(op) => op.work.is_closed() && (op.work.only_looks() || !op.fate.sent),
            Self::Flush(reply) => reply.is_closed(),
        }
    }

    /// Answers with an error.
    pub(crate) fn fail(self, error: Error) {
        match self {
            Self::Take(op) => drop(op.reply.send(Err(error))),
            Self::Release(op) => {
                if let Some(reply) = op.reply {
                    let _ = reply.send(Err(error));
                }
            }
            Self::Look(op) => match op.what {
                LookAt::Inspect(_, reply) | LookAt::ForceRelease(_, reply) => {
                    drop(reply.send(Err(error)));
                }
                LookAt::List(reply) => drop(reply.send(Err(error))),
                LookAt::Row(.., reply) => drop(reply.send(Err(error))),
            },
            Self::Record(op) => op.work.fail(error),
            Self::Flush(reply) => drop(reply.send(())),
        }
    }

    /// What was tried, for messages.
    pub(crate) fn doing(&self) -> &'static str {
        match self {
            Self::Take(_) => "acquire",
            Self::Release(_) => "release",
            Self::Look(op) => match op.what {
                LookAt::Inspect(..) => "inspect",
                LookAt::List(_) => "list",
                LookAt::Row(..) => "look up",
                LookAt::ForceRelease(..) => "force release",
            },
            Self::Record(op) => op.work.doing(),
            Self::Flush(_) => "flush",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_held_while_its_lease_lasts() {
        let seen = |remaining| Seen {
            fence: 1,
            owner: Some(LockInfo {
                name: Name::new("a").unwrap(),
                owner: uuid::Uuid::nil(),
                fence: 1,
                holder: "a test".into(),
                acquired_at: chrono::DateTime::UNIX_EPOCH,
                expires_at: chrono::DateTime::UNIX_EPOCH,
                remaining,
            }),
        };
        assert!(seen(std::time::Duration::from_micros(1)).holder().is_some());
        // It may be pinned.
        assert!(seen(std::time::Duration::ZERO).holder().is_none());
        let (fence, owner) = (1, None);
        assert!(Seen { fence, owner }.holder().is_none());
    }
}
