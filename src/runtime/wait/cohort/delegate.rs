//! Delegates: a delegate waits in the database for the tasks of its cohort, turn by turn, as long as some wait.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;

use super::turn::Offer;
use super::{Cohort, Cohorts};
use crate::model::Error;
use crate::runtime::held::guard::Guard;
use crate::runtime::wait::queue::seat::Seat;
use crate::store::verbs::in_tx::FURTHEST_AHEAD;

/// How many fences a turn has for each task that waits.
const EACH: i64 = 64;

/// The most fences that a turn has. The row's fence may be as many microseconds ahead of the database's clock when
/// they are reserved, and two sendings of a confirm may both reserve them. A lock in a transaction then waits until
/// the clock has passed the fence.
const MOST: i64 = 12_288;
const _: () = assert!(3 * MOST < FURTHEST_AHEAD);

/// How many fences a lease that lingers has.
pub(crate) const LINGERING: i64 = 4_096;

/// A delegate that is out, for its cohort.
#[derive(Debug)]
pub(super) struct Delegate {
    /// The number of the task for which it was sent.
    number: u64,
    /// `None`: it is about to be spawned.
    task: Option<AbortHandle>,
    /// Its place in the queue.
    seat: Option<Arc<Seat>>,
}

impl Delegate {
    /// A delegate for a cohort that has none. [`Cohort::send`] sends it.
    pub(super) fn new(cohort: &Arc<Cohort>, number: u64) -> (Self, Delegation) {
        let delegation = Delegation {
            cohort: Arc::clone(cohort),
            number,
        };
        let delegate = Self {
            number,
            task: None,
            seat: None,
        };
        (delegate, delegation)
    }

    pub(super) fn has_seat(&self) -> bool {
        self.seat.is_some()
    }

    /// Nobody waits. The delegate leaves the queue, before any later release or flush, and ends. If its join is still
    /// in flight, the lane that has it leaves the queue.
    fn dismiss(self, all: &Cohorts) {
        if let Some(seat) = &self.seat
            && let Some(position) = seat.give_up()
        {
            let late = (0, Duration::ZERO);
            all.on_end.leave(seat.ticket.clone(), position, late);
        }
        if let Some(task) = self.task {
            task.abort();
        }
    }
}

impl Cohort {
    /// Dismisses a delegate for which no task waits. The state must not be locked.
    pub(super) fn dismiss(&self, idle: Option<Delegate>) {
        if let Some(delegate) = idle {
            delegate.dismiss(&self.all);
        }
    }

    /// Spawns a delegate. (Not while the state is locked: a runtime that has ended drops it at once.)
    pub(super) fn send<F: Future<Output = ()> + Send + 'static>(
        &self,
        delegation: Delegation,
        delegate: impl FnOnce(Delegation) -> F,
    ) {
        let number = delegation.number;
        let task = self.all.own.spawn(delegate(delegation)).abort_handle();
        match &mut self.state.lock().delegate {
            Some(delegate) if delegate.number == number => delegate.task = Some(task),
            // It was dismissed meanwhile, or has ended.
            _ => task.abort(),
        }
    }
}

/// What a delegate knows of its cohort. When it is dropped, the tasks of the cohort no longer wait for this delegate.
#[derive(Debug)]
pub(crate) struct Delegation {
    cohort: Arc<Cohort>,
    number: u64,
}

impl Delegation {
    /// Whether tasks wait. If none does, the delegate ends.
    pub(crate) fn is_awaited(&self) -> bool {
        let mut state = self.cohort.state.lock();
        let is_idle = state.waiting.is_empty();
        let own = state
            .delegate
            .take_if(|delegate| is_idle && delegate.number == self.number);
        own.is_none() && !is_idle
    }

    /// How many fences to reserve for the turn, which has come. If only one task waits, nothing will be handed on,
    /// unless the lease lingers.
    pub(crate) fn block(&self) -> i64 {
        let may_linger = self.cohort.key.linger.is_some();
        let least = if may_linger { LINGERING } else { 0 };
        match i64::try_from(self.cohort.state.lock().waiting.len()) {
            Ok(0 | 1) => least,
            Ok(waiting) => waiting.saturating_mul(EACH).clamp(least, MOST),
            Err(_) => MOST,
        }
    }

    /// The delegate has this place.
    pub(crate) fn sits(&self, seat: &Arc<Seat>) {
        self.set_seat(Some(seat));
    }

    fn set_seat(&self, seat: Option<&Arc<Seat>>) {
        let mut state = self.cohort.state.lock();
        let own = state.delegate.as_mut();
        if let Some(delegate) = own.filter(|delegate| delegate.number == self.number) {
            delegate.seat = seat.map(Arc::clone);
        }
    }

    /// Why the delegate does not get through to the database; `None`: it does.
    pub(crate) fn set_trouble(&self, trouble: Option<&Error>) {
        self.cohort.set_trouble(trouble);
    }

    /// The delegate has the lease, or an error that ends a wait: the first task gets it.
    pub(crate) fn delivered(&self, delivered: Result<Guard, Error>) {
        self.set_seat(None);
        if matches!(&delivered, Ok(guard) if !guard.is_held()) {
            // The delegate waits again.
            return drop(delivered);
        }
        let kept = match &delivered {
            Ok(guard) => self.cohort.keep(guard.grant().reserved),
            Err(_) => None,
        };
        let mut state = self.cohort.state.lock();
        state.trouble = None;
        let Some((_, first)) = state.waiting.pop_first() else {
            drop(state);
            // Nobody waits any more. Dropping a guard releases the lease.
            return drop(delivered);
        };
        let word = match delivered {
            Ok(guard) => {
                let fence = guard.grant().fence();
                let fences = guard.grant().reserved.fences(fence);
                guard.join(Arc::<Cohort>::clone(&self.cohort), &fences);
                let before = state.begin(&guard, fences, kept);
                let grant_id = guard.grant().id;
                let offer = Offer::of(guard);
                state.offer(&offer);
                drop(state);
                Cohort::end(before, fence);
                self.cohort.watch(grant_id);
                Ok(offer)
            }
            Err(error) => {
                drop(state);
                Err(error)
            }
        };
        Cohort::tell(first, word);
    }
}

impl Drop for Delegation {
    fn drop(&mut self) {
        let mut state = self.cohort.state.lock();
        let own = state
            .delegate
            .take_if(|delegate| delegate.number == self.number);
        // It has panicked, or its thread has ended.
        let waiting = own.map(|_| std::mem::take(&mut state.waiting));
        drop(state);
        drop(waiting);
    }
}
