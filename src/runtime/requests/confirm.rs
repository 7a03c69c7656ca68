//! Confirming a grant that was passed on to a waiter: only then it is held.

use super::pending_grant::PendingGrant;
use crate::model::{Error, Moment, Subject};
use crate::runtime::batch::head::{JobHead, Progress};
use crate::runtime::batch::job::{AnswerTime, Job, Next, Rank, Reply, Request, Task};
use crate::runtime::held::guard::Guard;
use crate::runtime::wait::queue_place::QueuePlace;
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::queue::{ConfirmOutcome, ConfirmParams};

/// The outcome of confirming. When no caller receives it, dropping it releases the lease, or leaves the queue.
#[derive(Debug)]
pub(crate) enum ConfirmAnswer {
    Held(Guard),
    /// The window is over: it has to join again.
    Gone,
    /// A transaction has the row locked.
    Locked(QueuePlace),
}

#[derive(Debug)]
pub(crate) struct Confirm {
    params: ConfirmParams,
    wanted: PendingGrant,
    place: QueuePlace,
    reply: Reply<ConfirmAnswer>,
}

impl Confirm {
    /// `fences`: how many fences to reserve for the cohort of the waiter.
    pub(crate) fn task(
        (mut wanted, fences): (PendingGrant, i64),
        place: QueuePlace,
        reply: Reply<ConfirmAnswer>,
        give_up: Moment,
    ) -> Task<Self> {
        let subject = Subject::of_row(&wanted.name);
        let head = JobHead::acquire(subject, give_up);
        wanted.ticket = Some(place.seat.ticket.clone());
        wanted.is_queued = true;
        wanted.position = place.seat.position();
        let session = wanted.session.as_ref();
        let params = ConfirmParams {
            name: wanted.name.clone(),
            grant_id: wanted.grant_id,
            ttl: wanted.ttl,
            session: session.map(|asked| asked.session.grant.id),
            fences,
        };
        let request = Self {
            params,
            wanted,
            place,
            reply,
        };
        Task { head, request }
    }
}

impl Request for Confirm {
    /// `None`: a transaction has the row locked.
    type Outcome = Option<ConfirmOutcome>;

    const RANK: Rank = Rank::Confirm;

    const MAY_GRANT: bool = true;

    async fn send(
        tasks: &mut [Task<Self>],
        store: &mut dyn Store,
    ) -> Result<Vec<Option<ConfirmOutcome>>, Fault> {
        let mut confirmed = Vec::with_capacity(1);
        for task in tasks {
            confirmed.push(store.queue_confirm(&task.request.params).await?);
        }
        Ok(confirmed)
    }

    fn settle(mut task: Task<Self>, outcome: Option<ConfirmOutcome>, answered: AnswerTime) -> Next {
        if matches!(outcome, Some(ConfirmOutcome::Held { .. }))
            && task.request.wanted.is_late(answered)
        {
            task.head.progress.sent = true;
            return Next::Then(task.into());
        }
        let Self {
            params,
            mut wanted,
            place,
            reply,
            ..
        } = task.request;
        match outcome {
            Some(ConfirmOutcome::Held { fence, reserved }) => {
                wanted.reserved = reserved;
                let late = place.late;
                place.forget();
                if let Some(guard) = wanted.guard(fence, late, answered.sent, params.ttl) {
                    let _ = reply.send(Ok(ConfirmAnswer::Held(guard)));
                }
            }
            Some(ConfirmOutcome::Gone) => {
                drop(place);
                let _ = reply.send(Ok(ConfirmAnswer::Gone));
            }
            None => {
                let _ = reply.send(Ok(ConfirmAnswer::Locked(place)));
            }
        }
        Next::Done
    }

    /// Undoes a confirm that was sent: it may have happened, or may happen late.
    fn undo(&self, progress: &Progress, now: Moment) -> Option<Job> {
        let undo = || self.wanted.undone(progress, now).into();
        progress.sent.then(undo)
    }

    /// Dropping the place leaves the queue, and passes the name on if it was confirmed.
    fn fail(self, error: Error) {
        let _ = self.reply.send(Err(error));
    }

    fn is_closed(&self) -> bool {
        self.reply.is_closed()
    }
}
