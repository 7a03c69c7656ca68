//! Cohorts: tasks of this client that want the same lock, and hand its lease on in memory.
//!
//! # Overview
//!
//! The tasks of one client that ask for a lock under the same settings are a *cohort*. They have one place in the
//! queue of the name, which their [`delegate`] takes: a task that waits in the database for all of them. When it is
//! granted the lease, the [`turn`] of the cohort begins, and the first task of the cohort is offered a guard. When
//! that guard is released, the next task is offered a guard of the same grant, and no statement is sent. (Dice,
//! Marathe and Shavit call this "lock cohorting", in a paper of 2012.)
//!
//! # State model
//!
//! A cohort is *idle* at first. Then its first task *asks* the database. If the lease is free, a *turn* begins. If it
//! is held, that task waits with the tasks that have arrived since, and a *delegate* in the queue gets the next turn
//! for them. A turn ends with a release to the database. If no task waits, the lease may *linger* before that, until a
//! task arrives or its time is over.
//!
//! # Turn
//!
//! A turn is short, because other clients wait too. After [`TURN`](turn::TURN) the next release goes to the database,
//! which passes the name on to the first one in the queue. The delegate of the next turn takes its place in the queue
//! as soon as a task of the cohort waits. So cohorts have their turns in the order in which their delegates joined,
//! and the tasks of a cohort in the order in which they arrived.
//!
//! # Fences
//!
//! Each guard has a fence of its own. The delegate reserves a block of fences when it confirms the grant: the row's
//! fence becomes the last one of the block. So every later grant is above all of them, also when the process crashes.
//! The database reserves a block only if the fence is ahead of its clock by at most the size of the block. A grant
//! without a block is not handed on.
//!
//! # Offers
//!
//! A task takes its guard when it is polled. A task that is not, because its runtime is blocked or because nobody
//! awaits it, must not keep the lock. So an offer that nobody has taken [`WINDOW`] after the end of the turn is taken
//! back, and the lease released. A task that comes later waits again.
//!
//! Delegates, and what takes offers back, run on a thread of rowlock's own.
//!
//! # Kept
//!
//! When no task and no other client waits, a cohort may keep its lease for a while ([`linger`]). It is an offer to the
//! task that arrives next.
//!
//! # What is not handed on
//!
//! - A lease that a transaction has pinned: that transaction may still be open, and may commit after the next task has
//!   begun.
//! - A lease with less than half of its trusted time left, or one that is lost.
//! - Anything while the client shuts down.
//!
//! Owners, locks with a `max_hold`, permits and clients of a Galera cluster have no cohort.

pub(crate) mod delegate;
mod linger;
mod may_linger;
mod turn;
mod waiting;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::model::{Error, Moment, Name};
use crate::runtime::batch::handle::Lanes;
use crate::runtime::held::guard::Guard;
use crate::runtime::held::on_end::OnEnd;
use crate::runtime::wait::queue::Queue;
use crate::store::verbs::queue::WINDOW;
use delegate::{Delegate, Delegation};
use turn::{CohortTurn, Offer};
pub(crate) use waiting::{Asking, CohortWaiter, WaitEnd};

/// How long the tasks of a cohort wait each by itself, after a transaction had pinned its lease. Then nothing is
/// handed on, and a place in the queue for each of them is faster.
const APART: Duration = Duration::from_secs(1);

/// How many of the tasks that wait already leave the cohort then, the first ones: their joins overlap with the work.
const APART_AT_ONCE: usize = 16;

/// What the tasks of a cohort have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct CohortKey {
    pub(crate) name: Name,
    /// The TTL of the row.
    pub(crate) ttl: Duration,
    pub(crate) in_session: bool,
    pub(crate) holder: Option<Arc<str>>,
    pub(crate) queue_limit: u32,
    /// How long its lease lingers after a release.
    pub(crate) linger: Option<Duration>,
}

/// The cohorts of a client.
#[derive(Debug)]
pub(crate) struct Cohorts {
    all: Mutex<HashMap<CohortKey, Weak<Cohort>>>,
    /// The runtime of the lanes' thread.
    pub(crate) own: Handle,
    lanes: Arc<Lanes>,
    queue: Arc<Queue>,
    on_end: Arc<dyn OnEnd>,
}

#[derive(Debug)]
pub(crate) struct Cohort {
    key: CohortKey,
    all: Arc<Cohorts>,
    state: Mutex<CohortState>,
}

/// What a waiting task is told at last.
type Word = Result<Offer, Error>;

#[derive(Debug, Default)]
struct CohortState {
    /// How many tasks have arrived.
    arrived: u64,
    /// By number: first come, first served.
    waiting: BTreeMap<u64, oneshot::Sender<Word>>,
    /// A task asks the database, and so the others need not.
    is_asking: bool,
    delegate: Option<Delegate>,
    turn: Option<CohortTurn>,
    /// Why the database cannot be asked.
    trouble: Option<Error>,
    /// Since when nothing was handed on because of a pin.
    pinned: Option<Moment>,
}

impl CohortState {
    fn number(&mut self) -> u64 {
        self.arrived += 1;
        self.arrived
    }

    /// Nobody has the lease, asks for it or waits.
    fn is_idle(&self) -> bool {
        let is_held = |turn: &CohortTurn| turn.is_held();
        !self.is_asking && self.waiting.is_empty() && !self.turn.as_ref().is_some_and(is_held)
    }

    /// If nobody waits: the delegate, which is to be dismissed.
    fn idle_delegate(&mut self) -> Option<Delegate> {
        if !self.waiting.is_empty() {
            return None;
        }
        self.trouble = None;
        self.delegate.take()
    }
}

impl Cohorts {
    /// `own`: the runtime of a thread of rowlock's own.
    pub(crate) fn new(
        own: Handle,
        lanes: &Arc<Lanes>,
        queue: &Arc<Queue>,
        on_end: &Arc<dyn OnEnd>,
    ) -> Self {
        Self {
            all: Mutex::default(),
            own,
            lanes: Arc::clone(lanes),
            queue: Arc::clone(queue),
            on_end: Arc::clone(on_end),
        }
    }

    /// The cohort of these tasks.
    pub(crate) fn of(self: &Arc<Self>, key: CohortKey) -> Arc<Cohort> {
        let mut cohorts = self.all.lock();
        if let Some(cohort) = cohorts.get(&key).and_then(Weak::upgrade) {
            return cohort;
        }
        let cohort = Arc::new(Cohort {
            key: key.clone(),
            all: Arc::clone(self),
            state: Mutex::default(),
        });
        cohorts.insert(key, Arc::downgrade(&cohort));
        cohort
    }
}

impl Drop for Cohort {
    fn drop(&mut self) {
        let mut cohorts = self.all.all.lock();
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
pub(crate) enum Arrival {
    /// The lease of its cohort lingers: it has it.
    Held(Guard),
    /// Nobody of its cohort has the lease, asks for it or waits: it asks the database.
    Asks(Asking),
    Waits(CohortWaiter),
    /// It waits by itself.
    IsAlone,
    /// So many tasks wait already.
    Full(usize),
}

impl Cohort {
    /// A task arrives. `delegate`: the work of a delegate.
    pub(crate) fn arrive<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        delegate: impl FnOnce(Delegation) -> F,
    ) -> Arrival {
        let mut state = match self.pick_or_lock() {
            Ok(guard) => return Arrival::Held(guard),
            Err(state) => state,
        };
        let waiting = state.waiting.len();
        if state.is_idle() {
            state.is_asking = true;
            let number = state.number();
            return Arrival::Asks(Asking::new(self, number));
        }
        if waiting >= usize::try_from(self.key.queue_limit).unwrap_or(usize::MAX) {
            return Arrival::Full(waiting);
        }
        let was_pinned = state.pinned.is_some_and(|pinned| pinned.elapsed() < APART);
        if was_pinned && waiting == 0 {
            return Arrival::IsAlone;
        }
        let number = state.number();
        Arrival::Waits(self.wait(state, number, delegate))
    }

    fn wait<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, CohortState>,
        number: u64,
        delegate: impl FnOnce(Delegation) -> F,
    ) -> CohortWaiter {
        let (sender, word) = oneshot::channel();
        state.waiting.insert(number, sender);
        let delegation = state.delegate.is_none().then(|| {
            let (out, delegation) = Delegate::new(self, number);
            state.delegate = Some(out);
            delegation
        });
        drop(state);
        let waiting = CohortWaiter::new(self, number, word);
        if let Some(delegation) = delegation {
            self.send(delegation, delegate);
        }
        waiting
    }

    /// Why the database could not be asked, last time; `None`: it could.
    pub(crate) fn set_trouble(&self, trouble: Option<&Error>) {
        let mut state = self.state.lock();
        // A delegate with a place in the queue has got through since.
        let is_in_queue = state.delegate.as_ref().is_some_and(Delegate::has_seat);
        // What became of an acquire is the affair of the task that has sent it.
        let is_for_all = |trouble: &&Error| !matches!(trouble, Error::OutcomeUnknown { .. });
        state.trouble = trouble.filter(is_for_all).filter(|_| !is_in_queue).cloned();
    }

    pub(crate) fn trouble(&self) -> Option<Error> {
        self.state.lock().trouble.clone()
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use super::{APART, Arrival, CohortKey};
    use crate::model::{Error, Moment, Name, Subject};
    use crate::runtime::upkeep::known_rows::tests::core;

    fn key() -> CohortKey {
        CohortKey {
            name: Name::new("a").unwrap(),
            ttl: Duration::from_secs(30),
            in_session: false,
            holder: None,
            queue_limit: 1,
            linger: None,
        }
    }

    /// A task that has sent nothing must not be told that its acquire may have happened.
    #[tokio::test]
    async fn an_acquire_whose_outcome_is_unknown_is_no_trouble_for_others() {
        let dir = tempfile::tempdir().unwrap();
        let cohort = core(&dir).await.cohorts.of(key());
        let (target, detail) = (String::new(), String::new());
        let unreachable = Error::Unreachable { target, detail };
        let unknown = Error::OutcomeUnknown {
            doing: "acquire",
            on: Subject::Lock(key().name),
            target: String::new(),
            detail: String::new(),
        };
        for (error, is_told) in [(unreachable, true), (unknown, false)] {
            cohort.set_trouble(Some(&error));
            assert_eq!(cohort.trouble().is_some(), is_told, "{error}");
        }
    }

    #[tokio::test]
    async fn a_task_waits_by_itself_for_a_time_after_a_pin() {
        let dir = tempfile::tempdir().unwrap();
        let core = core(&dir).await;
        let cohort = core.cohorts.of(key());
        let delegate = |_| pending::<()>();
        let Arrival::Asks(_asking) = cohort.arrive(delegate) else {
            panic!("the first task asks");
        };
        let now = Moment::now();
        // (However busy the machine is.)
        cohort.state.lock().pinned = Some(now + Duration::from_mins(1));
        let second = cohort.arrive(delegate);
        assert!(matches!(second, Arrival::IsAlone), "{second:?}");
        cohort.state.lock().pinned = Some(now - APART);
        let third = cohort.arrive(delegate);
        assert!(matches!(third, Arrival::Waits(_)), "{third:?}");
    }

    #[tokio::test]
    async fn the_task_that_asks_is_not_turned_away() {
        let dir = tempfile::tempdir().unwrap();
        let core = core(&dir).await;
        let cohort = core.cohorts.of(key());
        let delegate = |delegation| async move {
            let _delegation = delegation;
            pending::<()>().await;
        };
        let Arrival::Asks(asking) = cohort.arrive(delegate) else {
            panic!("nobody asks yet");
        };
        // It arrives while the first one asks, and takes the only place.
        let second = cohort.arrive(delegate);
        assert!(matches!(second, Arrival::Waits(_)), "{second:?}");
        let third = cohort.arrive(delegate);
        assert!(matches!(third, Arrival::Full(1)), "{third:?}");
        // The lease is not free. The first one has asked before, and so it waits before the second.
        let _first = asking.waits(delegate).unwrap_err();
        let state = cohort.state.lock();
        assert!(state.waiting.keys().eq(&[1, 2]), "{:?}", state.waiting);
    }
}
