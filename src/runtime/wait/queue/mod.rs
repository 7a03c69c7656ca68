//! The waiters of this client in the queues of the database.
//!
//! # Overview
//!
//! A task that waits for a name has a row in the name's queue
//! ([`store::verbs::queue`](crate::store::verbs::queue)), and a [place](super::queue_place) with a [`Seat`] here. The
//! name is passed on to its row by the release before; then the task *confirms* the grant, and holds the lock. A task
//! whose runtime is blocked could not use the lock. So a waiting task confirms for itself. The delegate of a
//! [cohort](super::cohort) confirms for its tasks; a lease that no task takes goes back to the database.
//!
//! How a task learns that its turn has come:
//!
//! - *This client released the name*: the answer to the release says whose turn it is.
//! - *The server tells it* (PostgreSQL): one connection [listens](listen) for all waiters of the client. On MySQL and
//!   MariaDB the one who passes the name on wakes that connection, and a look follows. On SQLite it sends a datagram.
//! - *A look*: one statement for all waiters of the client ([`watch`]). Where the server tells the news, a look comes
//!   each second, and one 100 ms after a new place: it learns when the grant expires, and the name of a dead holder is
//!   passed on in time. Elsewhere there are many looks soon after something has changed, and few after a while.
//!
//! # Leaving
//!
//! A place that is dropped leaves the queue in the background. If the name was passed on to it meanwhile, the same
//! statement passes it on to the next waiter. A client that has crashed leaves with its session; one that is frozen
//! costs the others the window in which it had to confirm.

mod deadlock;
pub(crate) mod keepers;
pub(crate) mod listen;
pub(crate) mod recall;
pub(crate) mod seat;
pub(crate) mod watch;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use uuid::Uuid;

use keepers::Keepers;
use seat::{Seat, SeatEnd};

use crate::model::{Moment, Name};
use crate::runtime::held::session::Session;
use crate::store::verbs::queue::{LookParams, Ticket};

/// When to look after some permits were granted (more may be), or after a place came (when does the grant that it
/// waits for expire?).
const SOON: Duration = Duration::from_millis(100);

/// The places of a client.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<QueueState>,
    /// For the task that looks.
    watch: Notify,
    /// For the task that listens.
    listen: Notify,
    /// The client is shutting down.
    pub(crate) closing: Notify,
    pub(crate) keepers: Keepers,
}

#[derive(Debug, Default)]
struct QueueState {
    seats: HashMap<Uuid, Arc<Seat>>,
    /// How many places each name has.
    names: HashMap<Name, usize>,
    /// The session to listen for: that of the last place.
    session: Option<Arc<Session>>,
    /// The server tells the news of this session: a test has shown it.
    told: Option<Uuid>,
    /// The server has woken this client, which listens: the last time.
    woken: Option<Moment>,
    /// When a look found a grant for which no wake had come. Until a wake brings a grant, other clients perhaps cannot
    /// wake this one.
    missed: Option<Moment>,
    /// The session of a listener that sleeps.
    sleeper: Option<Uuid>,
    /// Test whether the server tells the news of this session.
    test: Option<Uuid>,
    /// Look at once: there are news.
    is_woken: bool,
    /// Look at once: a name has to be passed on.
    is_urgent: bool,
    /// Look then: only some of the waiters that fit are granted permits at once; and a new place waits for a grant
    /// whose expiry no look has seen.
    soon: Option<Moment>,
    /// Waits that are over, of owners that had told what they hold.
    forget: Vec<Uuid>,
    /// When something has changed last.
    changed: Option<Moment>,
    is_closed: bool,
}

impl QueueState {
    /// Whether looks need not come often.
    fn is_pushed(&self) -> bool {
        self.told.is_some() || self.woken.is_some() && self.missed.is_none()
    }

    /// Until then a late wake may still come for a grant that a look has found.
    fn missed_at(&self) -> Option<Moment> {
        let missed = self.missed.filter(|missed| self.woken < Some(*missed));
        missed.filter(|_| self.woken.is_some()).map(|at| at + SOON)
    }
}

impl Queue {
    /// A seat for a new waiter.
    pub(crate) fn sit(&self, ticket: Ticket, session: Arc<Session>) -> Arc<Seat> {
        let seat = Arc::new(Seat::new(ticket, Arc::clone(&session)));
        let (ticket, state) = (&seat.ticket, &mut *self.state.lock());
        state.seats.insert(ticket.grant_id, Arc::clone(&seat));
        *state.names.entry(ticket.name.clone()).or_default() += 1;
        state.session = Some(session);
        seat
    }

    /// The row of a waiter was made. `is_orphaned`: its name has to be passed on.
    pub(crate) fn queued(&self, is_orphaned: bool) {
        {
            let state = &mut *self.state.lock();
            state.is_urgent |= is_orphaned;
            // Elsewhere looks come often. Here the server tells whose turn it is, but nobody tells that a holder has
            // died.
            if state.is_pushed() {
                state.soon.get_or_insert_with(|| Moment::now() + SOON);
            }
        }
        self.changed();
        self.listen.notify_one();
    }

    /// The owner of a waiter has told what it holds.
    pub(crate) fn may_deadlock(&self) {
        self.watch.notify_one();
    }

    pub(crate) fn seats(&self) -> Vec<Arc<Seat>> {
        self.state.lock().seats.values().cloned().collect()
    }

    /// The name was passed on to the waiter with this grant id, if it is one of this client's.
    pub(crate) fn passed(&self, grant_id: Uuid) {
        let seat = {
            let state = &mut *self.state.lock();
            let seat = state.seats.get(&grant_id).map(Arc::clone);
            let more = |seat: &Arc<Seat>| {
                let ticket = &seat.ticket;
                ticket.kind.has_permits() && state.names.get(&ticket.name) > Some(&1)
            };
            if seat.as_ref().is_some_and(more) {
                state.soon.get_or_insert_with(|| Moment::now() + SOON);
            }
            seat
        };
        if let Some(seat) = seat {
            seat.tell(SeatEnd::Granted);
            self.changed();
        }
    }

    /// [`Self::passed`] for each of them.
    pub(crate) fn all_passed(&self, next: &[Uuid]) {
        for grant_id in next {
            self.passed(*grant_id);
        }
    }

    /// Whether a task of this client waits for the name.
    pub(crate) fn waits_for(&self, name: &Name) -> bool {
        self.state.lock().names.contains_key(name)
    }

    pub(crate) fn left(&self, seat: &Seat) {
        let (ticket, state) = (&seat.ticket, &mut *self.state.lock());
        if seat.may_deadlock() {
            state.forget.push(ticket.grant_id);
            self.watch.notify_one();
        }
        state.seats.remove(&ticket.grant_id);
        if let Some(count) = state.names.get_mut(&ticket.name) {
            *count -= 1;
            if *count == 0 {
                state.names.remove(&ticket.name);
            }
        }
    }

    /// The server tells the news of this session (a test was heard), or no longer does.
    fn set_told(&self, told: Option<Uuid>) {
        let state = &mut *self.state.lock();
        (state.told, state.woken) = (told, None);
        // From now on the pace of the looks is another one.
        self.watch.notify_one();
    }

    /// The server has woken this client: a look finds out why, and another one what was just too late for it.
    fn woken(&self) {
        let state = &mut *self.state.lock();
        let now = Moment::now();
        state.woken = Some(now);
        // It was just late.
        state.missed.take_if(|at| !(*at + SOON).has_passed());
        state.is_woken = true;
        state.soon.get_or_insert(now + SOON);
        self.watch.notify_one();
    }

    /// Another process has told this client that a name was passed on to it.
    fn heard(&self) {
        let state = &mut *self.state.lock();
        if state.told.is_none() {
            let now = Moment::now();
            (state.woken, state.missed) = (Some(now), None);
            // What was told at the same time may be lost.
            state.soon.get_or_insert(now + SOON);
        }
    }

    /// A look that began then found a grant after a wake. (A look after another look finds others.)
    fn brought(&self, began: Moment) {
        let state = &mut *self.state.lock();
        if state.woken.is_some_and(|at| began < at + SOON) {
            state.missed = None;
        }
    }

    /// A look has left waiters out whose turn may have come.
    fn look_again(&self) {
        self.state.lock().is_woken = true;
    }

    /// A look that began then found news that were not heard. If the server tells the news, it is tested again.
    fn missed(&self, began: Moment) {
        let told = {
            let state = &mut *self.state.lock();
            if state.woken.is_some_and(|at| at < began) {
                state.missed.get_or_insert_with(Moment::now);
            }
            state.told
        };
        if let Some(session) = told {
            self.test(session);
        }
        self.listen.notify_one();
    }

    /// Has the server tested. Until the test is heard, looks come often.
    fn test(&self, session: Uuid) {
        let state = &mut *self.state.lock();
        (state.told, state.woken, state.test) = (None, None, Some(session));
        self.watch.notify_one();
    }

    /// The listener of this session sleeps.
    fn set_sleeper(&self, session: Option<Uuid>) {
        self.state.lock().sleeper = session;
    }

    /// Something has changed: looks come soon, where the server tells nothing.
    fn changed(&self) {
        self.state.lock().changed = Some(Moment::now());
        self.watch.notify_one();
    }

    fn is_unchanged_since(&self, then: Moment) -> bool {
        self.state
            .lock()
            .changed
            .is_none_or(|changed| changed < then)
    }

    /// The asks of a look: all places whose turn has not come. A place of a session that has ended is gone.
    fn asks(&self) -> Vec<(LookParams, Arc<Seat>)> {
        let seats = self.seats();
        let mut all = Vec::with_capacity(seats.len());
        for seat in seats {
            let waits = seat.turn().is_none();
            let Some(params) = seat.look_params().filter(|_| waits) else {
                continue;
            };
            if !seat.session.grant.is_held() {
                seat.tell(SeatEnd::Gone);
                continue;
            }
            all.push((params, seat));
        }
        all.sort_by(|(a, _), (b, _)| (&a.name, a.position).cmp(&(&b.name, b.position)));
        all
    }

    /// No waiter comes any more. The tasks that look and listen end.
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.watch.notify_one();
        self.listen.notify_one();
    }
}
