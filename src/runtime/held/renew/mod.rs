//! Renewals: a few background statements for all leases that a client holds.
//!
//! # Overview
//!
//! The renewals have a thread with a runtime of their own. Two tasks share the [schedule]. One
//! *announces* warnings and losses by the local clock and never waits for the database. One *renews* due leases, in
//! chunks of at most 256, the earliest deadline first. A wake-up costs the leases that are due, not those that are
//! held. A third task [looks](look) at the grants of the session now and then.
//!
//! # Trust window
//!
//! A renewal is due with two thirds of the trusted time left, so there is time for two more attempts. The warning
//! comes with one third left, the loss at the deadline. The deadline counts from before the last confirmed request was
//! sent.
//!
//! # Failure
//!
//! - *A statement fails, or takes too long*: its leases are sent again in smaller chunks, after others.
//! - *The database is out of reach*: dialing goes on, with pauses, until the deadlines. After each attempt that was
//!   too slow, the next one may take longer.
//! - *More leases are held than the database can renew*: the excess is lost. The log reports how many were lost.

pub(crate) mod look;
mod pace;
mod renewable;
mod schedule;
mod send;
mod tally;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::select;
use tokio::sync::Notify;
use tokio::time::timeout;
use uuid::Uuid;

use super::grant::Grant;
use super::session::{Session, SessionRenewal};
use crate::model::{Moment, RecordKey};
use crate::runtime::base::backoff;
use crate::runtime::base::timer::sleep_until;
use crate::runtime::batch::link::Link;
use crate::store::driver::request::RequestLimit;
use crate::store::verbs::fault::Fault;
use renewable::Renewable;
use schedule::{ALONE, Schedule};
use send::send;

/// The longest pause after a failure.
const MAX_PAUSE: Duration = Duration::from_millis(200);

/// The least time for a login.
const MIN_LOGIN: Duration = Duration::from_millis(500);

/// The time for a login is doubled this often at most. (The operation timeout bounds every login, too.)
const MAX_DOUBLINGS: u32 = 4;

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
    fn wake(&self) {
        self.announce.notify_one();
        self.renew.notify_one();
        self.look.notify_one();
    }
}

/// The work of the renewals, for the thread that does it.
#[derive(Debug)]
pub(crate) struct Work(Arc<RenewShared>);

impl Work {
    /// Renews, announces and looks, until the renewals are closed.
    pub(crate) async fn run(self, link: Link, looks: Link, target: &str) {
        let here = &*self.0;
        tokio::join!(
            announce(here, target),
            renew(link.urgent(), here, target),
            look::look(looks, here, target),
        );
    }
}

impl Renewals {
    /// `limit`: that of a request to the server.
    pub(crate) fn new(limit: RequestLimit) -> (Self, Work) {
        let shared = Arc::new(RenewShared::default());
        shared.state.lock().schedule = Schedule::within(limit);
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
        let wake = self.0.state.lock().schedule.keep(Moment::now(), kept);
        if wake.announcer {
            self.0.announce.notify_one();
        }
        if wake.renewer {
            self.0.renew.notify_one();
        }
    }

    /// The grant was released, or the attempt has ended.
    pub(crate) fn remove(&self, id: Uuid) {
        self.0.state.lock().schedule.remove(id);
    }

    /// Ends the tasks.
    pub(crate) fn close(&self) {
        self.0.state.lock().closed = true;
        self.0.wake();
    }
}

impl Drop for Renewals {
    fn drop(&mut self) {
        self.close();
    }
}

/// Announces warnings and losses in time, whatever the database does.
async fn announce(shared: &RenewShared, target: &str) {
    loop {
        let now = Moment::now();
        let (next, report, is_over) = {
            let state = &mut *shared.state.lock();
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
    // The number of logins in a row that were too slow.
    let mut slow = 0;
    loop {
        let (next, bound) = {
            let state = &mut *shared.state.lock();
            if state.closed {
                break;
            }
            (state.schedule.next(Moment::now()), state.schedule.bound())
        };
        link.keep(next.is_some());
        link.can_wait(bound);
        if next.is_none_or(|at| !at.has_passed()) {
            // Connect before the first renewal needs it.
            if next.is_some() {
                let mut login = pin!(login(&mut link, bound, &mut slow));
                select! {
                    _ = &mut login => {}
                    () = shared.renew.notified() => {
                        // A shorter TTL, or the end. (A login that is cut off leaves a SQLite file with its log.)
                        let bound = shared.state.lock().schedule.bound().max(MIN_LOGIN);
                        _ = timeout(bound, login).await;
                        continue;
                    }
                }
            }
            link.rest(pause(next, &shared.renew)).await;
            continue;
        }
        let failed = match login(&mut link, bound, &mut slow).await {
            Ok(()) => {
                let chunk = shared.state.lock().schedule.chunk(Moment::now());
                let fault = send(&mut link, shared, chunk).await.err();
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

/// Connects, unless there is a connection. A login takes several round trips, more than a statement. A bound that
/// suits the statements would cut off every login of a slow network, until the leases are lost. So after each attempt
/// that was too slow, the next one may take twice as long.
async fn login(link: &mut Link, bound: Duration, slow: &mut u32) -> Result<(), Fault> {
    let made = timeout(bound.max(MIN_LOGIN) * (1 << *slow), link.connect()).await;
    match made {
        Ok(Ok(())) => *slow = 0,
        Ok(Err(_)) => {}
        Err(_) => *slow = (*slow + 1).min(MAX_DOUBLINGS),
    }
    made.unwrap_or_else(|_| Err(Fault::timed_out()))
}

#[cfg(all(test, feature = "sqlite"))]
mod tests;

#[cfg(all(test, feature = "sqlite"))]
#[path = "tasks_tests.rs"]
mod tasks;
