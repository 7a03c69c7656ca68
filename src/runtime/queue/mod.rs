//! The waiters of this client in the queues of the database.
//!
//! # Overview
//!
//! A task that waits for a name has a row in the name's queue ([`store::queue`](crate::store::queue)), and a [`Place`] here. The name is passed
//! on to its row by whoever releases it; then the task *confirms* the grant, and holds the lock.
//!
//! How a task learns that its turn has come:
//!
//! - *This client released the name*: the answer to the release says whose turn it is.
//! - *The server tells it* (PostgreSQL): one connection [listens](listen) for all waiters of the client.
//! - *A look*: one statement for all waiters of the client ([`watch`]). Where the server tells the news, there is one look per second, which
//!   finds what was not told; also who has to pass on the name of a holder that has died. Elsewhere there are many looks soon after something has
//!   changed, and few after a while.
//!
//! # Leaving
//!
//! A place that is dropped leaves the queue in the background. If the name was passed on to it meanwhile, the same statement passes it on to the
//! next waiter. A client that has crashed leaves with its session; one that is frozen costs the others the window in which it had to confirm.

mod deadlock;
pub(crate) mod listen;
pub(crate) mod watch;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use uuid::Uuid;

use super::Core;
use super::session::Session;
use super::verbs::leave;
use crate::model::{Blocked, Moment, Name};
use crate::store::permit::Ticket;
use crate::store::queue::{Leaves, LookAsk, Next};

/// The places of a client.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    /// For the task that looks.
    watch: Notify,
    /// For the task that listens.
    listen: Notify,
    /// The client is shutting down.
    pub(crate) closing: Notify,
}

#[derive(Debug, Default)]
struct State {
    seats: HashMap<Uuid, Arc<Seat>>,
    /// How many places each name has.
    names: HashMap<Name, usize>,
    /// The session to listen for: that of the last place.
    session: Option<Arc<Session>>,
    /// The server tells the news of this session: a test has shown it.
    told: Option<Uuid>,
    /// Test whether the server tells the news of this session.
    test: Option<Uuid>,
    /// Look at once: a name has to be passed on.
    is_urgent: bool,
    /// Waits that are over, of owners that had told what they hold.
    forget: Vec<Uuid>,
    /// When something has changed last.
    changed: Option<Moment>,
    is_closed: bool,
}

/// What the tasks of the client and the looks share of a place.
#[derive(Debug)]
struct Seat {
    ticket: Ticket,
    session: Arc<Session>,
    /// The position, as soon as it is known.
    position: Mutex<Option<i64>>,
    turn: Mutex<Option<Turn>>,
    told: Notify,
    /// Its owner has told what it holds.
    may_deadlock: AtomicBool,
    /// The circle that it is in.
    cycle: Mutex<Vec<Blocked>>,
}

/// How the waiting of a place ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The name was passed on to it, and has to be confirmed.
    Granted,
    /// Its row is gone.
    Gone,
    /// It is the youngest waiter in a circle of waits.
    Deadlock,
}

/// A place in a queue, from before its row is made. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct Place {
    seat: Arc<Seat>,
    /// How many sendings of the ask to join may still reach the server.
    pub(crate) late: u32,
    /// The TTL of the grant that it asks for.
    ttl: Duration,
    core: Arc<Core>,
}

impl Place {
    /// `is_permit`: it waits for a permit.
    pub(crate) fn new(
        core: &Arc<Core>,
        name: &Name,
        is_permit: bool,
        session: Arc<Session>,
        ttl: Duration,
    ) -> Self {
        let grant_id = Uuid::new_v4();
        let ticket = Ticket {
            name: name.clone(),
            grant_id,
            is_permit,
        };
        let seat = Arc::new(Seat {
            ticket,
            session: Arc::clone(&session),
            position: Mutex::default(),
            turn: Mutex::default(),
            told: Notify::new(),
            may_deadlock: AtomicBool::new(false),
            cycle: Mutex::default(),
        });
        let state = &mut *core.queue.state();
        state.seats.insert(grant_id, Arc::clone(&seat));
        *state.names.entry(name.clone()).or_default() += 1;
        state.session = Some(session);
        Self {
            seat,
            late: 0,
            ttl,
            core: Arc::clone(core),
        }
    }

    pub(crate) fn ticket(&self) -> &Ticket {
        &self.seat.ticket
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.seat.session
    }

    /// Its owner tells what it holds: from now on deadlocks are looked for.
    pub(crate) fn may_deadlock(&self) {
        self.seat.may_deadlock.store(true, Ordering::Release);
        self.core.queue.watch.notify_one();
    }

    /// The circle of waits that it is in.
    pub(crate) fn cycle(&self) -> Vec<Blocked> {
        locked(&self.seat.cycle).clone()
    }

    pub(crate) fn look_ask(&self) -> Option<LookAsk> {
        self.seat.look_ask()
    }

    pub(crate) fn position(&self) -> Option<i64> {
        *locked(&self.seat.position)
    }

    /// Its row has this position. `is_stuck`: the name has to be passed on.
    pub(crate) fn queued(&self, position: i64, is_stuck: bool) {
        *locked(&self.seat.position) = Some(position);
        let queue = &self.core.queue;
        queue.state().is_urgent |= is_stuck;
        queue.changed();
        queue.listen.notify_one();
    }

    /// Resolves when its turn has come, or its row is gone.
    pub(crate) async fn turn(&self) -> Turn {
        loop {
            // A permit of `told` stays until it is used, so nothing is missed.
            if let Some(turn) = *locked(&self.seat.turn) {
                return turn;
            }
            self.seat.told.notified().await;
        }
    }

    /// Its row is gone, or belongs to a guard: there is nothing to leave.
    pub(crate) fn forget(mut self) {
        self.late = 0;
        *locked(&self.seat.position) = None;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.core.queue.left(&self.seat);
        if let Some(position) = self.position() {
            let late = (self.late, self.ttl);
            let ticket = self.ticket().clone();
            self.core.leave(ticket, Leaves::At(position), late);
        }
    }
}

impl Core {
    /// Leaves a queue in the background.
    fn leave(&self, ticket: Ticket, leaves: Leaves, late: (u32, Duration)) {
        let limit = self.settings.operation_timeout;
        self.send(leave::of(ticket, leaves, late, &self.waiters, limit));
    }

    /// Leaves all queues, for a shutdown. A task whose turn has come does so itself.
    pub(crate) fn leave_queues(&self) {
        let seats: Vec<_> = self.queue.state().seats.values().cloned().collect();
        for seat in seats {
            let left = {
                let turn = &mut *locked(&seat.turn);
                let position = turn.is_none().then(|| locked(&seat.position).take());
                let position = position.flatten();
                if position.is_some() {
                    *turn = Some(Turn::Gone);
                }
                position
            };
            if let Some(position) = left {
                seat.told.notify_one();
                let late = (0, Duration::ZERO);
                self.leave(seat.ticket.clone(), Leaves::At(position), late);
            }
        }
    }
}

impl Queue {
    /// The name was passed on to the waiter with this grant id, if it is one of this client's.
    pub(crate) fn passed(&self, grant_id: Uuid) {
        let seat = self.state().seats.get(&grant_id).map(Arc::clone);
        if let Some(seat) = seat {
            seat.tell(Turn::Granted);
            self.changed();
        }
    }

    /// [`Self::passed`] for each of them.
    pub(crate) fn all_passed(&self, next: &[Next]) {
        for next in next {
            self.passed(next.grant_id);
        }
    }

    /// Whether a task of this client waits for the name.
    pub(crate) fn waits_for(&self, name: &Name) -> bool {
        self.state().names.contains_key(name)
    }

    fn left(&self, seat: &Seat) {
        let (ticket, state) = (&seat.ticket, &mut *self.state());
        if seat.may_deadlock.load(Ordering::Acquire) {
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
        self.state().told = told;
        // From now on the pace of the looks is another one.
        self.watch.notify_one();
    }

    /// A look found news that were not heard. If the server tells the news, it is tested again.
    fn missed(&self) {
        let told = self.state().told;
        if let Some(session) = told {
            self.test(session);
            self.listen.notify_one();
        }
    }

    /// Has the server tested. Until the test is heard, looks come often.
    fn test(&self, session: Uuid) {
        let state = &mut *self.state();
        (state.told, state.test) = (None, Some(session));
        self.watch.notify_one();
    }

    /// Something has changed: looks come soon, where the server tells nothing.
    fn changed(&self) {
        self.state().changed = Some(Moment::now());
        self.watch.notify_one();
    }

    fn is_unchanged_since(&self, then: Moment) -> bool {
        self.state().changed.is_none_or(|changed| changed < then)
    }

    /// The asks of a look: all places whose turn has not come. A place of a session that has ended is gone.
    fn asks(&self) -> Vec<(LookAsk, Arc<Seat>)> {
        let seats: Vec<_> = self.state().seats.values().cloned().collect();
        let mut asks = Vec::with_capacity(seats.len());
        for seat in seats {
            let waits = locked(&seat.turn).is_none();
            let Some(ask) = seat.look_ask().filter(|_| waits) else {
                continue;
            };
            if !seat.session.grant.is_held() {
                seat.tell(Turn::Gone);
                continue;
            }
            asks.push((ask, seat));
        }
        asks.sort_by(|(a, _), (b, _)| (&a.name, a.position).cmp(&(&b.name, b.position)));
        asks
    }

    /// No waiter comes any more. The tasks that look and listen end.
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
        self.watch.notify_one();
        self.listen.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

impl Seat {
    /// `None`: its position is not known.
    fn look_ask(&self) -> Option<LookAsk> {
        let position = *locked(&self.position);
        let Ticket { name, grant_id, .. } = self.ticket.clone();
        position.map(|position| LookAsk {
            name,
            grant_id,
            position,
        })
    }

    /// Returns whether this is news.
    fn tell(&self, turn: Turn) -> bool {
        let is_news = {
            let told = &mut *locked(&self.turn);
            let is_news = told.is_none();
            told.get_or_insert(turn);
            is_news
        };
        self.told.notify_one();
        is_news
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
