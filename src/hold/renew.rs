//! Renewals: one background statement for all leases that a client holds.
//!
//! # Overview
//!
//! A thread with a runtime and a connection of its own. Two tasks share the set of live grants: one
//! *announces* (warnings, losses) by the local clock and never waits for the database; the other
//! *renews* whatever is due, in one statement.
//!
//! # Trust window
//!
//! A renewal is due with two thirds of the TTL left, so there is time for two more tries. The
//! warning comes with one third left, the loss at the deadline, which is counted from before the
//! last confirmed request was sent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::select;
use tokio::sync::Notify;
use uuid::Uuid;

use super::clean;
use super::clock::{Moment, sleep_until, trusted};
use super::grant::{Grant, Status};
use super::link::Link;
use super::retry;
use crate::Error;
use crate::idempotency::RecordKey;
use crate::lock::Loss;
use crate::store::fault::Fault;
use crate::store::record::{KeepAsk, Records};
use crate::store::{Connector, RenewAsk, Renewed, Store};

/// The bounds of the bound on a renewal statement: one that hangs is better sent again on a new
/// connection.
const MIN_BOUND: Duration = Duration::from_millis(50);
const MAX_BOUND: Duration = Duration::from_secs(2);
/// A login takes several round trips.
const MIN_DIAL_BOUND: Duration = Duration::from_millis(500);

/// The longest pause after a statement that failed.
const MAX_PAUSE: Duration = Duration::from_millis(200);

/// The way to hand a grant to the renewals. Dropping it ends their thread.
#[derive(Debug)]
pub(crate) struct Renewals(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    announce: Notify,
    renew: Notify,
}

#[derive(Debug, Default)]
struct State {
    live: HashMap<Uuid, Kept>,
    /// When the tasks wake next. A grant that is added wakes them only when it needs them earlier:
    /// most grants are released long before.
    announce_at: Option<Moment>,
    renew_at: Option<Moment>,
    closed: bool,
}

/// What is renewed.
#[derive(Debug, Clone)]
enum Kept {
    Lease(Arc<Grant>),
    Attempt(Arc<Grant<RecordKey>>),
}

/// The same for both.
macro_rules! on {
    ($kept:expr, $grant:ident => $body:expr) => {
        match $kept {
            Kept::Lease($grant) => $body,
            Kept::Attempt($grant) => $body,
        }
    };
}

impl Kept {
    fn id(&self) -> Uuid {
        on!(self, grant => grant.id)
    }

    fn ttl(&self) -> Duration {
        on!(self, grant => grant.ttl)
    }

    fn status(&self) -> Status {
        on!(self, grant => grant.status())
    }

    fn is_held(&self) -> bool {
        on!(self, grant => grant.is_held())
    }

    fn announce(&self) {
        on!(self, grant => grant.announce());
    }

    fn warn_at(&self) -> Moment {
        on!(self, grant => grant.warn_at())
    }

    fn renew_at(&self) -> Moment {
        on!(self, grant => grant.renew_at())
    }

    fn renewal_ttl(&self) -> Option<Duration> {
        on!(self, grant => grant.renewal_ttl())
    }

    fn settle(&self, outcome: Renewed, sent: Moment) {
        match outcome {
            Renewed::Live { remaining, .. } => {
                on!(self, grant => grant.confirm(sent + trusted(remaining)));
            }
            Renewed::Gone => on!(self, grant => grant.gone()),
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Renewals {
    /// The cleaner runs on the same thread.
    pub(crate) fn start<C: Connector>(
        link: Link<C>,
        cleaning: (Link<C>, Arc<clean::Shared>, Option<Duration>),
        target: &Arc<str>,
    ) -> Result<Self, Error> {
        let shared = Arc::new(Shared::default());
        let (log_target, here) = (Arc::clone(target), Arc::clone(&shared));
        super::spawn("rowlock-renew", target, move || {
            let runtime = super::own_runtime()?;
            runtime.block_on(async {
                let (cleaning, rest, every) = cleaning;
                tokio::join!(
                    announce(&here),
                    renew(link, &here, &log_target),
                    clean::run(cleaning, &rest, every, &log_target)
                );
            });
            Ok(())
        })?;
        Ok(Self(shared))
    }

    /// From now on `grant` is renewed and watched, until it ends.
    pub(crate) fn add(&self, grant: &Arc<Grant>) {
        self.keep(Kept::Lease(Arc::clone(grant)));
    }

    /// The same for an attempt.
    pub(crate) fn add_record(&self, grant: &Arc<Grant<RecordKey>>) {
        self.keep(Kept::Attempt(Arc::clone(grant)));
    }

    fn keep(&self, kept: Kept) {
        let mut state = self.0.state();
        if state.announce_at.is_none_or(|at| kept.warn_at() < at) {
            self.0.announce.notify_one();
        }
        if state.renew_at.is_none_or(|at| kept.renew_at() < at) {
            self.0.renew.notify_one();
        }
        state.live.insert(kept.id(), kept);
    }

    /// The grant was released, or the attempt has ended.
    pub(crate) fn remove(&self, id: Uuid) {
        self.0.state().live.remove(&id);
    }
}

impl Drop for Renewals {
    fn drop(&mut self) {
        self.0.state().closed = true;
        self.0.announce.notify_one();
        self.0.renew.notify_one();
    }
}

/// Tells warnings and losses in time, whatever the database does.
async fn announce(shared: &Shared) {
    loop {
        let next = {
            let mut state = shared.state();
            if state.closed {
                return;
            }
            state.live.values().for_each(Kept::announce);
            state.live.retain(|_, grant| grant.status().end.is_none());
            let due = |grant: &Kept| {
                let status = grant.status();
                if status.at_risk {
                    status.deadline
                } else {
                    grant.warn_at()
                }
            };
            state.announce_at = state.live.values().map(due).min();
            state.announce_at
        };
        pause(next, &shared.announce).await;
    }
}

/// Sleeps until `at`, or until it is told to look again.
async fn pause(at: Option<Moment>, news: &Notify) {
    match at {
        None => news.notified().await,
        Some(at) => select! {
            () = news.notified() => {}
            () = sleep_until(at) => {}
        },
    }
}

async fn renew<C: Connector>(mut link: Link<C>, shared: &Shared, target: &str) {
    let mut backoff = retry::reconnect();
    // Grants whose row somebody has locked: they are tried again after growing pauses of their own.
    let mut put_off: HashMap<Uuid, (Moment, u32)> = HashMap::new();
    loop {
        let (next, due) = {
            let mut state = shared.state();
            if state.closed {
                return;
            }
            state.live.retain(|_, grant| grant.status().end.is_none());
            put_off.retain(|id, _| state.live.contains_key(id));
            let at = |grant: &Kept| {
                let put_off = put_off.get(&grant.id()).map(|(until, _)| *until);
                put_off.map_or(grant.renew_at(), |until| until.max(grant.renew_at()))
            };
            let renewable = || {
                let live = state.live.values();
                live.filter(|grant| grant.is_held() && grant.renewal_ttl().is_some())
            };
            let next = renewable().map(at).min();
            // What is due, and what will be within a tenth of its TTL: one statement for all.
            let due: Vec<_> = renewable()
                .filter(|grant| (at(grant) - grant.ttl() / 10).has_passed())
                .cloned()
                .collect();
            state.renew_at = next;
            (next, due)
        };
        if next.is_none_or(|at| !at.has_passed()) {
            // The connection is there before the first renewal needs it.
            if next.is_some() && !link.is_connected() {
                select! {
                    _ = link.connect() => {}
                    () = shared.renew.notified() => continue,
                }
            }
            pause(next, &shared.renew).await;
            continue;
        }
        match renew_due(&mut link, due).await {
            Ok(settled) => {
                backoff = retry::reconnect();
                for (grant, settled) in settled {
                    if settled {
                        put_off.remove(&grant.id());
                    } else {
                        let (until, tries) =
                            put_off.entry(grant.id()).or_insert((Moment::now(), 2));
                        *tries += 1;
                        *until = Moment::now() + retry::again(*tries, grant.ttl() / 10);
                    }
                }
            }
            Err(fault) => {
                tracing::warn!(%target, error = %fault, "cannot renew");
                let pause = backoff.next().unwrap_or_default();
                sleep_until(Moment::now() + pause.min(MAX_PAUSE)).await;
            }
        }
    }
}

/// Renews all leases in one statement, and all attempts in another, and tells for each whether that is settled. It is
/// not when the row is locked by somebody.
async fn renew_due<C: Connector>(
    link: &mut Link<C>,
    due: Vec<Kept>,
) -> Result<Vec<(Kept, bool)>, Fault> {
    // What hangs must leave time for another try before the shortest lease ends.
    let shortest = due.iter().map(Kept::ttl).min().unwrap_or_default();
    let bound = (shortest / 4).clamp(MIN_BOUND, MAX_BOUND);
    match tokio::time::timeout(bound.max(MIN_DIAL_BOUND), link.connect()).await {
        Ok(made) => made?,
        Err(_) => return Err(Fault::timed_out()),
    }
    let (mut leases, mut attempts) = (Vec::new(), Vec::new());
    for kept in due.into_iter().filter(Kept::is_held) {
        match kept {
            Kept::Lease(grant) => leases.push(grant),
            Kept::Attempt(grant) => attempts.push(grant),
        }
    }
    let mut renewed = Vec::new();
    let leases = newest_only(leases);
    if !leases.is_empty() {
        let ask = |grant: &Arc<Grant>| RenewAsk {
            name: grant.name.clone(),
            owner: grant.id,
            ttl: grant.renewal_ttl().unwrap_or_default(),
        };
        let asks: Vec<RenewAsk> = leases.iter().map(ask).collect();
        let sent = Moment::now();
        let outcomes = link
            .run(bound, async |conn: &mut C::Connection| {
                conn.lease_renew(&asks).await
            })
            .await?;
        let leases = leases.into_iter().map(Kept::Lease);
        renewed.extend(
            leases
                .zip(outcomes)
                .map(|(kept, outcome)| (kept, outcome, sent)),
        );
    }
    let attempts = newest_only(attempts);
    if !attempts.is_empty() {
        let ask = |grant: &Arc<Grant<RecordKey>>| KeepAsk {
            key: grant.name.clone(),
            owner: grant.id,
            lease: grant.ttl,
        };
        let asks: Vec<KeepAsk> = attempts.iter().map(ask).collect();
        let sent = Moment::now();
        let outcomes = link
            .run(bound, async |conn: &mut C::Connection| {
                conn.record_renew(&asks).await
            })
            .await?;
        let attempts = attempts.into_iter().map(Kept::Attempt);
        renewed.extend(
            attempts
                .zip(outcomes)
                .map(|(kept, outcome)| (kept, outcome, sent)),
        );
    }
    let settle = |(kept, outcome, sent): (Kept, Renewed, Moment)| {
        kept.settle(outcome, sent);
        let still_due =
            kept.is_held() && kept.renewal_ttl().is_some() && kept.renew_at().has_passed();
        (kept, !still_due)
    };
    Ok(renewed.into_iter().map(settle).collect())
}

/// Sorted by name. Of two grants of one name the older one is lost, and does not know it yet.
fn newest_only<K: Ord>(mut due: Vec<Arc<Grant<K>>>) -> Vec<Arc<Grant<K>>> {
    due.sort_by(|a, b| a.name.cmp(&b.name).then(b.fence.cmp(&a.fence)));
    due.dedup_by(|older, newest| {
        let same = older.name == newest.name;
        if same {
            older.lose(Loss::TakenOver);
        }
        same
    });
    due
}
