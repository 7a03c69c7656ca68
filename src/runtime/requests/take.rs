//! Acquiring a lease.
//!
//! A grant is named by its own id, so an acquire may be sent twice. A grant from an earlier sending, or from a late
//! answer, is confirmed by a renewal, which reports how much of the lease's time is left.

use std::time::Duration;

use super::pending_grant::PendingGrant;
use super::recheck::{GrantRequest, Recheck};
use crate::model::{Busy, Error, Kind, Moment, Name, Subject};
use crate::runtime::batch::head::{JobHead, Progress};
use crate::runtime::batch::job::{AnswerTime, Job, Next, Rank, Reply, Request, Task};
use crate::runtime::held::guard::Guard;
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::lease::{RenewOutcome, RenewParams, TakeOutcome, TakeParams};
use crate::store::verbs::row::LockRow;

/// The outcome of asking for a grant. The request makes the guard: when no caller receives it, dropping it releases
/// the lease.
#[derive(Debug)]
pub(crate) enum AcquireAnswer<T> {
    Held(Guard),
    Not(T),
}

/// A fresh grant.
#[derive(Debug)]
pub(crate) struct Take {
    pub(crate) params: TakeParams,
    pub(crate) wanted: PendingGrant,
    pub(crate) reply: Reply<AcquireAnswer<Busy>>,
}

impl Take {
    pub(crate) fn task(
        params: TakeParams,
        wanted: PendingGrant,
        reply: Reply<AcquireAnswer<Busy>>,
        give_up: Moment,
    ) -> Task<Self> {
        let subject = Subject::Lock(params.name.clone());
        let in_session = params.session.map_or(0, |_| TakeParams::IN_SESSION);
        let size = (
            params.name.as_bytes().len(),
            params.holder.len() + in_session,
        );
        let head = JobHead {
            size: Some(size),
            ..JobHead::acquire(subject, give_up)
        };
        let request = Self {
            params,
            wanted,
            reply,
        };
        Task { head, request }
    }

    /// The name is held, or changing hands; or the database is in quarantine for this time, and so many wait. A late
    /// sending may still be granted it.
    fn busy(
        self,
        progress: &Progress,
        row: Option<LockRow>,
        quarantine: Option<(Duration, u32)>,
    ) -> Next {
        // An earlier sending, or this grant itself, may have the row locked.
        let is_unknown = progress.in_doubt() || (progress.sent && row.is_none());
        let undo = is_unknown.then(|| self.wanted.undone(progress, Moment::now()));
        let name = self.params.name;
        let mut busy = busy(name, Kind::Lock, row);
        if let (Ok(busy), Some((left, waiters))) = (&mut busy, quarantine) {
            (busy.quarantine, busy.waiters) = (Some(left), waiters);
        }
        let _ = self.reply.send(busy.map(AcquireAnswer::Not));
        Next::undo(undo, progress.in_doubt())
    }
}

impl GrantRequest for Take {
    type Renewal = RenewParams;

    fn renewal(&self) -> RenewParams {
        RenewParams {
            name: self.params.name.clone(),
            grant_id: self.params.grant_id,
            ttl: self.params.ttl,
        }
    }

    async fn renew(all: &[RenewParams], store: &mut dyn Store) -> Result<Vec<RenewOutcome>, Fault> {
        store.lease_renew(all).await
    }

    fn granted(self, progress: &Progress, fence: i64, sent: Moment, left: Duration) -> Next {
        let guard = self.wanted.guard(fence, progress.doubts, sent, left);
        guard.map_or(Next::Done, |guard| {
            Next::answer(self.reply, Ok(AcquireAnswer::Held(guard)))
        })
    }

    fn lapsed(self, progress: &Progress) -> Next {
        self.busy(progress, None, None)
    }
}

impl Request for Take {
    type Outcome = TakeOutcome;

    const RANK: Rank = Rank::Exchange;

    const MAY_GRANT: bool = true;

    async fn send(
        tasks: &mut [Task<Self>],
        store: &mut dyn Store,
    ) -> Result<Vec<TakeOutcome>, Fault> {
        let all: Vec<TakeParams> = tasks
            .iter()
            .map(|task| task.request.params.clone())
            .collect();
        store.lease_take(&all).await
    }

    fn settle(task: Task<Self>, outcome: TakeOutcome, answered: AnswerTime) -> Next {
        let (progress, take) = (task.head.progress, &task.request);
        match outcome {
            TakeOutcome::Granted { fence }
                if progress.sent || answered.is_stale(take.params.ttl) =>
            {
                Recheck::after(task, fence)
            }
            TakeOutcome::Granted { fence } => {
                let ttl = take.params.ttl;
                task.request.granted(&progress, fence, answered.sent, ttl)
            }
            // An earlier sending was granted it: confirm the lease.
            TakeOutcome::Busy(Some(row)) if progress.sent && row.is_of(take.params.grant_id) => {
                Recheck::after(task, row.fence)
            }
            // The row may be locked by an earlier sending, which the server has not finished.
            TakeOutcome::Busy(None) | TakeOutcome::Quarantined { .. } if progress.in_doubt() => {
                Next::Later(task.into())
            }
            TakeOutcome::Busy(row) => task.request.busy(&progress, row, None),
            TakeOutcome::Quarantined { left, waiters } => {
                task.request.busy(&progress, None, Some((left, waiters)))
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
    fn undo(&self, progress: &Progress, now: Moment) -> Option<Job> {
        progress
            .sent
            .then(|| self.wanted.undone(progress, now).into())
    }
}

/// Who is in the way, by the row.
pub(crate) fn busy(name: Name, kind: Kind, row: Option<LockRow>) -> Result<Busy, Error> {
    row.as_ref().map_or(Ok(()), |row| row.check_kind(kind))?;
    let waiters = row.as_ref().map_or(0, |row| row.waiters);
    let quarantine = row.as_ref().and_then(|row| row.quarantine);
    // Without a live grant, the name is about to be passed on.
    let pause = row.as_ref().and_then(|row| row.pause.clone());
    let pause = pause.map(|pause| pause.info().map(Box::new)).transpose()?;
    let holder = row.map(LockRow::grant).transpose()?.flatten();
    let holder = holder.filter(|holder| !holder.remaining.is_zero());
    Ok(Busy {
        name,
        kind,
        holder,
        waiters,
        quarantine,
        pause,
    })
}
