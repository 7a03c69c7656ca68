//! Joining the queue of a name: the name is granted at once when it is free and nobody waits.

use super::pending_grant::PendingGrant;
use super::take::busy;
use super::{MAX_UNDO, leave};
use crate::model::{Busy, Error, Kind, Moment, Share, Subject};
use crate::runtime::batch::head::{JobHead, Progress};
use crate::runtime::batch::job::{AnswerTime, Job, Next, Rank, Reply, Request, Task};
use crate::runtime::held::guard::Guard;
use crate::runtime::wait::queue_place::QueuePlace;
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::queue::{JoinOutcome, JoinParams};
use crate::store::verbs::row::wrong_kind;

/// The outcome of joining. When no caller receives it, dropping it releases the lease, or leaves the queue.
#[derive(Debug)]
pub(crate) enum JoinAnswer {
    Held(Guard),
    Queued(QueuePlace),
    /// The queue is as long as the caller allows.
    Full(Busy),
    /// A transaction has the row locked.
    Locked,
}

#[derive(Debug)]
pub(crate) struct Join {
    pub(crate) params: JoinParams,
    /// Of what it wants a part: a permit.
    share: Option<Share>,
    pub(crate) wanted: PendingGrant,
    pub(crate) place: QueuePlace,
    reply: Reply<JoinAnswer>,
}

impl Join {
    pub(crate) fn task(
        (params, share): (JoinParams, Option<Share>),
        mut wanted: PendingGrant,
        place: QueuePlace,
        reply: Reply<JoinAnswer>,
        give_up: Moment,
    ) -> Task<Self> {
        let subject = Subject::Lock(params.name.clone());
        let head = JobHead::acquire(subject, give_up);
        wanted.ticket = Some(place.seat.ticket.clone());
        let request = Self {
            params,
            share,
            wanted,
            place,
            reply,
        };
        Task { head, request }
    }

    /// Leaves the queue wherever it stands, and frees the grants that its sendings got, or may still get.
    fn undone(&self, progress: &Progress) -> Job {
        let (params, waiters) = (&self.params, &self.wanted.waiters);
        let late = (progress.doubts, params.ttl);
        let undo = leave::of(
            self.place.seat.ticket.clone(),
            None,
            late,
            waiters,
            params.ttl.min(MAX_UNDO),
        );
        undo.repeated().into()
    }
}

impl Request for Join {
    /// `None`: a transaction has the row locked.
    type Outcome = Option<JoinOutcome>;

    const RANK: Rank = Rank::Join;

    const MAY_GRANT: bool = true;

    async fn send(
        tasks: &mut [Task<Self>],
        store: &mut dyn Store,
    ) -> Result<Vec<Option<JoinOutcome>>, Fault> {
        let mut joined = Vec::with_capacity(1);
        for task in tasks {
            let Self { params, share, .. } = &task.request;
            joined.push(match share {
                None => store.queue_join(params).await?,
                Some(share) => store.permit_join(params, *share).await?,
            });
        }
        Ok(joined)
    }

    fn settle(mut task: Task<Self>, outcome: Option<JoinOutcome>, answered: AnswerTime) -> Next {
        if matches!(outcome, Some(JoinOutcome::Granted { .. }))
            && task.request.wanted.is_late(answered)
        {
            task.head.progress.sent = true;
            return Next::Then(task.into());
        }
        let progress = task.head.progress;
        if outcome.is_none() && progress.in_doubt() && !progress.give_up.has_passed() {
            // An earlier sending may have queued it: another ask would be behind those who came meanwhile.
            return Next::Later(task.into());
        }
        let undo = progress.in_doubt().then(|| task.request.undone(&progress));
        let Self {
            params,
            share,
            wanted,
            mut place,
            reply,
            ..
        } = task.request;
        let kind = share.map_or(Kind::Lock, |share| share.kind);
        match outcome {
            Some(JoinOutcome::Granted { fence }) => {
                place.forget();
                if let Some(guard) = wanted.guard(fence, progress.doubts, answered.sent, params.ttl)
                {
                    let _ = reply.send(Ok(JoinAnswer::Held(guard)));
                }
                return Next::Done;
            }
            Some(JoinOutcome::Queued {
                position,
                is_orphaned,
            }) => {
                tracing::debug!(name = %params.name, position, "waits in the queue");
                place.late = progress.doubts;
                place.queued(position, is_orphaned);
                let _ = reply.send(Ok(JoinAnswer::Queued(place)));
                return Next::Done;
            }
            Some(JoinOutcome::Full(row)) => {
                place.forget();
                let busy = busy(params.name, kind, Some(row));
                let _ = reply.send(busy.map(JoinAnswer::Full));
            }
            Some(JoinOutcome::Mismatch(is)) => {
                place.forget();
                let _ = reply.send(Err(wrong_kind(params.name, is, kind)));
            }
            None => {
                place.forget();
                let _ = reply.send(Ok(JoinAnswer::Locked));
            }
        }
        undo.map_or(Next::Done, Next::Later)
    }

    fn fail(self, error: Error) {
        self.place.forget();
        let _ = self.reply.send(Err(error));
    }

    fn is_closed(&self) -> bool {
        self.reply.is_closed()
    }

    /// Undoes a join that was sent: it may have happened.
    fn undo(&self, progress: &Progress, _: Moment) -> Option<Job> {
        progress.sent.then(|| self.undone(progress))
    }
}
