//! Leaving the queue of a name. A name that was passed on to the waiter meanwhile is passed on to the next one.

use std::sync::Arc;
use std::time::Duration;

use super::{MAX_UNDO, release};
use crate::model::{Error, Moment, Subject};
use crate::runtime::head::{Fate, Head, Manner};
use crate::runtime::job::{Answered, Job, Next, Task, Turn, Verb};
use crate::runtime::waiters::Waiters;
use crate::store::Store;
use crate::store::fault::Fault;
use crate::store::permit::pass_any;
use crate::store::queue::{PassAsk, PassWhy, Passed, Ticket};

#[derive(Debug)]
pub(crate) struct Leave {
    ticket: Ticket,
    /// The position; `None`: wherever it stands.
    at: Option<i64>,
    /// How many sendings of the ask to join may still reach the server.
    late: u32,
    /// The TTL of a grant that such a sending may get.
    ttl: Duration,
    waiters: Arc<Waiters>,
    /// It is tried for as long as an undo.
    is_undo: bool,
}

/// The job by which a waiter leaves, within `limit`. `at`: its position; `None`: wherever it stands. If it cannot (a transaction has the row locked for longer), it goes on as an undo.
pub(crate) fn of(
    ticket: Ticket,
    at: Option<i64>,
    (late, ttl): (u32, Duration),
    waiters: &Arc<Waiters>,
    limit: Duration,
) -> Task<Leave> {
    let verb = Leave {
        ticket,
        at,
        late,
        ttl,
        waiters: Arc::clone(waiters),
        is_undo: false,
    };
    verb.task(limit)
}

impl Leave {
    fn task(self, limit: Duration) -> Task<Self> {
        let subject = Subject::Lock(self.ticket.name.clone());
        let fate = Fate::within(limit);
        let head = Head::new(subject, "leave the queue", Manner::Duty, fate);
        Task { head, verb: self }
    }

    /// Undoes what late sendings of the ask to join may still do.
    fn after(&self, now: Moment) -> Option<Job> {
        let (row, id, waiters) = (self.ticket.row(), self.ticket.grant_id, &self.waiters);
        let undo = || release::undo(&row, id, self.ttl, self.late, waiters, now);
        (self.late > 0).then(|| undo().repeated().into())
    }
}

impl Verb for Leave {
    /// `None`: a transaction has a row locked.
    type Outcome = Option<Passed>;

    const TURN: Turn = Turn::Leave;

    async fn send(
        tasks: &mut [Task<Self>],
        store: &mut dyn Store,
    ) -> Result<Vec<Option<Passed>>, Fault> {
        let mut passed = Vec::with_capacity(1);
        for task in tasks {
            let Self { ticket, at, .. } = &task.verb;
            let ask = PassAsk {
                name: ticket.name.clone(),
                why: PassWhy::Left {
                    grant_id: ticket.grant_id,
                    at: *at,
                },
            };
            passed.push(pass_any(store, &ask, ticket.kind).await?);
        }
        Ok(passed)
    }

    fn settle(task: Task<Self>, outcome: Option<Passed>, _: Answered) -> Next {
        let Some(passed) = outcome else {
            return Next::Later(task.into());
        };
        let waiters = &task.verb.waiters;
        waiters.queue.all_passed(&passed.next);
        if passed.next.is_empty() {
            waiters.freed(&task.verb.ticket.name);
        }
        let after = task.verb.after(Moment::now());
        after.map_or(Next::Done, Next::Later)
    }

    fn fail(self, _: Error) {}

    /// It matters to the next waiter.
    fn is_closed(&self) -> bool {
        false
    }

    /// It could not leave in time. Its row would cost the others a window when its turn comes.
    fn undo(task: &Task<Self>, now: Moment) -> Option<Job> {
        let verb = &task.verb;
        if verb.is_undo {
            return verb.after(now);
        }
        let again = Self {
            ticket: verb.ticket.clone(),
            at: verb.at,
            late: verb.late,
            ttl: verb.ttl,
            waiters: Arc::clone(&verb.waiters),
            is_undo: true,
        };
        Some(again.task(MAX_UNDO).repeated().into())
    }
}
