//! Acquiring a lease.
//!
//! A grant is named by its own id, so an acquire may be sent twice. A grant from an earlier sending, or from a late answer, is
//! confirmed by a renewal, which reports how much of the lease's time is left.

use std::time::Duration;

use super::exchange::Exchange;
use super::release::{self, Release};
use super::wanted::Wanted;
use crate::model::{Busy, Error, Kind, Moment, Name, Subject};
use crate::runtime::head::{Fate, Head, Manner};
use crate::runtime::job::{Answered, Batch, Job, Next, Rank, Reply, Task, Verb};
use crate::runtime::lease_guard::Guard;
use crate::store::Store;
use crate::store::fault::Fault;
use crate::store::lease::{RenewAsk, Renewed, TakeAsk, Taken};
use crate::store::row::LockRow;

/// The outcome of an acquire. The verb makes the guard: when no caller receives it, dropping it releases the lease.
#[derive(Debug)]
pub(crate) enum Acquired {
    Held(Guard),
    Busy(Busy),
}

/// A fresh grant.
#[derive(Debug)]
pub(crate) struct Take {
    pub(crate) ask: TakeAsk,
    pub(crate) wanted: Wanted,
    pub(crate) reply: Reply<Acquired>,
}

impl Take {
    pub(crate) fn task(
        ask: TakeAsk,
        wanted: Wanted,
        reply: Reply<Acquired>,
        give_up: Moment,
    ) -> Task<Self> {
        let subject = Subject::Lock(ask.name.clone());
        let in_session = ask.session.map_or(0, |_| TakeAsk::IN_SESSION);
        let request = (ask.name.as_bytes().len(), ask.holder.len() + in_session);
        let fate = Fate::until(give_up);
        let head = Head {
            request: Some(request),
            ..Head::new(subject, "acquire", Manner::Acquire, fate)
        };
        let verb = Self { ask, wanted, reply };
        Task { head, verb }
    }

    /// Hands the guard to the caller. When the caller has gone, dropping the guard releases the lease.
    fn granted(self, fate: &Fate, fence: i64, sent: Moment, left: Duration) -> Next {
        let guard = self.wanted.guard(fence, fate.doubts, sent, left);
        guard.map_or(Next::Done, |guard| {
            Next::answer(self.reply, Ok(Acquired::Held(guard)))
        })
    }

    /// The name is held, or changing hands; or the database is in quarantine for this time, and so many wait. A late sending may still be granted it.
    fn busy(self, fate: &Fate, row: Option<LockRow>, quarantine: Option<(Duration, u32)>) -> Next {
        // An earlier sending, or this grant itself, may have the row locked.
        let is_unknown = fate.in_doubt() || (fate.sent && row.is_none());
        let undo = is_unknown.then(|| self.undo(fate, Moment::now()));
        let name = self.ask.name;
        let mut busy = busy(name, Kind::Lock, row);
        if let (Ok(busy), Some((left, waiters))) = (&mut busy, quarantine) {
            (busy.quarantine, busy.waiters) = (Some(left), waiters);
        }
        let _ = self.reply.send(busy.map(Acquired::Busy));
        undo.map_or(Next::Done, |undo| {
            let undo = if fate.in_doubt() {
                undo.repeated()
            } else {
                undo
            };
            Next::Later(undo.into())
        })
    }

    /// Frees the grants that its sendings got, or may still get.
    fn undo(&self, fate: &Fate, now: Moment) -> Task<Release> {
        let (ask, waiters) = (&self.ask, &self.wanted.core.waiters);
        release::undo(&ask.name, ask.grant_id, ask.ttl, fate.doubts, waiters, now)
    }
}

impl Verb for Take {
    type Outcome = Taken;

    const RANK: Rank = Rank::Exchange;

    const MAY_GRANT: bool = true;

    async fn send(tasks: &mut [Task<Self>], store: &mut dyn Store) -> Result<Vec<Taken>, Fault> {
        let asks: Vec<TakeAsk> = tasks.iter().map(|task| task.verb.ask.clone()).collect();
        store.lease_take(&asks).await
    }

    fn mixed(task: Task<Self>) -> Result<Box<dyn Batch>, Task<Self>> {
        Ok(Exchange::of_take(task))
    }

    fn settle(task: Task<Self>, outcome: Taken, answered: Answered) -> Next {
        let (fate, take) = (task.head.fate, &task.verb);
        match outcome {
            Taken::Granted { fence } if fate.sent || answered.is_stale(take.ask.ttl) => {
                Confirm::after(task, fence)
            }
            Taken::Granted { fence } => {
                let ttl = take.ask.ttl;
                task.verb.granted(&fate, fence, answered.sent, ttl)
            }
            // An earlier sending was granted it: confirm the lease.
            Taken::Busy(Some(row)) if fate.sent && row.is_of(take.ask.grant_id) => {
                Confirm::after(task, row.fence)
            }
            // The row may be locked by an earlier sending, which the server has not finished.
            Taken::Busy(None) | Taken::Quarantined { .. } if fate.in_doubt() => {
                Next::Later(task.into())
            }
            Taken::Busy(row) => task.verb.busy(&fate, row, None),
            Taken::Quarantined { left, waiters } => {
                task.verb.busy(&fate, None, Some((left, waiters)))
            }
        }
    }

    fn fail(self, error: Error) {
        let _ = self.reply.send(Err(error));
    }

    fn is_closed(&self) -> bool {
        self.reply.is_closed()
    }

    /// Undoes an acquire that was sent: it may have happened.
    fn undo(task: &Task<Self>, now: Moment) -> Option<Job> {
        let fate = &task.head.fate;
        fate.sent.then(|| task.verb.undo(fate, now).into())
    }
}

/// Who is in the way, by the row.
pub(super) fn busy(name: Name, kind: Kind, row: Option<LockRow>) -> Result<Busy, Error> {
    row.as_ref().map_or(Ok(()), |row| row.check_kind(kind))?;
    let waiters = row.as_ref().map_or(0, |row| row.waiters);
    let quarantine = row.as_ref().and_then(|row| row.quarantine);
    // Without a live grant, the name is about to be passed on.
    let holder = row.map(LockRow::grant).transpose()?.flatten();
    let holder = holder.filter(|holder| !holder.remaining.is_zero());
    Ok(Busy {
        name,
        kind,
        holder,
        waiters,
        quarantine,
    })
}

/// Confirms a grant whose lease may have little time left.
#[derive(Debug)]
pub(crate) struct Confirm {
    take: Take,
    fence: i64,
}

impl Confirm {
    fn after(task: Task<Take>, fence: i64) -> Next {
        let Task {
            mut head,
            verb: take,
        } = task;
        head.fate.sent = true;
        let verb = Self { take, fence };
        Next::Then(Task { head, verb }.into())
    }

    fn take(task: Task<Self>) -> Task<Take> {
        Task {
            head: task.head,
            verb: task.verb.take,
        }
    }
}

impl Verb for Confirm {
    type Outcome = Renewed;

    const RANK: Rank = Rank::Confirm;

    async fn send(tasks: &mut [Task<Self>], store: &mut dyn Store) -> Result<Vec<Renewed>, Fault> {
        let ask = |task: &Task<Self>| {
            let ask = &task.verb.take.ask;
            RenewAsk {
                name: ask.name.clone(),
                grant_id: ask.grant_id,
                ttl: ask.ttl,
            }
        };
        let asks: Vec<RenewAsk> = tasks.iter().map(ask).collect();
        store.lease_renew(&asks).await
    }

    fn settle(task: Task<Self>, outcome: Renewed, answered: Answered) -> Next {
        let (fate, Self { take, fence }) = (task.head.fate, task.verb);
        match outcome {
            Renewed::Live { remaining } => take.granted(&fate, fence, answered.sent, remaining),
            // It was granted, and has expired meanwhile.
            Renewed::Gone => take.busy(&fate, None, None),
        }
    }

    fn fail(self, error: Error) {
        self.take.fail(error);
    }

    fn is_closed(&self) -> bool {
        self.take.is_closed()
    }

    fn undo(task: &Task<Self>, now: Moment) -> Option<Job> {
        let fate = &task.head.fate;
        fate.sent.then(|| task.verb.take.undo(fate, now).into())
    }

    /// Sends the acquire again: it finds the grant that it got.
    fn again(task: Task<Self>) -> Job {
        Self::take(task).into()
    }
}
