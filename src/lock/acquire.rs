//! Acquiring a lease: asking once, and waiting while another holder has it.
//!
//! The [waiters](crate::runtime::waiters) of one process queue. The first waiter asks again after growing, jittered pauses, at the
//! holder's expiry, and when this process releases the name.

use std::sync::Arc;
use std::time::Duration;

use tokio::select;
use tokio::time::timeout;
use uuid::Uuid;

use super::{DEFAULT_TTL, Held, Lock, TryAcquire};
use crate::model::bounds::{MAX_WAIT, MIN_TTL, check_holder, check_wait, within};
use crate::model::{Busy, Error, Moment, Name};
use crate::runtime::backoff;
use crate::runtime::lease_guard::Guard;
use crate::runtime::timer::sleep_until;
use crate::runtime::verbs::take::{Acquired, Take};
use crate::store::lease::{FOR_EVER, TakeAsk};

impl Lock {
    /// Asks once for the lease.
    ///
    /// # Errors
    ///
    /// Invalid settings; a database that is out of reach or gives no answer within the client's
    /// [`operation_timeout`](crate::Builder::operation_timeout); a damaged row. Contention is not
    /// an error.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`), when it must wait for another task of its owner.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: a lease that it acquired is released in the background.
    pub async fn try_acquire(&self) -> Result<TryAcquire, Error> {
        let name = self.check()?;
        Ok(match self.ask(name).await? {
            Acquired::Held(guard) => TryAcquire::Held(Held::new(guard)),
            Acquired::Busy(busy) => TryAcquire::Busy(busy),
        })
    }

    /// Waits for the lease, for at most [`wait`](Self::wait). If the database is out of reach, it tries again in that
    /// time.
    ///
    /// It polls, and has no place in the database's queue of waiting transactions. On a name that
    /// [transactions](crate::Rowlock::in_tx) lock one right after the other, it may wait for ever. Use only transactions for
    /// such a name.
    ///
    /// # Errors
    ///
    /// [`Error::WaitTimeout`] when the lock was not free in time, and the errors of
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`), when it must wait.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: a lease that it acquired is released in the background.
    pub async fn acquire(&self) -> Result<Held, Error> {
        let name = self.check()?;
        let granted = self.wait_for(name);
        let guard = match &self.owner {
            // Re-entry bypasses the queue: all waiters in the queue wait for this owner.
            Some(owner) => select! {
                biased;
                entered = owner.entered(&self.core, name) => entered,
                granted = granted => granted?,
            },
            None => granted.await?,
        };
        Ok(Held::new(guard))
    }

    /// Asks until the lease is granted or the wait is over. Asks at least once, however short the wait.
    async fn wait_for(&self, name: &Name) -> Result<Guard, Error> {
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
                // Other waiters of this process are first. Ask once, so that the error names the holder.
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

    /// Checks all settings, before the database is asked.
    fn check(&self) -> Result<&Name, Error> {
        let name = self.name.as_ref().map_err(Clone::clone)?;
        let ttl = self.ttl.unwrap_or(DEFAULT_TTL);
        if self.in_session && self.ttl.is_some() {
            return Err(Error::InvalidSetting {
                setting: "ttl",
                reason: "a lock in a session has none: it ends with the session (Builder::session_ttl)",
            });
        }
        let settings = &self.core.settings;
        if self.in_session {
            settings.check_lease("session_ttl", settings.session_ttl)?;
        } else {
            Self::check_ttl(ttl)?;
            settings.check_lease("ttl", ttl)?;
        }
        if let Some(wait) = self.wait {
            check_wait(wait)?;
        }
        if let Some(max_hold) = self.max_hold {
            let bounds = MIN_TTL..=MAX_WAIT;
            within(
                "max_hold",
                max_hold,
                bounds,
                "100 ms to 366 days are allowed",
            )?;
            self.core.settings.check_lease("max_hold", max_hold)?;
        }
        if let Some(holder) = &self.holder {
            check_holder(holder)?;
        }
        if let Some(owner) = &self.owner {
            owner.check(&self.core)?;
        }
        Ok(name)
    }

    async fn ask(&self, name: &Name) -> Result<Acquired, Error> {
        let give_up = Moment::now() + self.core.settings.operation_timeout;
        let Some(owner) = &self.owner else {
            return self.take(name, give_up).await;
        };
        if let Some(guard) = owner.enter(&self.core, name) {
            return Ok(Acquired::Held(guard));
        }
        let _asking = select! {
            biased;
            asking = owner.asking(name) => asking,
            // This operation's time is over, and the owner's earlier tasks have no answer yet.
            () = sleep_until(give_up) => return Err(Error::Unreachable {
                target: self.core.target.to_string(),
                detail: "another task of the same owner asked for the same name, and has no answer yet".into(),
            }),
        };
        // Another task of this owner may have got the lease meanwhile.
        if let Some(guard) = owner.enter(&self.core, name) {
            return Ok(Acquired::Held(guard));
        }
        let acquired = self.take(name, give_up).await?;
        if let Acquired::Held(guard) = &acquired {
            owner.granted(guard.grant());
        }
        Ok(acquired)
    }

    /// Asks for a fresh grant.
    async fn take(&self, name: &Name, give_up: Moment) -> Result<Acquired, Error> {
        let (core, max_hold) = (&self.core, self.max_hold);
        let holder = self.holder.as_ref().unwrap_or(&core.settings.holder);
        loop {
            let session = if self.in_session {
                Some(core.session().await?)
            } else {
                None
            };
            let ask = TakeAsk {
                name: name.clone(),
                grant_id: Uuid::new_v4(),
                ttl: self.lease(),
                holder: Arc::clone(holder),
                session: session.as_ref().map(|session| session.grant.id),
                barging: false,
            };
            let reply = |reply| Take::task(core, ask, max_hold, session.clone(), reply, give_up);
            let acquired = core.answer(reply).await?;
            // The session may have ended meanwhile: then the lock is not held, and another session gets it.
            let ended = session.is_some_and(|session| !session.grant.is_held());
            if !ended || give_up.has_passed() || matches!(acquired, Acquired::Busy(_)) {
                return Ok(acquired);
            }
        }
    }

    /// The TTL of the row.
    fn lease(&self) -> Duration {
        match (self.in_session, self.max_hold) {
            // The row ends by itself at the limit. No renewal could stop there.
            (true, Some(max_hold)) => self.core.settings.clock_error.lease_for(max_hold),
            (true, None) => FOR_EVER,
            (false, max_hold) => {
                let ttl = self.ttl.unwrap_or(DEFAULT_TTL);
                max_hold.map_or(ttl, |max_hold| ttl.min(max_hold))
            }
        }
    }
}
