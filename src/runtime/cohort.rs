//! Cohorts: tasks of this client that want the same lock, and hand its lease on in memory.
//!
//! # Overview
//!
//! The tasks of one client that ask for a lock under the same settings are a *cohort*. They have one place in the queue of the name, which
//! their *scout* takes: a task that waits in the database for all of them. When it is granted the lease, the *turn* of the cohort begins, and
//! the first task of the cohort gets a guard. When that guard is released, the next task gets a guard of the same grant, and no statement
//! is sent. (Dice, Marathe and Shavit call this "lock cohorting", in a paper of 2012.)
//!
//! # Turn
//!
//! A turn is short, because other clients wait too. After [`TURN`] the next release goes to the database, which passes the name on to the
//! first one in the queue. The scout of the next turn takes its place in the queue as soon as a task of the cohort waits. So cohorts
//! have their turns in the order in which their scouts joined, and the tasks of a cohort in the order in which they arrived.
//!
//! # Fences
//!
//! Each guard has a fence of its own. The scout reserves a block of fences when it confirms the grant: the row's fence becomes the last one
//! of the block. So every later grant is above all of them, also when the process crashes. A grant that nobody had to wait for has no block, and
//! is not handed on.
//!
//! # What is not handed on
//!
//! - A lease that a transaction has pinned: that transaction may still be open, and may commit after the next task has begun.
//! - A lease with less than half of its trusted time left, or one that is lost.
//! - Anything while the client shuts down.
//!
//! Owners, barging acquires, locks with a `max_hold`, permits and clients of a Galera cluster have no cohort.

use std::collections::{HashMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

use super::Core;
use super::grant::Grant;
use super::lease_guard::Guard;
use super::queue::seat::Seat;
use crate::model::{Error, Moment, Name};

/// How long a cohort hands a lease on, while others may wait.
const TURN: Duration = Duration::from_millis(50);

/// How many fences a turn has.
const BLOCK: i64 = 4_096;

/// The time in which the clock, from which fences come, counts as many.
const PACE: Duration = Duration::from_micros(4_096);

/// What the tasks of a cohort have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) name: Name,
    /// The TTL of the row.
    pub(crate) ttl: Duration,
    pub(crate) in_session: bool,
    pub(crate) holder: Option<Arc<str>>,
    pub(crate) queue_limit: u32,
    /// Timers belong to a runtime, and a scout has some.
    pub(crate) runtime: runtime::Id,
}

/// The cohorts of a client.
#[derive(Debug, Default)]
pub(crate) struct Cohorts(Mutex<HashMap<Key, Weak<Cohort>>>);

#[derive(Debug)]
pub(crate) struct Cohort {
    key: Key,
    home: Weak<Cohorts>,
    state: Mutex<State>,
    /// Notified when the first task has asked.
    asked: Notify,
}

/// What a waiting task is told at last.
type Word = Result<Guard, Error>;

#[derive(Debug, Default)]
struct State {
    /// First come, first served.
    waiting: VecDeque<oneshot::Sender<Word>>,
    /// A task asks the database, and so the others need not.
    is_asking: bool,
    scout: Option<AbortHandle>,
    /// The scout's place in the queue.
    seat: Option<Arc<Seat>>,
    turn: Option<Turn>,
    /// Why the scout does not get through to the database.
    trouble: Option<Error>,
    /// When the last block of fences was asked for.
    reserved: Option<Moment>,
}

/// The time in which a cohort has a grant.
#[derive(Debug)]
struct Turn {
    grant: Arc<Grant>,
    ends: Moment,
    /// The fences that are left.
    fences: RangeInclusive<i64>,
}

impl State {
    /// Nobody waits. A scout that is dropped leaves the queue.
    fn dismiss_scout(&mut self) {
        if let Some(scout) = self.scout.take() {
            scout.abort();
        }
    }
}

impl Turn {
    /// Whether the next task may have the lease, without a word to the database.
    fn may_go_on(&self, now: Moment) -> bool {
        let status = self.grant.status();
        now < self.ends
            && !self.grant.may_be_pinned.load(Ordering::Acquire)
            && status.end.is_none()
            && now + self.grant.trusted() / 2 <= status.deadline
    }
}

impl Cohorts {
    pub(crate) fn of(self: &Arc<Self>, key: Key) -> Arc<Cohort> {
        let mut cohorts = self.locked();
        if let Some(cohort) = cohorts.get(&key).and_then(Weak::upgrade) {
            return cohort;
        }
        let cohort = Arc::new(Cohort {
            key: key.clone(),
            home: Arc::downgrade(self),
            state: Mutex::default(),
            asked: Notify::new(),
        });
        cohorts.insert(key, Arc::downgrade(&cohort));
        cohort
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<Key, Weak<Cohort>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Cohort {
    fn drop(&mut self) {
        let Some(home) = self.home.upgrade() else {
            return;
        };
        let mut cohorts = home.locked();
        // Another one may have been made meanwhile.
        if cohorts
            .get(&self.key)
            .is_some_and(|known| known.strong_count() == 0)
        {
            cohorts.remove(&self.key);
        }
    }
}

/// What a task of a cohort does first.
#[derive(Debug)]
pub(crate) enum Arrived {
    /// Nobody of its cohort has the lease, asks for it or waits: it asks the database.
    Asks(Asking),
    Waits(Waiting),
    /// So many tasks wait already.
    Full(usize),
}

impl Cohort {
    /// A task arrives. `scout`: sends a scout, which calls [`Self::scouted`] for each turn as long as tasks wait.
    pub(crate) fn arrive(self: &Arc<Self>, scout: impl FnOnce() -> AbortHandle) -> Arrived {
        let mut state = self.state();
        let is_idle = state.turn.is_none() && state.scout.is_none() && state.waiting.is_empty();
        if is_idle && !state.is_asking {
            state.is_asking = true;
            let cohort = Arc::clone(self);
            return Arrived::Asks(Asking { cohort });
        }
        self.wait(&mut state, scout)
    }

    fn wait(self: &Arc<Self>, state: &mut State, scout: impl FnOnce() -> AbortHandle) -> Arrived {
        let waiting = state.waiting.len();
        if waiting >= usize::try_from(self.key.queue_limit).unwrap_or(usize::MAX) {
            return Arrived::Full(waiting);
        }
        let (sender, word) = oneshot::channel();
        state.waiting.push_back(sender);
        let is_out = |scout: &AbortHandle| !scout.is_finished();
        if !state.scout.as_ref().is_some_and(is_out) {
            state.scout = Some(scout());
        }
        Arrived::Waits(Waiting {
            cohort: Arc::clone(self),
            word: Some(word),
        })
    }

    /// For the scout: whether tasks wait, when nobody else asks for them. If none does, the scout ends.
    pub(crate) async fn is_awaited(&self) -> bool {
        loop {
            let asked = self.asked.notified();
            {
                let mut state = self.state();
                if state.waiting.is_empty() {
                    state.scout = None;
                    return false;
                }
                if !state.is_asking {
                    return true;
                }
            }
            asked.await;
        }
    }

    /// For the scout: how many fences to reserve for its turn, which has come. If only one task waits, nothing will be handed on. Fences must not run ahead of the clock: a block of so many comes
    /// at most once in so many microseconds.
    pub(crate) fn block(&self) -> i64 {
        let (now, mut state) = (Moment::now(), self.state());
        let is_early = state.reserved.is_some_and(|before| now < before + PACE);
        if is_early || state.waiting.len() < 2 {
            return 0;
        }
        state.reserved = Some(now);
        BLOCK
    }

    /// The scout has the lease, or an error that ends a wait: the first task gets it.
    pub(crate) fn scouted(self: &Arc<Self>, mut word: Word) {
        let mut state = self.state();
        (state.trouble, state.seat) = (None, None);
        if let Ok(guard) = &word {
            self.begin(&mut state, guard);
        }
        while let Some(next) = state.waiting.pop_front() {
            match next.send(word) {
                Ok(()) => return,
                Err(back) => word = back,
            }
        }
        drop(state);
        // Nobody waits any more. Dropping a guard releases the lease.
        drop(word);
    }

    /// The scout has this place.
    pub(crate) fn sits(&self, seat: &Arc<Seat>) {
        self.state().seat = Some(Arc::clone(seat));
    }

    /// Why the scout does not get through to the database; `None`: it does.
    pub(crate) fn set_trouble(&self, trouble: Option<&Error>) {
        self.state().trouble = trouble.cloned();
    }

    pub(crate) fn trouble(&self) -> Option<Error> {
        self.state().trouble.clone()
    }

    fn begin(self: &Arc<Self>, state: &mut State, guard: &Guard) {
        let grant = Arc::clone(guard.grant());
        let last = grant.fence();
        state.turn = Some(Turn {
            fences: last - grant.reserved + 1..=last,
            ends: Moment::now() + TURN,
            grant,
        });
        guard.join(self);
    }

    /// Gives the lease of a guard that was just released to the next task. False: the turn is over, and the lease goes back to the database.
    pub(super) fn hand_on(
        self: &Arc<Self>,
        grant: &Arc<Grant>,
        core: &Arc<Core>,
        now: Moment,
    ) -> bool {
        let mut state = self.state();
        let state = &mut *state;
        let Some(turn) = state.turn.as_mut().filter(|turn| turn.grant.id == grant.id) else {
            return false;
        };
        let goes_on = turn.may_go_on(now) && !core.is_closing();
        while let Some(next) = state.waiting.front() {
            if next.is_closed() {
                state.waiting.pop_front();
                continue;
            }
            let fence = goes_on.then(|| turn.fences.next()).flatten();
            let Some(guard) = fence.and_then(|fence| Guard::of(grant, core, (self, fence))) else {
                break;
            };
            let Some(next) = state.waiting.pop_front() else {
                break;
            };
            match next.send(Ok(guard)) {
                Ok(()) => return true,
                Err(back) => back.into_iter().for_each(Guard::withdraw),
            }
        }
        state.turn = None;
        if state.waiting.is_empty() {
            // Before the release: it must not pass the name on to a scout that nobody needs.
            if let Some(seat) = state.seat.take()
                && let Some(position) = seat.give_up()
            {
                core.leave(seat.ticket.clone(), position, (0, Duration::ZERO));
            }
            state.dismiss_scout();
        }
        false
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task that asks the database for its cohort. When it is dropped, others may ask.
#[derive(Debug)]
pub(crate) struct Asking {
    cohort: Arc<Cohort>,
}

impl Asking {
    /// It was granted the lease.
    pub(crate) fn granted(self, guard: &Guard) {
        self.cohort.begin(&mut self.cohort.state(), guard);
    }

    /// The lease is not free: it waits, before those that have arrived meanwhile.
    pub(crate) fn waits(self, scout: impl FnOnce() -> AbortHandle) -> Arrived {
        let mut state = self.cohort.state();
        let arrived = self.cohort.wait(&mut state, scout);
        if matches!(arrived, Arrived::Waits(_)) {
            state.waiting.rotate_right(1);
        }
        drop(state);
        arrived
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.cohort.state().is_asking = false;
        self.cohort.asked.notify_waiters();
    }
}

/// A task that waits in its cohort. Dropping it leaves the cohort.
#[derive(Debug)]
pub(crate) struct Waiting {
    cohort: Arc<Cohort>,
    word: Option<oneshot::Receiver<Word>>,
}

impl Waiting {
    /// Resolves when its turn has come.
    ///
    /// Cancel safe.
    pub(crate) async fn word(&mut self) -> Option<Word> {
        self.word.as_mut()?.await.ok()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let word = self.word.take();
        // If a guard has just been sent, dropping it hands it on.
        drop(word);
        let mut state = self.cohort.state();
        state.waiting.retain(|waiting| !waiting.is_closed());
        if state.waiting.is_empty() && state.turn.is_none() {
            state.dismiss_scout();
        }
    }
}
