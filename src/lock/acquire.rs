//! Acquiring a lease: asking once, or waiting while another holder has it.

use std::sync::Arc;
use std::time::Duration;

use tokio::select;
use tracing::{Instrument as _, Span};
use uuid::Uuid;

use super::{Held, Lock, TryAcquire};
use crate::model::bounds::{
    MAX_WAIT, MIN_TTL, check_holder, check_linger, check_ttl, check_wait, within,
};
use crate::model::{Busy, Error, InvalidError, Moment, Name};
use crate::runtime::base::meter::Since;
use crate::runtime::base::timer::sleep_until;
use crate::runtime::base::{backoff, meter, spans};
use crate::runtime::requests::join::JoinAnswer;
use crate::runtime::requests::take::{AcquireAnswer, Take};
use crate::store::verbs::lease::{FOR_EVER, TakeParams};
use crate::transaction::is_alone_in;

impl Lock {
    /// Asks once for the lease. `None`: another holder has it, or others wait for it in the queue and come first. (To
    /// learn who, [`acquire`](Self::acquire) with a [`wait`](Self::wait) of zero.)
    ///
    /// # Errors
    ///
    /// Invalid settings; a database that is out of reach or gives no answer within the client's
    /// [`operation_timeout`](crate::Builder::operation_timeout); a damaged row. Contention is not an error.
    /// [`Error::RowLocked`] on SQLite, in the closure of [`Retry::run`](crate::Retry::run) or
    /// [`run_in_tx`](crate::Idempotency::run_in_tx): the transaction has the file, so that a lease cannot be granted
    /// before it ends.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`), when it must wait for another task of its owner.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: a lease that it acquired is released in the background.
    pub async fn try_acquire(&self) -> Result<Option<Held>, Error> {
        Ok(self.try_or_busy().await?.held())
    }

    /// [`Self::try_acquire`], with what is in the way.
    pub(crate) async fn try_or_busy(&self) -> Result<TryAcquire, Error> {
        let (since, span) = (Since::now(), self.span());
        let tried = self.try_once().instrument(span.clone()).await;
        self.answered(tried.as_ref().map(TryAcquire::as_held), &since, span);
        tried
    }

    fn span(&self) -> Span {
        spans::acquire(&self.name, self.kind())
    }

    /// Counts the outcome of a call, and shows it in the trace of the caller.
    fn answered(&self, got: Result<Option<&Held>, &Error>, since: &Since, span: Span) {
        let outcome = meter::outcome_of(got.map(|held| held.is_some()));
        meter::acquired(self.kind(), outcome, since.elapsed());
        let held = got.ok().flatten();
        let position = held.and_then(|held| held.guard.grant().position);
        spans::acquired(&span, outcome, position);
        drop(span);
        if let Some(held) = held {
            held.guard.begin_span();
        }
    }

    async fn try_once(&self) -> Result<TryAcquire, Error> {
        let name = self.check()?;
        if let Some(guard) = self.pick_up(name) {
            return Ok(TryAcquire::Held(Held::new(guard, &self.core)));
        }
        Ok(match self.ask(name).await? {
            AcquireAnswer::Held(guard) => TryAcquire::Held(Held::new(guard, &self.core)),
            AcquireAnswer::Not(busy) => TryAcquire::Busy(busy),
        })
    }

    /// Waits for the lease, for at most [`wait`](Self::wait). If the database is out of reach or takes no writes, it
    /// tries again in that time, and logs a warning (target `rowlock::waiting`) when that begins. With a wait of zero
    /// it asks once, as [`try_acquire`](Self::try_acquire) does.
    ///
    /// Waiting is fair: while the name is held or waited for, this joins the queue of the name in the database, and
    /// all clients are granted the name in the order in which they joined. A waiter belongs to the
    /// [session](crate::Builder::session_ttl) of its client. When the client crashes, its waiters are passed over as
    /// soon as the session has expired. When the client is paused, a waiter that is granted the name has 2 s to
    /// confirm. Then the next waiter is granted the name.
    ///
    /// Tasks of one client that want the same lock under the same settings wait together, as one waiter. When this
    /// waiter is granted the lease, they hand it on in memory for at most 50 ms, in the order in which they asked,
    /// each under a fence of its own. No statement is sent then. After the 50 ms the next waiter in the queue is
    /// granted the name. A task that does not take the lease within 2 s after the 50 ms, because its runtime is
    /// blocked or this future is not polled, has to wait again. Two kinds of leases are not handed on: a lease that a
    /// transaction has [pinned](crate::Held::pin), and a lease with less than half of its trusted time left. Locks for
    /// an [owner](Self::owner) or with a [`max_hold`](Self::max_hold) wait each by itself.
    ///
    /// A waiter loses its place if its process was paused, or could not reach the database, for longer than 2 s after
    /// its turn came, or for longer than the [`session_ttl`](crate::Builder::session_ttl) before. Then it joins again,
    /// at the end.
    ///
    /// On a Galera cluster there is no queue: waiters ask again and again, in no order. (A row in the queue would
    /// abort the transaction that has pinned the name through another node.)
    ///
    /// Transactions wait in the database, not in this queue. On a name that [transactions](crate::Rowlock::in_tx) lock
    /// one right after the other, a waiter may wait for ever. Use only transactions for such a name.
    ///
    /// # Errors
    ///
    /// [`Error::WaitTimeout`] when the lock was not free in time; [`Error::QueueFull`] when the queue is as long as
    /// the [`queue_limit`](Self::queue_limit); and the errors of [`try_acquire`](Self::try_acquire).
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`), when it must wait.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: in the background it leaves the queue, and a lease that it acquired
    /// is released.
    pub async fn acquire(&self) -> Result<Held, Error> {
        if self.wait == Some(Duration::ZERO) {
            return self.try_or_busy().await?.or_timed_out();
        }
        let (since, span) = (Since::now(), self.span());
        let acquired = self.wait_for_it().instrument(span.clone()).await;
        self.answered(acquired.as_ref().map(Some), &since, span);
        acquired
    }

    async fn wait_for_it(&self) -> Result<Held, Error> {
        let name = self.check()?;
        let granted = async {
            // Where other nodes take writes too (Galera), a waiter that joins there would abort the transaction that
            // has the row pinned here.
            if self.core.server.multi_writer {
                self.poll(name).await
            } else {
                self.wait_in_cohort(name).await
            }
        };
        let guard = match &self.owner {
            // Re-entry needs no place in the queue: all waiters in it wait for this owner.
            Some(owner) => select! {
                biased;
                entered = owner.entered(&self.core, name) => entered,
                granted = granted => granted?,
            },
            None => granted.await?,
        };
        Ok(Held::new(guard, &self.core))
    }

    /// Checks all settings, before the database is asked.
    pub(super) fn check(&self) -> Result<&Name, Error> {
        let name = self.name.as_ref().map_err(Clone::clone)?;
        let ttl = self.ttl.unwrap_or(Lock::DEFAULT_TTL);
        if self.in_session && self.ttl.is_some() {
            return Err(Error::Invalid(InvalidError::Setting {
                setting: "ttl",
                reason: "a lock in a session has none: it ends with the session (Builder::session_ttl)",
            }));
        }
        let settings = &self.core.holdings.settings;
        if self.in_session {
            settings.check_lease("session_ttl", settings.session_ttl)?;
        } else {
            check_ttl("ttl", ttl)?;
            settings.check_lease("ttl", ttl)?;
        }
        if let Some(wait) = self.wait {
            check_wait(wait)?;
        }
        if let Some(linger) = self.linger {
            check_linger(linger)?;
        }
        if let Some(max_hold) = self.max_hold {
            let bounds = MIN_TTL..=MAX_WAIT;
            within(
                "max_hold",
                max_hold,
                bounds,
                "100 ms to 366 days are allowed",
            )?;
            self.core
                .holdings
                .settings
                .check_lease("max_hold", max_hold)?;
        }
        if let Some(holder) = &self.holder {
            check_holder(holder)?;
        }
        if let Some(owner) = &self.owner {
            owner.check(&self.core)?;
        }
        if let Some(share) = self.share {
            share.check()?;
        }
        if is_alone_in(&self.core.lanes.target) {
            let name = name.clone();
            let doing = "acquire";
            return Err(Error::RowLocked { doing, name });
        }
        Ok(name)
    }

    /// Asks once.
    pub(super) async fn ask(&self, name: &Name) -> Result<AcquireAnswer<Busy>, Error> {
        // If this client keeps a lingering lease of the name, its release is sent before this acquire.
        drop(self.core.queue.keepers.recall(name));
        if self.share.is_some() {
            return self.ask_for_permit(name).await;
        }
        let ask = async |give_up| self.take(name, give_up).await;
        self.as_owner(name, ask).await
    }

    /// Asks once for a permit. It joins the queue, in which it may not wait.
    async fn ask_for_permit(&self, name: &Name) -> Result<AcquireAnswer<Busy>, Error> {
        let give_up = Moment::now() + self.core.holdings.settings.operation_timeout;
        let (mut is_passed_on, mut backoff) = (false, backoff::poll());
        loop {
            let place = self.place(name).await?;
            match self.join_at(place, 0, give_up).await? {
                // The session of the permit has just ended: another one gets it.
                JoinAnswer::Held(guard) if !self.is_good(&guard) && !give_up.has_passed() => {}
                JoinAnswer::Held(guard) => return Ok(AcquireAnswer::Held(guard)),
                // Perhaps all waiters are dead. They would be in the way until somebody waits.
                JoinAnswer::Full(busy)
                    if busy.waiters > 0 && !is_passed_on && !give_up.has_passed() =>
                {
                    is_passed_on = self.core.pass_on(name, self.kind()).await?;
                    if !is_passed_on {
                        sleep_until(Moment::now() + backoff.next().unwrap_or_default()).await;
                    }
                }
                JoinAnswer::Full(busy) => return Ok(AcquireAnswer::Not(busy)),
                // Another verb has the row of the name, for a moment.
                JoinAnswer::Locked | JoinAnswer::Queued(_) if !give_up.has_passed() => {
                    sleep_until(Moment::now() + backoff.next().unwrap_or_default()).await;
                }
                JoinAnswer::Locked | JoinAnswer::Queued(_) => {
                    return Err(Error::RowLocked {
                        doing: "acquire",
                        name: name.clone(),
                    });
                }
            }
        }
    }

    /// Enters a lease that the owner holds, or asks for one. Tasks of one owner ask one after the other.
    pub(super) async fn as_owner<T>(
        &self,
        name: &Name,
        ask: impl AsyncFnOnce(Moment) -> Result<AcquireAnswer<T>, Error>,
    ) -> Result<AcquireAnswer<T>, Error> {
        let give_up = Moment::now() + self.core.holdings.settings.operation_timeout;
        let Some(owner) = &self.owner else {
            return ask(give_up).await;
        };
        if let Some(guard) = owner.enter(&self.core, name) {
            return Ok(AcquireAnswer::Held(guard));
        }
        let _asking = select! {
            biased;
            asking = owner.asking(name) => asking,
            // This operation's time is over, and the owner's earlier tasks have no answer yet.
            () = sleep_until(give_up) => return Err(Error::Unreachable {
                target: self.core.lanes.target.to_string(),
                detail: "another task of the same owner asked for the same name, and has no answer yet".into(),
            }),
        };
        // Another task of this owner may have got the lease meanwhile.
        if let Some(guard) = owner.enter(&self.core, name) {
            return Ok(AcquireAnswer::Held(guard));
        }
        let asked = ask(give_up).await?;
        if let AcquireAnswer::Held(guard) = &asked {
            owner.granted(guard.grant());
        }
        Ok(asked)
    }

    /// Asks for a fresh grant.
    async fn take(&self, name: &Name, give_up: Moment) -> Result<AcquireAnswer<Busy>, Error> {
        let (core, max_hold) = (&self.core, self.max_hold);
        let holder = self.shown_holder();
        loop {
            let session = if self.in_session {
                Some(core.session().await?)
            } else {
                None
            };
            let params = TakeParams {
                name: name.clone(),
                grant_id: Uuid::new_v4(),
                ttl: self.lease(),
                holder: Arc::clone(&holder),
                session: session.as_ref().map(|session| session.grant.id),
            };
            let grant = (name, params.grant_id);
            let wanted = core.wanted(grant, params.ttl, max_hold, session.as_ref());
            let reply = |reply| Take::task(params, wanted, reply, give_up);
            let acquired = core.lanes.answer(reply).await?;
            // The session may have ended meanwhile: then the lock is not held, and another session gets it.
            let ended = session.is_some_and(|session| !session.grant.is_held());
            if !ended || give_up.has_passed() || matches!(acquired, AcquireAnswer::Not(_)) {
                return Ok(acquired);
            }
        }
    }

    /// The holder that the row shows.
    pub(super) fn shown_holder(&self) -> Arc<str> {
        let holder = self.holder.as_ref();
        let holder = holder.unwrap_or(&self.core.holdings.settings.holder);
        self.core.server.legible(holder)
    }

    /// The TTL of the row.
    pub(super) fn lease(&self) -> Duration {
        match (self.in_session, self.max_hold) {
            // The row ends by itself at the limit. No renewal could stop there.
            (true, Some(max_hold)) => self.core.holdings.settings.clock_error.lease_for(max_hold),
            (true, None) => FOR_EVER,
            (false, max_hold) => {
                let ttl = self.ttl.unwrap_or(Lock::DEFAULT_TTL);
                max_hold.map_or(ttl, |max_hold| ttl.min(max_hold))
            }
        }
    }
}
