//! Waiting for a lease together with other tasks of this client; see [`runtime::cohort`](crate::runtime::cohort).

use std::pin::pin;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::select;
use tokio::task::AbortHandle;

use super::Lock;
use super::patience::Patience;
use crate::model::{Error, Kind, Name};
use crate::runtime::cohort::{Arrived, Cohort, Key, Waiting};
use crate::runtime::lease_guard::Guard;
use crate::runtime::tasks::Tasks;
use crate::runtime::timer::sleep_until;
use crate::runtime::verbs::take::Acquired;

impl Lock {
    /// Waits for the lease: in its cohort, if it may have one. Asks at least once, however short the wait.
    pub(super) async fn wait_in_cohort(&self, name: &Name) -> Result<Guard, Error> {
        let Some(cohort) = self.cohort(name) else {
            return self.wait_in_queue(name).await;
        };
        let patience = Patience::new(self);
        let scout = || self.scout(name, &cohort);
        let arrived = match cohort.arrive(scout) {
            Arrived::Asks(asking) => match self.ask(name).await {
                Ok(Acquired::Held(guard)) => {
                    asking.granted(&guard);
                    return Ok(guard);
                }
                Ok(Acquired::Busy(busy)) if patience.is_over() => {
                    return Err(patience.timed_out(busy));
                }
                Err(error) if !error.is_transient() || patience.is_over() => return Err(error),
                Ok(Acquired::Busy(_)) | Err(_) => asking.waits(scout),
            },
            arrived => arrived,
        };
        match arrived {
            Arrived::Waits(waiting) => self.wait_for_turn(name, &cohort, (waiting, patience)).await,
            Arrived::Full(waiting) => {
                let mut busy = self.core.busy_now(name, Kind::Lock).await;
                busy.waiters = busy.waiters.max(u32::try_from(waiting).unwrap_or(u32::MAX));
                let busy = Box::new(busy);
                Err(Error::QueueFull { busy })
            }
            // Only the first task of a cohort asks.
            Arrived::Asks(_) => self.wait_in_queue(name).await,
        }
    }

    async fn wait_for_turn(
        &self,
        name: &Name,
        cohort: &Arc<Cohort>,
        (mut waiting, patience): (Waiting, Patience),
    ) -> Result<Guard, Error> {
        let core = &self.core;
        loop {
            let mut closing = pin!(core.queue.closing.notified());
            // From here on no shutdown is missed.
            closing.as_mut().enable();
            core.check_open()?;
            if core.is_closing() {
                // It may still be granted a lock, and its scout may not.
                drop(waiting);
                return self.wait_in_queue(name).await;
            }
            let over = async {
                match patience.limit {
                    Some(limit) => sleep_until(limit).await,
                    None => std::future::pending().await,
                }
            };
            select! {
                biased;
                word = waiting.word() => return word.unwrap_or_else(|| Err(core.stopped())),
                () = closing => {}
                () = over => break,
            }
        }
        drop(waiting);
        if let Some(trouble) = cohort.trouble() {
            return Err(trouble);
        }
        Err(patience.timed_out(core.busy_now(name, Kind::Lock).await))
    }

    /// The cohort of this request, if it may have one.
    fn cohort(&self, name: &Name) -> Option<Arc<Cohort>> {
        let core = &self.core;
        let is_plain = self.share.is_none() && self.owner.is_none() && self.max_hold.is_none();
        if !is_plain || core.is_closing() {
            return None;
        }
        Some(core.cohorts.of(Key {
            name: name.clone(),
            ttl: self.lease(),
            in_session: self.in_session,
            holder: self.holder.clone(),
            queue_limit: self.queue_limit,
            runtime: Handle::try_current().ok()?.id(),
        }))
    }

    /// Sends a scout: it waits in the database for the tasks of the cohort, turn by turn.
    fn scout(&self, name: &Name, cohort: &Arc<Cohort>) -> AbortHandle {
        let (name, cohort) = (name.clone(), Arc::clone(cohort));
        let lock = Self {
            wait: None,
            scouts_for: Some(Arc::clone(&cohort)),
            ..self.clone()
        };
        Tasks::spawn_apart(async move {
            while cohort.is_awaited().await {
                let patience = Patience::new(&lock);
                cohort.scouted(lock.queue_up(&name, patience, false).await);
            }
        })
    }
}
