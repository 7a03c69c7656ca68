//! Turns: the time in which a cohort has a grant, and hands it on.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::may_linger::MayLinger;
use super::{APART_AT_ONCE, Cohort, CohortState, WINDOW, Word};
use crate::model::{Loss, Moment};
use crate::runtime::base::timer::sleep_until;
use crate::runtime::held::grant::Grant;
use crate::runtime::held::guard::{Guard, HandOn};

/// How long a cohort hands a lease on, while others may wait.
pub(super) const TURN: Duration = Duration::from_millis(50);

/// The time in which a cohort has a grant.
#[derive(Debug)]
pub(super) struct CohortTurn {
    grant: Arc<Grant>,
    ends: Moment,
    /// The fences that are left.
    pub(super) fences: RangeInclusive<i64>,
    /// The last one.
    pub(super) offer: Option<Offer>,
    /// Where its lease may linger.
    pub(super) kept: Option<MayLinger>,
}

/// A guard, for the task that takes it first: the one that has waited for it, or the one that takes it back.
#[derive(Debug, Clone)]
pub(super) struct Offer(Arc<Mutex<Option<Guard>>>);

impl Offer {
    pub(super) fn of(guard: Guard) -> Self {
        Self(Arc::new(Mutex::new(Some(guard))))
    }

    pub(super) fn take(&self) -> Option<Guard> {
        self.0.lock().take()
    }
}

impl CohortTurn {
    pub(super) fn is_held(&self) -> bool {
        self.grant.is_held()
    }

    pub(super) fn is_of(&self, grant_id: Uuid) -> bool {
        self.grant.id == grant_id
    }

    /// Whether another task may have the lease, without a word to the database.
    pub(super) fn is_good(&self, now: Moment) -> bool {
        // A pin that comes now sees that its guard is released.
        fence(Ordering::SeqCst);
        let status = self.grant.status();
        !self.grant.may_be_pinned.load(Ordering::Relaxed)
            && status.end.is_none()
            && now + self.grant.trusted() / 2 <= status.deadline
    }
}

impl CohortState {
    /// A turn begins, with the grant of this guard. Returns the turn before, which has to be [ended](Cohort::end)
    /// after the state is unlocked.
    pub(super) fn begin(
        &mut self,
        guard: &Guard,
        fences: RangeInclusive<i64>,
        kept: Option<MayLinger>,
    ) -> Option<CohortTurn> {
        self.turn.replace(CohortTurn {
            fences,
            ends: Moment::now() + TURN,
            offer: None,
            kept,
            grant: Arc::clone(guard.grant()),
        })
    }

    pub(super) fn offer(&mut self, offer: &Offer) {
        if let Some(turn) = &mut self.turn {
            turn.offer = Some(offer.clone());
        }
    }
}

impl HandOn for Cohort {
    /// A guard is released: offers a guard of the same grant to the next task. False: the turn is over, and the lease
    /// goes back to the database.
    ///
    /// The new guard takes the place of the old one, so that the grant has one guard all the time.
    fn hand_on(self: Arc<Self>, guard: &Guard) -> bool {
        let grant = guard.grant();
        let mut state = self.state.lock();
        let now = Moment::now();
        // A delegate for which no task waits is dismissed now, since its own task may be polled late.
        let idle = state.idle_delegate();
        let CohortState { turn, waiting, .. } = &mut *state;
        let Some(turn) = turn.as_mut().filter(|turn| turn.is_of(grant.id)) else {
            drop(state);
            self.dismiss(idle);
            return false;
        };
        let is_good = turn.is_good(now) && !self.all.lanes.is_closing();
        if is_good && waiting.is_empty() && self.linger(turn, guard, now) {
            drop(state);
            self.dismiss(idle);
            return true;
        }
        let goes_on = is_good && !waiting.is_empty() && now < turn.ends;
        if let Some(fence) = goes_on.then(|| turn.fences.next()).flatten()
            && let Some((_, next)) = waiting.pop_first()
        {
            let offer = Offer::of(guard.successor(Arc::<Self>::clone(&self), fence));
            // The guard of the offer before is the one that is released now.
            turn.offer = Some(offer.clone());
            drop(state);
            Self::tell(next, Ok(offer));
            return true;
        }
        let mut apart = Vec::new();
        if grant.may_be_pinned.load(Ordering::Relaxed) {
            state.pinned = Some(now);
            let firsts = (0..APART_AT_ONCE).map_while(|_| state.waiting.pop_first());
            apart.extend(firsts);
        }
        let over = state.turn.take();
        // It leaves before the release: that must not pass the name on to a delegate that nobody needs.
        let idle = idle.or_else(|| state.idle_delegate());
        drop(state);
        drop(over);
        self.dismiss(idle);
        // Each of them learns that it has to wait by itself.
        drop(apart);
        false
    }
}

impl Cohort {
    /// Tells a task, which may just be leaving. Then dropping the guard hands it on to the next one.
    pub(super) fn tell(task: oneshot::Sender<Word>, word: Word) {
        if let Err(Ok(offer)) = task.send(word) {
            drop(offer.take());
        }
    }

    /// Watches the turn that has just begun: some time after its end, the guard that nobody has taken is taken back.
    pub(super) fn watch(self: &Arc<Self>, grant_id: Uuid) {
        let cohort = Arc::downgrade(self);
        let due = Moment::now() + TURN + WINDOW;
        self.all.own.spawn(async move {
            sleep_until(due).await;
            if let Some(cohort) = cohort.upgrade() {
                cohort.take_back(grant_id);
            }
        });
    }

    fn take_back(&self, grant_id: Uuid) {
        let (offer, idle) = {
            let mut state = self.state.lock();
            let turn = state.turn.as_ref();
            let turn = turn.filter(|turn| turn.is_of(grant_id) && !turn.lingers());
            let offer = turn.and_then(|turn| turn.offer.clone());
            // The task that has the lease takes its time, and nobody waits.
            (offer, state.idle_delegate())
        };
        self.dismiss(idle);
        if let Some(guard) = offer.and_then(|offer| offer.take()) {
            tracing::debug!(name = %self.key.name, "the task whose turn it is has not been polled");
            drop(guard);
        }
    }

    /// Another grant was confirmed, under this fence: that of the turn before is lost, if it was an earlier one.
    pub(super) fn end(before: Option<CohortTurn>, fence: i64) {
        if let Some(turn) = before {
            if turn.grant.fence() < fence {
                turn.grant.lose(Loss::TakenOver);
            }
            drop(turn.offer.and_then(|offer| offer.take()));
        }
    }
}
