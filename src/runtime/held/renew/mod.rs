//! Renewals: a few background statements for all leases that a client holds.
//!
//! # Overview
//!
//! The renewals have a thread with a runtime and connections of their own. Three tasks share the [schedule]. One
//! *announces* warnings and losses by the local clock and never waits for the database. One *renews* due leases, in
//! chunks of at most 256. One *helps* over a spare connection while a statement in flight must not keep others
//! waiting. A wake-up costs the leases that are due, not those that are held. A fourth task [looks](look) at the
//! grants of the session now and then.
//!
//! # Trust window
//!
//! A renewal is due with two thirds of the trusted time left, so there is time for two more attempts. The warning
//! comes with one third left, the loss at the deadline. The deadline counts from before the last confirmed request was
//! sent.
//!
//! # Failure
//!
//! - *A statement fails, or takes too long*: its leases are sent again in smaller chunks, in turn with the others.
//! - *The database is out of reach*: dialing goes on, with pauses, until the deadlines. After each attempt that was
//!   too slow, the next one may [take longer](login).
//! - *More leases are held than the database can renew*: the excess is lost. The others, and every lease of a much
//!   shorter or longer TTL, are kept. The log reports how many were lost.

mod login;
pub(crate) mod look;
mod pace;
mod renewable;
mod schedule;
mod send;
mod tally;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::select;
use tokio::sync::Notify;
use uuid::Uuid;

use super::grant::Grant;
use super::session::{Session, SessionRenewal};
use crate::model::{Moment, RecordKey};
use crate::runtime::base::backoff;
use crate::runtime::base::timer::sleep_until;
use crate::runtime::batch::link::Link;
use crate::store::driver::connect::Connector;
use crate::store::driver::request::RequestLimit;
use login::Login;
use renewable::Renewable;
use schedule::{ALONE, Schedule};
use send::send;

/// The longest pause after a failure.
const MAX_PAUSE: Duration = Duration::from_millis(200);

/// A spare connection that is idle for this long is closed.
const SPARE: Duration = Duration::from_secs(10);

/// How many announcements are made at once; then other tasks have their turn.
const ANNOUNCEMENTS: usize = 1_000;

/// The handle to give grants to the renewals. Dropping it ends their thread.
#[derive(Debug)]
pub(crate) struct Renewals(Arc<RenewShared>);

#[derive(Debug, Default)]
struct RenewShared {
    state: Mutex<RenewState>,
    announce: Notify,
    renew: Notify,
    help: Notify,
    look: Notify,
}

#[derive(Debug, Default)]
struct RenewState {
    schedule: Schedule,
    /// The session whose grants have to be looked at.
    look: Option<(Arc<Session>, SessionRenewal)>,
    /// Nothing is held any more.
    closed: bool,
}

impl RenewShared {
    fn state(&self) -> MutexGuard<'_, RenewState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        self.announce.notify_one();
        self.renew.notify_one();
        self.help.notify_one();
        self.look.notify_one();
    }
}

/// The work of the renewals, for the thread that does it.
#[derive(Debug)]
pub(crate) struct Work(Arc<RenewShared>);

impl Work {
    /// Renews, announces and looks, until the renewals are closed. `spare` is a second connection, for engines on
    /// which several can write at a time.
    pub(crate) async fn run(self, link: Link, spare: Option<Link>, target: &str) {
        let (here, looks) = (&*self.0, link.another());
        tokio::join!(
            announce(here, target),
            renew(link, here, target),
            help(spare, here, target),
            look::look(looks, here, target),
        );
    }
}

impl Renewals {
    /// `limit`: that of a request to the server.
    pub(crate) fn new(limit: RequestLimit) -> (Self, Work) {
        let shared = Arc::new(RenewShared::default());
        shared.state().schedule = Schedule::within(limit);
        (Self(Arc::clone(&shared)), Work(shared))
    }

    /// Renews and watches `grant` from now on, until it ends. (A grant in a session is not renewed by itself.)
    pub(crate) fn add(&self, grant: &Arc<Grant>) {
        if grant.session_id().is_none() {
            self.keep(Renewable::Lease(Arc::clone(grant)));
        }
    }

    /// [`Self::add`] for a session.
    pub(crate) fn add_session(&self, session: &Arc<Session>) {
        self.keep(Renewable::Session(Arc::clone(session)));
    }

    /// [`Self::add`] for an attempt.
    pub(crate) fn add_record(&self, grant: &Arc<Grant<RecordKey>>) {
        self.keep(Renewable::Attempt(Arc::clone(grant)));
    }

    fn keep(&self, kept: Renewable) {
        let wake = self.0.state().schedule.keep(Moment::now(), kept);
        if wake.announcer {
            self.0.announce.notify_one();
        }
        if wake.renewer {
            self.0.renew.notify_one();
        }
        if wake.helper {
            self.0.help.notify_one();
        }
    }

    /// The grant was released, or the attempt has ended.
    pub(crate) fn remove(&self, id: Uuid) {
        self.0.state().schedule.remove(id);
    }

    /// Ends the tasks.
    pub(crate) fn close(&self) {
        self.0.state().closed = true;
        self.0.wake();
    }
}

impl Drop for Renewals {
    fn drop(&mut self) {
        self.close();
    }
}

/// The spare connection, on engines where several can write at a time.
pub(crate) fn spare<C: Connector>(link: &Link) -> Option<Link> {
    (!C::CAPABILITIES.one_writer).then(|| link.another())
}

/// Announces warnings and losses in time, whatever the database does.
async fn announce(shared: &RenewShared, target: &str) {
    loop {
        let now = Moment::now();
        let (next, report, is_over) = {
            let state = &mut *shared.state();
            let next = state.schedule.announce(now, ANNOUNCEMENTS);
            let is_over = state.closed;
            (next, state.schedule.report(now, is_over), is_over)
        };
        if let Some(report) = report {
            let (late, lost, held) = (report.late, report.lost, report.held);
            tracing::warn!(
                %target, late, lost, held,
                "leases are not renewed in time: the database is slow or out of reach, \
                 or one client holds more leases of a short TTL than can be renewed"
            );
        }
        if is_over {
            return;
        }
        pause(next, &shared.announce).await;
        // A moment that has passed is not waited for.
        tokio::task::yield_now().await;
    }
}

/// Sleeps until `at`, or until `news` wakes it.
async fn pause(at: Option<Moment>, news: &Notify) {
    match at {
        None => news.notified().await,
        Some(at) => select! {
            () = news.notified() => {}
            () = sleep_until(at) => {}
        },
    }
}

async fn renew(mut link: Link, shared: &RenewShared, target: &str) {
    let mut backoff = backoff::reconnect();
    // The number of failures in a row.
    let mut failures = 0;
    let mut login = Login::default();
    loop {
        let (next, limit) = {
            let state = &mut *shared.state();
            if state.closed {
                break;
            }
            (state.schedule.next(), state.schedule.dial_limit())
        };
        if next.is_none_or(|at| !at.has_passed()) {
            // Connect before the first renewal needs it.
            if let Some(at) = next.filter(|_| !link.is_connected()) {
                select! {
                    _ = login.connect(&mut link) => {}
                    () = shared.renew.notified() => continue,
                    () = sleep_until(at) => continue,
                }
            }
            pause(next, &shared.renew).await;
            continue;
        }
        let failed = match login.finish(&mut link, limit).await {
            Ok(()) => {
                let chunk = shared.state().schedule.chunk(Moment::now());
                shared.help.notify_one();
                let fault = send(&mut link, shared, chunk).await.err();
                shared.state().schedule.landed();
                failures = if fault.is_some() { failures + 1 } else { 0 };
                fault
            }
            Err(fault) => {
                failures = ALONE;
                Some(fault)
            }
        };
        let Some(fault) = failed else {
            backoff = backoff::reconnect();
            continue;
        };
        tracing::warn!(%target, error = %fault, "cannot renew leases, will try again");
        // A chunk with a refused row fails this often until that row is alone.
        if failures >= ALONE {
            let pause = backoff.next().unwrap_or_default();
            sleep_until(Moment::now() + pause.min(MAX_PAUSE)).await;
        }
    }
    link.close().await;
}

/// Renews, over the spare connection, the leases that cannot wait for the statement in flight on the first one.
async fn help(link: Option<Link>, shared: &RenewShared, target: &str) {
    let Some(mut link) = link else {
        return;
    };
    let mut used = Moment::now();
    let mut login = Login::default();
    loop {
        let (next, limit) = {
            let state = &mut *shared.state();
            if state.closed {
                break;
            }
            let next = state.schedule.spare_next(Moment::now());
            (next, state.schedule.dial_limit())
        };
        if next.is_none_or(|at| !at.has_passed()) {
            select! {
                () = pause(next, &shared.help) => {}
                () = sleep_until(used + SPARE), if link.is_connected() => link.hang_up(),
            }
            continue;
        }
        if let Err(fault) = login.finish(&mut link, limit).await {
            tracing::debug!(%target, error = %fault, "no spare connection for renewals");
            sleep_until(Moment::now() + MAX_PAUSE).await;
            continue;
        }
        used = Moment::now();
        let Some(chunk) = shared.state().schedule.spare_chunk(Moment::now()) else {
            continue; // the statement in flight was answered meanwhile
        };
        if let Err(fault) = send(&mut link, shared, chunk).await {
            tracing::warn!(%target, error = %fault, "cannot renew leases, will try again");
        }
        used = Moment::now();
        // Leases of a failed statement, and leases found locked, have to be sent again.
        shared.renew.notify_one();
    }
    link.close().await;
}

#[cfg(all(test, feature = "sqlite"))]
mod tests;

#[cfg(all(test, feature = "sqlite"))]
#[path = "tasks_tests.rs"]
mod tasks;
