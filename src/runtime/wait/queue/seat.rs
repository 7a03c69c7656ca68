//! A seat: what a waiting task, and the tasks that look and listen, share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::model::Blocked;
use crate::runtime::held::session::Session;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::queue::{LookParams, Ticket};

/// A waiter of this client.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) ticket: Ticket,
    pub(crate) session: Arc<Session>,
    /// The position, as soon as it is known.
    position: Mutex<Option<i64>>,
    turn: Mutex<Option<SeatEnd>>,
    told: Notify,
    /// Its owner has told what it holds.
    may_deadlock: AtomicBool,
}

/// How the waiting ended.
#[derive(Debug, Clone)]
pub(crate) enum SeatEnd {
    /// The name was passed on to it, and has to be confirmed.
    Granted,
    /// Its row is gone.
    Gone,
    /// It is the youngest waiter in this circle of waits.
    Deadlock(Vec<Blocked>),
    /// The look was refused, and so is every later one, until a person mends the schema or the rights.
    Refused(Fault),
}

impl Seat {
    pub(super) fn new(ticket: Ticket, session: Arc<Session>) -> Self {
        Self {
            ticket,
            session,
            position: Mutex::default(),
            turn: Mutex::default(),
            told: Notify::new(),
            may_deadlock: AtomicBool::new(false),
        }
    }

    pub(crate) fn position(&self) -> Option<i64> {
        *self.position.lock()
    }

    /// `None`: it has no row any more.
    pub(crate) fn set_position(&self, position: Option<i64>) {
        *self.position.lock() = position;
    }

    /// `None`: its position is not known.
    pub(crate) fn look_params(&self) -> Option<LookParams> {
        let Ticket { name, grant_id, .. } = self.ticket.clone();
        self.position().map(|position| LookParams {
            name,
            grant_id,
            position,
        })
    }

    /// `None`: it waits.
    pub(super) fn turn(&self) -> Option<SeatEnd> {
        self.turn.lock().clone()
    }

    /// Tells the task. Returns whether this is news.
    pub(super) fn tell(&self, turn: SeatEnd) -> bool {
        let is_news = {
            let told = &mut *self.turn.lock();
            let is_news = told.is_none();
            told.get_or_insert(turn);
            is_news
        };
        self.told.notify_one();
        is_news
    }

    /// Resolves when the waiting has ended.
    pub(crate) async fn told(&self) -> SeatEnd {
        loop {
            // A permit of `told` stays until it is used, so nothing is missed.
            if let Some(turn) = self.turn() {
                return turn;
            }
            self.told.notified().await;
        }
    }

    /// Ends the waiting, if it has a row and has not ended. Returns the position that has to be left. Wakes nobody.
    pub(crate) fn give_up(&self) -> Option<i64> {
        let turn = &mut *self.turn.lock();
        let position = turn.is_none().then(|| self.position.lock().take());
        let position = position.flatten();
        if position.is_some() {
            *turn = Some(SeatEnd::Gone);
        }
        position
    }

    /// Wakes the task that waits.
    pub(crate) fn wake(&self) {
        self.told.notify_one();
    }

    /// Whether its owner has told what it holds.
    pub(super) fn may_deadlock(&self) -> bool {
        self.may_deadlock.load(Ordering::Acquire)
    }

    pub(crate) fn set_may_deadlock(&self) {
        self.may_deadlock.store(true, Ordering::Release);
    }
}
