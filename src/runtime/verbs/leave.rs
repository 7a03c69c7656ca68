//! Leaving the queue of a name. A name that was passed on to the waiter meanwhile is passed on to the next one.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::{MAX_UNDO, release};
use crate::model::{Error, Moment, Name, Subject};
use crate::runtime::head::{Fate, Head, Manner};
use crate::runtime::job::{Answered, Job, Next, Task, Turn, Verb};
use crate::runtime::waiters::Waiters;
use crate::store::Store;
use crate::store::fault::Fault;
use crate::store::queue::{Leaves, PassAsk, Passed};

#[derive(Debug)]
pub(crate) struct Leave {
    ask: PassAsk,
    /// How many sendings of the ask to join may still reach the server.
    late: u32,
    /// The TTL of a grant that such a sending may get.
    ttl: Duration,
    waiters: Arc<Waiters>,
    /// It is tried for as long as an undo.
    is_undo: bool,
}

/// The job by which a waiter leaves, within `limit`. If it cannot (a transaction has the row locked for longer), it goes on as an undo.
pub(crate) fn of(
    (name, grant_id): (&Name, Uuid),
    leaves: Leaves,
    (late, ttl): (u32, Duration),
    waiters: &Arc<Waiters>,
    limit: Duration,
) -> Task<Leave> {
    let verb = Leave {
        ask: PassAsk {
            name: name.clone(),
            of: Some((grant_id, leaves)),
        },
        late,
        ttl,
        waiters: Arc::clone(waiters),
        is_undo: false,
    };
    verb.task(limit)
}

impl Leave {
    fn task(self, limit: Duration) -> Task<Self> {
        let subject = Subject::Lock(self.ask.name.clone());
        let fate = Fate::within(limit);
        let head = Head::new(subject, "leave the queue", Manner::Duty, fate);
        Task { head, verb: self }
    }

    /// Undoes what late sendings of the ask to join may still do.
    fn after(&self, now: Moment) -> Option<Job> {
        let (grant_id, _) = self.ask.of.filter(|_| self.late > 0)?;
        let (name, waiters) = (&self.ask.name, &self.waiters);
        let undo = release::undo(name, grant_id, self.ttl, self.late, waiters, now);
        Some(undo.repeated().into())
    }
}

impl Verb for Leave {
    type Outcome = Passed;

    const TURN: Turn = Turn::Leave;

    async fn send(tasks: &mut [Task<Self>], store: &mut dyn Store) -> Result<Vec<Passed>, Fault> {
        let mut passed = Vec::with_capacity(1);
        for task in tasks {
            passed.push(store.queue_pass(&task.verb.ask).await?);
        }
        Ok(passed)
    }

    fn settle(task: Task<Self>, outcome: Passed, _: Answered) -> Next {
        match outcome {
            Passed::Locked => return Next::Later(task.into()),
            Passed::Done {
                next: Some(next), ..
            } => task.verb.waiters.queue.passed(next.grant_id),
            Passed::Done { next: None, .. } => task.verb.waiters.freed(&task.verb.ask.name),
            Passed::No => {}
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
            ask: verb.ask.clone(),
            late: verb.late,
            ttl: verb.ttl,
            waiters: Arc::clone(&verb.waiters),
            is_undo: true,
        };
        Some(again.task(MAX_UNDO).repeated().into())
    }
}
