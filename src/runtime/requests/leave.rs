//! Leaving the queue of a name. A name that was passed on to the waiter meanwhile is passed on to the next one.

use std::sync::Arc;
use std::time::Duration;

use super::MAX_UNDO;
use crate::model::{Error, Moment, Subject};
use crate::runtime::batch::head::{JobHead, Manner, Progress};
use crate::runtime::batch::job::{AnswerTime, Job, Next, Rank, Request, Task};
use crate::runtime::wait::waiters::Waiters;
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::permit::pass_any;
use crate::store::verbs::queue::{EndedGrant, PassOutcome, PassWhy, Ticket};

#[derive(Debug, Clone)]
pub(crate) struct Leave {
    ticket: Ticket,
    /// The position; `None`: wherever it stands.
    at: Option<i64>,
    /// How many joins that were sent may still reach the server.
    late: u32,
    /// The TTL of a grant that such a sending may get.
    ttl: Duration,
    waiters: Arc<Waiters>,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It leaves.
    First,
    /// It could not leave in time, and tries for as long as an undo.
    Overdue,
    /// It has left. Late sendings may make a waiter again, or be granted the name: this is repeated until they have
    /// come.
    Late,
}

/// The job by which a waiter leaves, within `limit`. `at`: its position; `None`: wherever it stands. If it cannot (a
/// transaction has the row locked for longer), it goes on as an undo.
pub(crate) fn of(
    ticket: Ticket,
    at: Option<i64>,
    (late, ttl): (u32, Duration),
    waiters: &Arc<Waiters>,
    limit: Duration,
) -> Task<Leave> {
    let request = Leave {
        ticket,
        at,
        late,
        ttl,
        waiters: Arc::clone(waiters),
        stage: Stage::First,
    };
    request.task(Progress::within(limit))
}

/// The job that undoes what `late` sendings of an ask to join may still do, for as long as the lease could last.
pub(crate) fn late(
    ticket: Ticket,
    (late, ttl): (u32, Duration),
    waiters: &Arc<Waiters>,
    now: Moment,
) -> Job {
    let request = Leave {
        ticket,
        at: None,
        late,
        ttl,
        waiters: Arc::clone(waiters),
        stage: Stage::Late,
    };
    let undo = request.task(Progress::until(now + ttl.min(MAX_UNDO)));
    undo.repeated().into()
}

impl Leave {
    fn task(self, progress: Progress) -> Task<Self> {
        let subject = Subject::Lock(self.ticket.name.clone());
        let head = JobHead::new(subject, "leave the queue", Manner::Duty, progress);
        Task {
            head,
            request: self,
        }
    }

    /// Undoes what late sendings of the ask to join may still do.
    fn after(&self, now: Moment) -> Option<Job> {
        let undo = || {
            late(
                self.ticket.clone(),
                (self.late, self.ttl),
                &self.waiters,
                now,
            )
        };
        (self.late > 0).then(undo)
    }
}

impl Request for Leave {
    /// `None`: a transaction has a row locked.
    type Outcome = Option<PassOutcome>;

    const RANK: Rank = Rank::Leave;

    async fn send(
        tasks: &mut [Task<Self>],
        store: &mut dyn Store,
    ) -> Result<Vec<Option<PassOutcome>>, Fault> {
        let mut passed = Vec::with_capacity(1);
        for task in tasks {
            let Self {
                ticket, at, stage, ..
            } = &task.request;
            // Most of these have nothing to do. They must not lock the name: whoever tries to get it would find it
            // busy.
            if *stage == Stage::Late && !store.queue_knows(ticket).await? {
                passed.push(Some(PassOutcome::NOTHING));
                continue;
            }
            let why = PassWhy::Left {
                grant_id: ticket.grant_id,
                at: *at,
            };
            let has_permits = ticket.kind.has_permits();
            passed.push(pass_any(store, &ticket.name, why, has_permits).await?);
        }
        Ok(passed)
    }

    fn settle(mut task: Task<Self>, outcome: Option<PassOutcome>, _: AnswerTime) -> Next {
        let Some(passed) = outcome else {
            return Next::Later(task.into());
        };
        let waiters = &task.request.waiters;
        waiters.queue.all_passed(&passed.next);
        if passed.next.is_empty() {
            waiters.freed(&task.request.ticket.name);
        }
        if task.request.stage != Stage::Late {
            let after = task.request.after(Moment::now());
            return after.map_or(Next::Done, Next::Later);
        }
        // One of them was granted the name, and will not come again. (Of waiters that were removed nothing is told.)
        let came = u32::from(passed.ended == EndedGrant::Live);
        task.request.late = task.request.late.saturating_sub(came);
        if task.request.late == 0 {
            return Next::Done;
        }
        Next::Later(task.repeated().into())
    }

    fn fail(self, _: Error) {}

    /// It matters to the next waiter.
    fn is_closed(&self) -> bool {
        false
    }

    /// It could not leave in time. Its row would cost the others a window when its turn comes.
    fn undo(&self, _: &Progress, now: Moment) -> Option<Job> {
        match self.stage {
            Stage::First => {}
            Stage::Overdue => return self.after(now),
            Stage::Late => return None,
        }
        let again = Self {
            stage: Stage::Overdue,
            ..self.clone()
        };
        Some(again.task(Progress::within(MAX_UNDO)).repeated().into())
    }
}
