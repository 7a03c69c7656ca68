//! The place of a waiting task in a queue. Dropping it leaves the queue.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::queue::Queue;
use super::queue::seat::Seat;
use crate::model::{Kind, Name};
use crate::runtime::held::on_end::OnEnd;
use crate::runtime::held::session::Session;
use crate::store::verbs::queue::Ticket;

/// A place in a queue, from before its row is made. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct QueuePlace {
    pub(crate) seat: Arc<Seat>,
    /// How many joins that were sent may still reach the server.
    pub(crate) late: u32,
    /// The TTL of the grant that it asks for.
    ttl: Duration,
    queue: Arc<Queue>,
    on_end: Arc<dyn OnEnd>,
}

impl QueuePlace {
    /// `kind`: what the name stands for.
    pub(crate) fn new(
        (queue, on_end): (&Arc<Queue>, &Arc<dyn OnEnd>),
        name: &Name,
        kind: Kind,
        session: Arc<Session>,
        ttl: Duration,
    ) -> Self {
        let grant_id = Uuid::new_v4();
        let ticket = Ticket {
            name: name.clone(),
            grant_id,
            kind,
        };
        let seat = queue.sit(ticket, session);
        Self {
            seat,
            late: 0,
            ttl,
            queue: Arc::clone(queue),
            on_end: Arc::clone(on_end),
        }
    }

    /// Its owner tells what it holds: from now on deadlocks are looked for.
    pub(crate) fn may_deadlock(&self) {
        self.seat.set_may_deadlock();
        self.queue.may_deadlock();
    }

    /// Its row has this position. `is_orphaned`: the name has to be passed on.
    pub(crate) fn queued(&self, position: i64, is_orphaned: bool) {
        self.seat.set_position(Some(position));
        self.queue.queued(is_orphaned);
    }

    /// Its row is gone, or belongs to a guard: there is nothing to leave.
    pub(crate) fn forget(mut self) {
        self.late = 0;
        self.seat.set_position(None);
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.queue.left(&self.seat);
        if let Some(position) = self.seat.position() {
            let late = (self.late, self.ttl);
            let ticket = self.seat.ticket.clone();
            self.on_end.leave(ticket, position, late);
        }
    }
}

/// Leaves all queues, for a shutdown. A task whose turn has come does so itself.
pub(crate) fn leave_all(queue: &Queue, on_end: &dyn OnEnd) {
    for seat in queue.seats() {
        if let Some(position) = seat.give_up() {
            seat.wake();
            let late = (0, Duration::ZERO);
            on_end.leave(seat.ticket.clone(), position, late);
        }
    }
}
