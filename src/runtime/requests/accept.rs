//! Confirming a grant that was passed on to a waiter: only then it is held.

use super::release;
use super::wanted::Wanted;
use crate::model::{Error, Moment, Subject};
use crate::runtime::batch::head::{Head, Manner, Progress};
use crate::runtime::batch::job::{Answered, Job, Next, Rank, Reply, Task, Verb};
use crate::runtime::held::guard::Guard;
use crate::runtime::wait::queue_place::Place;
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::queue::{ConfirmAsk, Confirmed};

/// The outcome of confirming. When no caller receives it, dropping it releases the lease, or leaves the queue.
#[derive(Debug)]
pub(crate) enum Accepted {
    Held(Guard),
    /// The window is over: it has to join again.
    Gone,
    /// A transaction has the row locked.
    Locked(Place),
}

#[derive(Debug)]
pub(crate) struct Accept {
    ask: ConfirmAsk,
    wanted: Wanted,
    place: Place,
    /// The grant was confirmed by a second sending.
    is_confirmed: bool,
    reply: Reply<Accepted>,
}

impl Accept {
    /// `fences`: how many fences to reserve for the cohort of the waiter. `lingers`: its lease may linger.
    pub(crate) fn task(
        (mut wanted, fences, lingers): (Wanted, i64, bool),
        place: Place,
        reply: Reply<Accepted>,
        give_up: Moment,
    ) -> Task<Self> {
        let subject = Subject::of_row(&wanted.name);
        let head = Head::new(
            subject,
            "acquire",
            Manner::Acquire,
            Progress::until(give_up),
        );
        wanted.ticket = Some(place.ticket().clone());
        wanted.is_queued = true;
        let session = wanted.session.as_ref();
        let ask = ConfirmAsk {
            name: wanted.name.clone(),
            grant_id: wanted.grant_id,
            ttl: wanted.ttl,
            session: session.map(|asked| asked.session.grant.id),
            fences,
            recall: lingers.then(|| place.session().grant.id),
        };
        let verb = Self {
            ask,
            wanted,
            place,
            is_confirmed: false,
            reply,
        };
        Task { head, verb }
    }
}

impl Verb for Accept {
    /// `None`: a transaction has the row locked.
    type Outcome = Option<Confirmed>;

    const RANK: Rank = Rank::Accept;

    const MAY_GRANT: bool = true;

    async fn send(
        tasks: &mut [Task<Self>],
        store: &mut dyn Store,
    ) -> Result<Vec<Option<Confirmed>>, Fault> {
        let mut confirmed = Vec::with_capacity(1);
        for task in tasks {
            confirmed.push(store.queue_confirm(&task.verb.ask).await?);
        }
        Ok(confirmed)
    }

    fn settle(mut task: Task<Self>, outcome: Option<Confirmed>, answered: Answered) -> Next {
        let is_stale = answered.is_stale(task.verb.ask.ttl) && !task.verb.is_confirmed;
        if matches!(outcome, Some(Confirmed::Held { .. })) && is_stale {
            task.head.progress.sent = true;
            task.verb.is_confirmed = true;
            return Next::Then(task.into());
        }
        let Self {
            ask,
            mut wanted,
            place,
            reply,
            ..
        } = task.verb;
        match outcome {
            Some(Confirmed::Held { fence, reserved }) => {
                wanted.reserved = reserved;
                let late = place.late;
                place.forget();
                if let Some(guard) = wanted.guard(fence, late, answered.sent, ask.ttl) {
                    let _ = reply.send(Ok(Accepted::Held(guard)));
                }
            }
            Some(Confirmed::Gone) => {
                drop(place);
                let _ = reply.send(Ok(Accepted::Gone));
            }
            None => {
                let _ = reply.send(Ok(Accepted::Locked(place)));
            }
        }
        Next::Done
    }

    /// Undoes a confirm that was sent: it may have happened, or may happen late.
    fn undo(task: &Task<Self>, now: Moment) -> Option<Job> {
        let (progress, ask) = (&task.head.progress, &task.verb.ask);
        let waiters = &task.verb.wanted.waiters;
        let undo = || {
            release::undo(
                &ask.name,
                ask.grant_id,
                ask.ttl,
                progress.doubts,
                waiters,
                now,
            )
        };
        progress.sent.then(|| undo().into())
    }

    /// Dropping the place leaves the queue, and passes the name on if it was confirmed.
    fn fail(self, error: Error) {
        let _ = self.reply.send(Err(error));
    }

    fn is_closed(&self) -> bool {
        self.reply.is_closed()
    }
}
