//! Waiting for a lease in the queue of its name.

use std::pin::pin;
use std::sync::Arc;

use tokio::select;

use super::acquire::Asked;
use super::patience::{Patience, until};
use super::{Lock, Owner};
use crate::model::{Error, Kind, Moment, Name, Subject};
use crate::runtime::base::backoff;
use crate::runtime::base::meter::InQueue;
use crate::runtime::base::timer::sleep_until;
use crate::runtime::base::wait_log::WaitLog;
use crate::runtime::held::guard::Guard;
use crate::runtime::requests::accept::{Accept, Accepted};
use crate::runtime::requests::join::{Join, Joining};
use crate::runtime::requests::take::Acquired;
use crate::runtime::requests::wanted::Wanted;
use crate::runtime::wait::queue::seat::Turn;
use crate::runtime::wait::queue_place::Place;
use crate::store::verbs::Store;
use crate::store::verbs::deadlock::TellAsk;
use crate::store::verbs::queue::JoinAsk;

/// How an attempt to wait in the queue ended.
enum Waited {
    Held(Guard),
    /// The limit is reached.
    TooLong,
    /// The place is lost.
    Gone,
    /// A transaction has the row locked.
    Locked,
}

impl Lock {
    /// Waits in the queue of the name. Asks at least once, however short the wait.
    pub(super) async fn wait_in_queue(
        &self,
        name: &Name,
        patience: Patience,
    ) -> Result<Guard, Error> {
        // While other tasks of this client wait for the name, it is not free.
        // For a permit, joining asks.
        let is_asking =
            self.share.is_none() && (!self.core.queue.waits_for(name) || patience.is_over());
        self.queue_up(name, patience, is_asking).await
    }

    /// Waits in the queue of the name. `is_asking`: asks for it first.
    pub(super) async fn queue_up(
        &self,
        name: &Name,
        patience: Patience,
        mut is_asking: bool,
    ) -> Result<Guard, Error> {
        let (mut backoff, mut log) = (backoff::poll(), WaitLog::default());
        loop {
            let waited = async {
                if is_asking {
                    match self.ask(name).await? {
                        Acquired::Held(guard) => return Ok(Waited::Held(guard)),
                        Acquired::Busy(busy) if patience.is_over() => {
                            return Err(patience.timed_out(busy));
                        }
                        Acquired::Busy(_) => {}
                    }
                }
                self.join(name, patience.limit, &mut log).await
            };
            match waited.await {
                Ok(Waited::Held(guard)) => return Ok(guard),
                Ok(Waited::TooLong) => break,
                Ok(Waited::Gone | Waited::Locked) if patience.is_over() => break,
                Ok(Waited::Gone) => {
                    is_asking = false;
                    backoff = backoff::poll();
                    continue;
                }
                Ok(Waited::Locked) => is_asking = false,
                Err(error @ (Error::WaitTimeout { .. } | Error::QueueFull { .. })) => {
                    return Err(error);
                }
                Err(error) if error.is_transient() && !patience.is_over() => {
                    log.trouble(&format_args!("{name:?}"), &error);
                    self.set_trouble(Some(&error));
                }
                Err(error) => return Err(error),
            }
            sleep_until(patience.wake(backoff.next().unwrap_or_default())).await;
        }
        Err(patience.timed_out(self.core.rows.busy_now(name, self.kind()).await))
    }

    /// Joins the queue, and waits for the turn.
    async fn join(
        &self,
        name: &Name,
        limit: Option<Moment>,
        log: &mut WaitLog,
    ) -> Result<Waited, Error> {
        let place = self.place(name).await?;
        let joined = self.as_owner(name, async |give_up| {
            Ok(
                match self.join_at(place, self.queue_limit, give_up).await? {
                    Joining::Held(guard) if self.is_good(&guard) => Asked::Held(guard),
                    Joining::Queued(place) => Asked::Not(Some(place)),
                    Joining::Full(busy) => {
                        let busy = Box::new(busy);
                        return Err(Error::QueueFull { busy });
                    }
                    // Or the session of the lock has just ended.
                    Joining::Locked | Joining::Held(_) => Asked::Not(None),
                },
            )
        });
        let joined = joined.await?;
        self.set_trouble(None);
        log.over(&format_args!("{name:?}"));
        match joined {
            Asked::Held(guard) => Ok(Waited::Held(guard)),
            Asked::Not(Some(place)) => {
                if let Some(delegation) = self.delegation.as_ref().filter(|_| place.late == 0) {
                    delegation.sits(place.seat());
                }
                let telling = self.tell_owner(&place);
                let mut standing = pin!(self.stand(place, limit));
                if let Some(telling) = telling {
                    // Its turn may come before.
                    select! {
                        waited = &mut standing => return waited,
                        () = telling => {}
                    }
                }
                standing.await
            }
            Asked::Not(None) => Ok(Waited::Locked),
        }
    }

    /// Tells what the owner holds, if it has a name: then a deadlock is found.
    fn tell_owner(&self, place: &Place) -> Option<impl Future<Output = ()> + use<>> {
        let (owner, held) = self.owner.as_ref().and_then(Owner::holds)?;
        let waiter = place.look_ask()?;
        let name = waiter.name.clone();
        let owner: Arc<str> = owner.into();
        place.may_deadlock();
        let core = Arc::clone(&self.core);
        Some(async move {
            let ask = TellAsk {
                waiter,
                owner: core.alphabet.legible(&owner).await.to_string(),
                held,
            };
            let head = core
                .lanes
                .wish(Subject::Lock(name.clone()), "search deadlocks");
            let tell = async move |store: &mut dyn Store| store.deadlock_tell(&ask).await;
            if let Err(error) = core.lanes.ask(head, tell).await {
                tracing::warn!(%name, %error, "deadlocks of this wait are not found");
            }
        })
    }

    pub(super) async fn place(&self, name: &Name) -> Result<Place, Error> {
        let session = self.core.session().await?;
        Ok(Place::new(
            (&self.core.queue, &self.core.holdings.on_end),
            name,
            self.kind(),
            session,
            self.lease(),
        ))
    }

    pub(super) async fn join_at(
        &self,
        place: Place,
        most: u32,
        give_up: Moment,
    ) -> Result<Joining, Error> {
        let holder = self.holder.as_ref().unwrap_or(&self.core.settings.holder);
        let holder = self.core.alphabet.legible(holder).await;
        let ask = JoinAsk {
            name: place.ticket().name.clone(),
            grant_id: place.ticket().grant_id,
            session: place.session().grant.id,
            in_session: self.in_session,
            ttl: self.lease(),
            holder,
            most,
        };
        let wanted = self.wanted(&place);
        let join = |reply| Join::task((ask, self.share), wanted, place, reply, give_up);
        self.core.lanes.answer(join).await
    }

    /// What the name is.
    pub(super) fn kind(&self) -> Kind {
        self.share.map_or(Kind::Lock, |share| share.kind)
    }

    /// Waits for the turn of the place, and confirms the grant then. Dropping the future leaves the queue.
    async fn stand(&self, mut place: Place, limit: Option<Moment>) -> Result<Waited, Error> {
        let core = &self.core;
        let _in_queue = InQueue::new();
        loop {
            let mut closing = pin!(core.queue.closing.notified());
            // From here on no shutdown is missed.
            closing.as_mut().enable();
            core.lanes.check_open()?;
            select! {
                biased;
                turn = place.turn() => match turn {
                    Turn::Granted => break,
                    Turn::Gone => return Ok(Waited::Gone),
                    Turn::Deadlock(cycle) => {
                        let name = place.ticket().name.clone();
                        return Err(Error::Deadlock { name, cycle });
                    }
                    Turn::Refused(fault) => {
                        return Err(fault.into_error("wait for a turn", &core.server.target));
                    }
                },
                () = closing => {}
                () = until(limit) => return Ok(Waited::TooLong),
            }
        }
        let mut backoff = backoff::poll();
        loop {
            let name = place.ticket().name.clone();
            let accepted = self.as_owner(&name, async |give_up| {
                let wanted = self.wanted(&place);
                let delegation = self.delegation.as_ref();
                let fences = delegation.map_or(0, |delegation| delegation.block());
                let lingers = delegation.is_some_and(|delegation| delegation.lingers());
                let accept = |reply| Accept::task((wanted, fences, lingers), place, reply, give_up);
                Ok(match core.lanes.answer(accept).await? {
                    Accepted::Held(guard) if self.is_good(&guard) => Asked::Held(guard),
                    Accepted::Held(_) | Accepted::Gone => Asked::Not(None),
                    Accepted::Locked(place) => Asked::Not(Some(place)),
                })
            });
            match accepted.await? {
                Asked::Held(guard) => return Ok(Waited::Held(guard)),
                Asked::Not(None) => return Ok(Waited::Gone),
                Asked::Not(Some(again)) => place = again,
            }
            core.lanes.check_open()?;
            if limit.is_some_and(Moment::has_passed) {
                return Ok(Waited::TooLong);
            }
            sleep_until(Moment::now() + backoff.next().unwrap_or_default()).await;
        }
    }

    /// For the tasks for which this is a delegate.
    fn set_trouble(&self, trouble: Option<&Error>) {
        if let Some(delegation) = &self.delegation {
            delegation.set_trouble(trouble);
        }
    }

    fn wanted(&self, place: &Place) -> Wanted {
        let session = Some(place.session()).filter(|_| self.in_session);
        let grant = (&place.ticket().row(), place.ticket().grant_id);
        self.core
            .wanted(grant, self.lease(), self.max_hold, session)
    }

    /// Whether the session of the lock, if it has one, has not ended meanwhile.
    pub(super) fn is_good(&self, guard: &Guard) -> bool {
        !self.in_session || guard.is_held()
    }
}
