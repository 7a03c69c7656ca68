//! Leaving the queue of a name. A name that was passed on to the waiter meanwhile is passed on to the next one.

use std::sync::Arc;
use std::time::Duration;

use super::release;
use crate::model::{Error, Moment, Subject};
use crate::runtime::head::{Fate, Head, Manner};
use crate::runtime::job::{Answered, Job, Next, Task, Turn, Verb};
use crate::runtime::queue::Place;
use crate::runtime::waiters::Waiters;
use crate::store::Store;
use crate::store::fault::Fault;
use crate::store::queue::{PassAsk, Passed};

#[derive(Debug)]
pub(crate) struct Leave {
    ask: PassAsk,
    /// How many sendings of the ask to join may still reach the server.
    late: u32,
    ttl: Duration,
    waiters: Arc<Waiters>,
}

/// The job by which a place leaves.
pub(crate) fn of(place: &Place, position: i64) -> Task<Leave> {
    let (name, core) = (place.name(), place.core());
    let verb = Leave {
        ask: PassAsk {
            name: name.clone(),
            of: Some((place.grant_id, Some(position))),
        },
        late: place.late,
        ttl: core.settings.session_ttl,
        waiters: Arc::clone(&core.waiters),
    };
    let fate = Fate::within(core.settings.operation_timeout);
    let subject = Subject::Lock(name.clone());
    let head = Head::new(subject, "leave the queue", Manner::Duty, fate);
    Task { head, verb }
}

impl Leave {
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

    fn undo(task: &Task<Self>, now: Moment) -> Option<Job> {
        task.verb.after(now)
    }
}
