//! The search for deadlocks among the waiters of this client.
//!
//! A circle is reported when two looks in a row have seen it: a waiter that is just leaving, or was just granted its
//! name, is in no circle. The waiter that joined last learns of it from its own client. So all clients come to the
//! same result, and one wait of a circle fails.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::Queue;
use super::seat::{Seat, SeatEnd};
use crate::model::Moment;
use crate::runtime::batch::link::Link;
use crate::store::verbs::Store;
use crate::store::verbs::deadlock::cycle;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::queue::LookParams;

/// The time between two looks.
const EVERY: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(super) struct Search {
    looked: Option<Moment>,
    /// The circles of the last look, by the waiter of this client.
    seen: HashMap<Uuid, Vec<Uuid>>,
    /// The schema refuses the search, and the log tells it.
    is_refused: bool,
}

impl Search {
    /// When to look again; `None`: no waiter can be in a circle.
    pub(super) fn next(&self, all: &[(LookParams, Arc<Seat>)]) -> Option<Moment> {
        let may_deadlock = |(_, seat): &(_, Arc<Seat>)| seat.may_deadlock();
        let is_any = all.iter().any(may_deadlock);
        is_any.then(|| {
            self.looked
                .map_or_else(Moment::now, |looked| looked + EVERY)
        })
    }

    /// Looks for circles, and has the database forget the waits that are over, also when the look fails. Waits go on
    /// where the schema refuses it.
    pub(super) async fn turn(
        &mut self,
        link: &mut Link,
        queue: &Queue,
        (all, target): (&[(LookParams, Arc<Seat>)], &str),
    ) -> Result<(), Fault> {
        let looked = match self.look(link, all).await {
            Err(fault) if fault.kind.is_of_schema() => {
                if !std::mem::replace(&mut self.is_refused, true) {
                    tracing::warn!(%target, error = %fault, "cannot search for deadlocks: waits go on, and a deadlock is not found");
                }
                Ok(())
            }
            looked => looked,
        };
        looked.and(Self::forget(link, queue).await)
    }

    /// Looks for circles, if that is due.
    async fn look(
        &mut self,
        link: &mut Link,
        all: &[(LookParams, Arc<Seat>)],
    ) -> Result<(), Fault> {
        if self.next(all).is_none_or(|due| !due.has_passed()) {
            return Ok(());
        }
        self.looked = Some(Moment::now());
        let waiting = all.iter().filter(|(_, seat)| seat.may_deadlock());
        let (all, seats): (Vec<LookParams>, Vec<Arc<Seat>>) = waiting.cloned().unzip();
        let timeout = link.operation_timeout();
        let edges = async |store: &mut dyn Store| store.deadlock_edges(&all).await;
        let edges = link.run("deadlocks", timeout, edges).await?;
        let mut seen = HashMap::new();
        for seat in seats {
            let id = seat.ticket.grant_id;
            let Some(found) = cycle(&edges, id) else {
                continue;
            };
            let mut waiters = found.waiters;
            waiters.sort_unstable();
            let is_twice = self.seen.get(&id) == Some(&waiters);
            if is_twice && found.youngest == id {
                seat.tell(SeatEnd::Deadlock(found.blocked));
            }
            seen.insert(id, waiters);
        }
        self.seen = seen;
        self.is_refused = false;
        Ok(())
    }

    /// The waits that are over are forgotten in the database. (What this schema does not let it remove, the cleaner
    /// does.)
    async fn forget(link: &mut Link, queue: &Queue) -> Result<(), Fault> {
        let over = std::mem::take(&mut queue.state.lock().forget);
        if over.is_empty() {
            return Ok(());
        }
        let timeout = link.operation_timeout();
        let forget = async |store: &mut dyn Store| store.deadlock_forget(&over).await;
        let forgotten = link.run("deadlocks", timeout, forget).await;
        match forgotten {
            Err(fault) if fault.kind.is_of_schema() => {
                tracing::debug!(error = %fault, "cannot forget waits that are over: the cleaner does it later");
                Ok(())
            }
            Err(fault) => {
                queue.state.lock().forget.extend(over);
                Err(fault)
            }
            Ok(()) => Ok(()),
        }
    }
}
