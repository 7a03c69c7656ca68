//! Waiting for a lease in the queue of its name.

use std::pin::pin;
use std::sync::Arc;

use tokio::select;

use super::patience::{Patience, until};
use super::{Lock, Owner};
use crate::model::{Error, Kind, Moment, Name, Subject};
use crate::runtime::base::backoff;
use crate::runtime::base::meter::InQueue;
use crate::runtime::base::timer::sleep_until;
use crate::runtime::base::wait_log::WaitLog;
use crate::runtime::held::guard::Guard;
use crate::runtime::requests::confirm::{Confirm, ConfirmAnswer};
use crate::runtime::requests::join::{Join, JoinAnswer};
use crate::runtime::requests::pending_grant::PendingGrant;
use crate::runtime::requests::take::AcquireAnswer;
use crate::runtime::wait::queue::seat::SeatEnd;
use crate::runtime::wait::queue_place::QueuePlace;
use crate::store::verbs::Store;
use crate::store::verbs::deadlock::TellParams;
use crate::store::verbs::queue::JoinParams;

/// How an attempt to wait in the queue ended.
enum QueueWait {
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
                        AcquireAnswer::Held(guard) => return Ok(QueueWait::Held(guard)),
                        AcquireAnswer::Not(busy) if patience.is_over() => {
                            return Err(patience.timed_out(busy));
                        }
                        AcquireAnswer::Not(_) => {}
                    }
                }
                self.join(name, patience.limit, &mut log).await
            };
            match waited.await {
                Ok(QueueWait::Held(guard)) => return Ok(guard),
                Ok(QueueWait::TooLong) => break,
                Ok(QueueWait::Gone | QueueWait::Locked) if patience.is_over() => break,
                Ok(QueueWait::Gone) => {
                    is_asking = false;
                    backoff = backoff::poll();
                    continue;
                }
                Ok(QueueWait::Locked) => is_asking = false,
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
    ) -> Result<QueueWait, Error> {
        let place = self.place(name).await?;
        let joined = self.as_owner(name, async |give_up| {
            Ok(
                match self.join_at(place, self.queue_limit, give_up).await? {
                    JoinAnswer::Held(guard) if self.is_good(&guard) => AcquireAnswer::Held(guard),
                    JoinAnswer::Queued(place) => AcquireAnswer::Not(Ok(place)),
                    JoinAnswer::Full(busy) => {
                        let busy = Box::new(busy);
                        return Err(Error::QueueFull { busy });
                    }
                    // Or the session of the lock has just ended.
                    JoinAnswer::Locked | JoinAnswer::Held(_) => {
                        AcquireAnswer::Not(Err(QueueWait::Locked))
                    }
                },
            )
        });
        let joined = joined.await?;
        self.set_trouble(None);
        log.over(&format_args!("{name:?}"));
        match joined {
            AcquireAnswer::Held(guard) => Ok(QueueWait::Held(guard)),
            AcquireAnswer::Not(Ok(place)) => {
                if let Some(delegation) = self.delegation.as_ref().filter(|_| place.late == 0) {
                    delegation.sits(&place.seat);
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
            AcquireAnswer::Not(Err(waited)) => Ok(waited),
        }
    }

    /// Tells what the owner holds, if it has a name: then a deadlock is found.
    fn tell_owner(&self, place: &QueuePlace) -> Option<impl Future<Output = ()> + use<>> {
        let (owner, held) = self.owner.as_ref().and_then(Owner::holds)?;
        let waiter = place.seat.look_params()?;
        let name = waiter.name.clone();
        let owner: Arc<str> = owner.into();
        place.may_deadlock();
        let core = Arc::clone(&self.core);
        Some(async move {
            let params = TellParams {
                waiter,
                owner: core.server.legible(&owner).to_string(),
                held,
            };
            let head = core
                .lanes
                .wish(Subject::Lock(name.clone()), "search deadlocks");
            let tell = async move |store: &mut dyn Store| store.deadlock_tell(&params).await;
            if let Err(error) = core.lanes.run(head, tell).await {
                tracing::warn!(%name, %error, "deadlocks of this wait are not found");
            }
        })
    }

    pub(super) async fn place(&self, name: &Name) -> Result<QueuePlace, Error> {
        let session = self.core.session().await?;
        Ok(QueuePlace::new(
            (&self.core.queue, &self.core.holdings.on_end),
            name,
            self.kind(),
            session,
            self.lease(),
        ))
    }

    pub(super) async fn join_at(
        &self,
        place: QueuePlace,
        most: u32,
        give_up: Moment,
    ) -> Result<JoinAnswer, Error> {
        let params = JoinParams {
            name: place.seat.ticket.name.clone(),
            grant_id: place.seat.ticket.grant_id,
            session: place.seat.session.grant.id,
            in_session: self.in_session,
            ttl: self.lease(),
            holder: self.shown_holder(),
            most,
        };
        let wanted = self.wanted(&place);
        let join = |reply| Join::task((params, self.share), wanted, place, reply, give_up);
        self.core.lanes.answer(join).await
    }

    /// What the name is.
    pub(super) fn kind(&self) -> Kind {
        self.share.map_or(Kind::Lock, |share| share.kind)
    }

    /// Waits for the turn of the place, and confirms the grant then. Dropping the future leaves the queue.
    async fn stand(
        &self,
        mut place: QueuePlace,
        limit: Option<Moment>,
    ) -> Result<QueueWait, Error> {
        let core = &self.core;
        let _in_queue = InQueue::new();
        loop {
            let mut closing = pin!(core.queue.closing.notified());
            // From here on no shutdown is missed.
            closing.as_mut().enable();
            core.lanes.check_open()?;
            select! {
                biased;
                turn = place.seat.told() => match turn {
                    SeatEnd::Granted => break,
                    SeatEnd::Gone => return Ok(QueueWait::Gone),
                    SeatEnd::Deadlock(cycle) => {
                        let name = place.seat.ticket.name.clone();
                        return Err(Error::Deadlock { name, cycle });
                    }
                    SeatEnd::Refused(fault) => {
                        return Err(fault.into_error("wait for a turn", &core.lanes.target));
                    }
                },
                () = closing => {}
                () = until(limit) => return Ok(QueueWait::TooLong),
            }
        }
        let mut backoff = backoff::poll();
        loop {
            let name = place.seat.ticket.name.clone();
            let confirmed = self.as_owner(&name, async |give_up| {
                let wanted = self.wanted(&place);
                let delegation = self.delegation.as_ref();
                let fences = delegation.map_or(0, |delegation| delegation.block());
                let confirm = |reply| Confirm::task((wanted, fences), place, reply, give_up);
                Ok(match core.lanes.answer(confirm).await? {
                    ConfirmAnswer::Held(guard) if self.is_good(&guard) => {
                        AcquireAnswer::Held(guard)
                    }
                    ConfirmAnswer::Held(_) | ConfirmAnswer::Gone => {
                        AcquireAnswer::Not(Err(QueueWait::Gone))
                    }
                    ConfirmAnswer::Locked(place) => AcquireAnswer::Not(Ok(place)),
                })
            });
            match confirmed.await? {
                AcquireAnswer::Held(guard) => return Ok(QueueWait::Held(guard)),
                AcquireAnswer::Not(Err(waited)) => return Ok(waited),
                AcquireAnswer::Not(Ok(again)) => place = again,
            }
            if limit.is_some_and(Moment::has_passed) {
                return Ok(QueueWait::TooLong);
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

    fn wanted(&self, place: &QueuePlace) -> PendingGrant {
        let session = Some(&place.seat.session).filter(|_| self.in_session);
        let grant = (&place.seat.ticket.row(), place.seat.ticket.grant_id);
        self.core
            .wanted(grant, self.lease(), self.max_hold, session)
    }

    /// Whether the session of the lock, if it has one, has not ended meanwhile.
    pub(super) fn is_good(&self, guard: &Guard) -> bool {
        !self.in_session || guard.is_held()
    }
}
