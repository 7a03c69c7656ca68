//! Waiting for a lease: in the queue of the name, or beside it.

use std::pin::pin;
use std::sync::Arc;

use tokio::select;
use tokio::time::timeout;

use super::acquire::Asked;
use super::{Lock, Owner};
use crate::model::{Busy, Error, Kind, Moment, Name, Subject};
use crate::runtime::backoff;
use crate::runtime::lease_guard::Guard;
use crate::runtime::place::Place;
use crate::runtime::queue::seat::Turn;
use crate::runtime::timer::sleep_until;
use crate::runtime::verbs::accept::{Accept, Accepted};
use crate::runtime::verbs::join::{Join, Joining};
use crate::runtime::verbs::take::Acquired;
use crate::runtime::verbs::wanted::Wanted;
use crate::store::Store;
use crate::store::deadlock::TellAsk;
use crate::store::queue::JoinAsk;

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
    pub(super) async fn wait_in_queue(&self, name: &Name) -> Result<Guard, Error> {
        let started = Moment::now();
        let limit = self.wait.map(|wait| started + wait);
        let is_over = || limit.is_some_and(Moment::has_passed);
        let timed_out = |busy| Error::WaitTimeout {
            name: name.clone(),
            waited: started.elapsed(),
            busy: Box::new(busy),
        };
        // While other tasks of this client wait for the name, it is not free.
        // For a permit, joining asks.
        let mut is_asking = self.share.is_none() && (!self.core.queue.waits_for(name) || is_over());
        let mut backoff = backoff::poll();
        loop {
            let waited = async {
                if is_asking {
                    match self.ask(name).await? {
                        Acquired::Held(guard) => return Ok(Waited::Held(guard)),
                        Acquired::Busy(busy) if is_over() => return Err(timed_out(busy)),
                        Acquired::Busy(_) => {}
                    }
                }
                self.join(name, limit).await
            };
            match waited.await {
                Ok(Waited::Held(guard)) => return Ok(guard),
                Ok(Waited::TooLong) => {
                    return Err(timed_out(self.core.busy_now(name, self.kind()).await));
                }
                Ok(Waited::Gone) => {
                    is_asking = false;
                    backoff = backoff::poll();
                    if is_over() {
                        return Err(timed_out(self.core.busy_now(name, self.kind()).await));
                    }
                    continue;
                }
                Ok(Waited::Locked) if is_over() => {
                    return Err(timed_out(self.core.busy_now(name, self.kind()).await));
                }
                Ok(Waited::Locked) => is_asking = false,
                Err(error @ (Error::WaitTimeout { .. } | Error::QueueFull { .. })) => {
                    return Err(error);
                }
                Err(error) if error.is_transient() && !is_over() => {
                    tracing::debug!(%name, %error, "trying again");
                }
                Err(error) => return Err(error),
            }
            let wake = Moment::now() + backoff.next().unwrap_or_default();
            sleep_until(limit.map_or(wake, |limit| wake.min(limit))).await;
        }
    }

    /// Joins the queue, and waits for the turn.
    async fn join(&self, name: &Name, limit: Option<Moment>) -> Result<Waited, Error> {
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
        match joined.await? {
            Asked::Held(guard) => Ok(Waited::Held(guard)),
            Asked::Not(Some(place)) => {
                self.tell_owner(&place).await;
                self.stand(place, limit).await
            }
            Asked::Not(None) => Ok(Waited::Locked),
        }
    }

    /// Tells what the owner holds, if it has a name: then a deadlock is found.
    async fn tell_owner(&self, place: &Place) {
        let Some((owner, held)) = self.owner.as_ref().and_then(Owner::holds) else {
            return;
        };
        let Some(waiter) = place.look_ask() else {
            return;
        };
        let name = waiter.name.clone();
        let owner = owner.to_owned();
        let ask = TellAsk {
            waiter,
            owner,
            held,
        };
        place.may_deadlock();
        let head = self
            .core
            .wish(Subject::Lock(name.clone()), "search deadlocks");
        let tell = async move |store: &mut dyn Store| store.deadlock_tell(&ask).await;
        if let Err(error) = self.core.ask(head, tell).await {
            tracing::warn!(%name, %error, "deadlocks of this wait are not found");
        }
    }

    async fn place(&self, name: &Name) -> Result<Place, Error> {
        let session = self.core.session().await?;
        Ok(Place::new(
            &self.core,
            name,
            self.kind(),
            session,
            self.lease(),
        ))
    }

    async fn join_at(&self, place: Place, most: u32, give_up: Moment) -> Result<Joining, Error> {
        let holder = self.holder.as_ref().unwrap_or(&self.core.settings.holder);
        let ask = JoinAsk {
            name: place.ticket().name.clone(),
            grant_id: place.ticket().grant_id,
            session: place.session().grant.id,
            in_session: self.in_session,
            ttl: self.lease(),
            holder: Arc::clone(holder),
            most,
        };
        let wanted = self.wanted(&place);
        let join = |reply| Join::task((ask, self.share), wanted, place, reply, give_up);
        self.core.answer(join).await
    }

    /// Asks once for a permit.
    pub(super) async fn ask_for_permit(&self, name: &Name) -> Result<Acquired, Error> {
        let give_up = Moment::now() + self.core.settings.operation_timeout;
        loop {
            let place = self.place(name).await?;
            return Ok(match self.join_at(place, 0, give_up).await? {
                // The session of the permit has just ended: another one gets it.
                Joining::Held(guard) if !self.is_good(&guard) && !give_up.has_passed() => continue,
                Joining::Held(guard) => Acquired::Held(guard),
                Joining::Full(busy) => Acquired::Busy(busy),
                Joining::Locked | Joining::Queued(_) => Acquired::Busy(Busy {
                    name: name.clone(),
                    kind: self.kind(),
                    holder: None,
                    waiters: 0,
                }),
            });
        }
    }

    /// What the name is.
    fn kind(&self) -> Kind {
        self.share.map_or(Kind::Lock, |share| share.kind)
    }

    /// Waits for the turn of the place, and confirms the grant then. Dropping the future leaves the queue.
    async fn stand(&self, mut place: Place, limit: Option<Moment>) -> Result<Waited, Error> {
        let core = &self.core;
        loop {
            let mut closing = pin!(core.queue.closing.notified());
            // From here on no shutdown is missed.
            closing.as_mut().enable();
            core.check_open()?;
            let over = async {
                match limit {
                    Some(limit) => sleep_until(limit).await,
                    None => std::future::pending().await,
                }
            };
            select! {
                biased;
                turn = place.turn() => match turn {
                    Turn::Granted => break,
                    Turn::Gone => return Ok(Waited::Gone),
                    Turn::Deadlock(cycle) => {
                        let name = place.ticket().name.clone();
                        return Err(Error::Deadlock { name, cycle });
                    }
                },
                () = closing => {}
                () = over => return Ok(Waited::TooLong),
            }
        }
        let mut backoff = backoff::poll();
        loop {
            let name = place.ticket().name.clone();
            let accepted = self.as_owner(&name, async |give_up| {
                let wanted = self.wanted(&place);
                let accept = |reply| Accept::task(wanted, place, reply, give_up);
                Ok(match core.answer(accept).await? {
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
            core.check_open()?;
            if limit.is_some_and(Moment::has_passed) {
                return Ok(Waited::TooLong);
            }
            sleep_until(Moment::now() + backoff.next().unwrap_or_default()).await;
        }
    }

    fn wanted(&self, place: &Place) -> Wanted {
        let session = Some(place.session()).filter(|_| self.in_session);
        let grant = (&place.ticket().row(), place.ticket().grant_id);
        Wanted::new(&self.core, grant, self.lease(), self.max_hold, session)
    }

    /// Whether the session of the lock, if it has one, has not ended meanwhile.
    fn is_good(&self, guard: &Guard) -> bool {
        !self.in_session || guard.is_held()
    }

    /// Asks again and again, until the lease is granted or the wait is over. Asks at least once, however short the wait.
    ///
    /// Of the [waiters](crate::runtime::waiters) of one client, only the first one asks: after growing, jittered pauses, at the holder's
    /// expiry, and when this client releases the name.
    pub(super) async fn wait_beside_queue(&self, name: &Name) -> Result<Guard, Error> {
        let started = Moment::now();
        let limit = self.wait.map(|wait| started + wait);
        let timed_out = |busy| Error::WaitTimeout {
            name: name.clone(),
            waited: started.elapsed(),
            busy: Box::new(busy),
        };

        let waiter = self.core.waiters.join(name);
        let first = match self.wait {
            None => waiter.first().await,
            Some(wait) => match timeout(wait, waiter.first()).await {
                Ok(first) => first,
                // Other waiters of this client are first. Ask once, so that the error names the holder.
                Err(_) => match self.ask(name).await? {
                    Acquired::Held(guard) => return Ok(guard),
                    Acquired::Busy(busy) => return Err(timed_out(busy)),
                },
            },
        };

        let mut backoff = backoff::poll();
        loop {
            let mut pause = backoff.next().unwrap_or_default();
            let asked = self.ask(name).await;
            let over = limit.is_some_and(Moment::has_passed);
            match asked {
                Ok(Acquired::Held(guard)) => {
                    drop(first);
                    return Ok(guard);
                }
                Ok(Acquired::Busy(busy)) if over => return Err(timed_out(busy)),
                Ok(Acquired::Busy(Busy { holder, .. })) => {
                    if let Some(holder) = holder {
                        pause = pause.min(holder.remaining);
                    }
                }
                Err(error) if error.is_transient() && !over => {
                    tracing::debug!(%name, %error, "trying again");
                }
                Err(error) => return Err(error),
            }
            let wake = Moment::now() + pause;
            let wake = limit.map_or(wake, |limit| wake.min(limit));
            select! {
                () = sleep_until(wake) => {}
                () = waiter.freed() => backoff = backoff::poll(),
            }
        }
    }
}
