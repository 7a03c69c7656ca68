//! Lingering: a lease that nobody needs is kept for a while, as an offer to the task that arrives next.
//!
//! # What ends it
//!
//! - Nobody arrives in time.
//! - *Somebody waits for the name, or it is paused*. Ten times a second the client looks at all names that linger, and
//!   calls those back.
//! - *Another request of this client asks for the name*, a flush or a shutdown.
//! - It is pinned or lost, has no fences left, or less than half of its trusted time.

use std::sync::{Arc, Weak};

use parking_lot::MutexGuard;
use uuid::Uuid;

use super::may_linger::MayLinger;
use super::turn::{CohortTurn, Offer};
use super::{Cohort, CohortState};
use crate::model::Moment;
use crate::runtime::base::timer::sleep_until;
use crate::runtime::held::guard::Guard;
use crate::runtime::wait::queue::keepers::Keeper;
use crate::runtime::wait::queue::recall::look_after;
use crate::store::verbs::queue::FenceBlock;

/// A lease that has lingered. Dropping it releases the lease.
#[derive(Debug)]
pub(super) struct PickedLease {
    guard: Option<Guard>,
    /// The turn, if the lease is of no use any more.
    over: Option<CohortTurn>,
}

impl PickedLease {
    pub(super) fn good(self) -> Option<Guard> {
        self.guard.filter(|_| self.over.is_none())
    }
}

impl CohortTurn {
    pub(super) fn lingers(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.until.is_some())
    }
}

impl Cohort {
    /// A turn begins: its lease may linger, if there are fences for others and nobody waits for the name.
    pub(super) fn keep(self: &Arc<Self>, reserved: FenceBlock) -> Option<MayLinger> {
        let may_linger = reserved.count > 0 && !reserved.is_awaited;
        let linger = self.key.linger.filter(|_| may_linger)?;
        let (name, queue) = (&self.key.name, &self.all.queue);
        let this: Arc<dyn Keeper> = Arc::<Self>::clone(self);
        let (number, is_first) = queue.keepers.add(name.clone(), Arc::downgrade(&this));
        if is_first {
            let lanes = Arc::downgrade(&self.all.lanes);
            self.all.own.spawn(look_after(lanes, Arc::clone(queue)));
        }
        Some(MayLinger {
            linger,
            name: name.clone(),
            number,
            queue: Arc::clone(queue),
            until: None,
            is_recalled: false,
            timer: None,
        })
    }

    /// A guard is released, and nobody waits: the lease lingers, if it may.
    pub(super) fn linger(
        self: &Arc<Self>,
        turn: &mut CohortTurn,
        guard: &Guard,
        now: Moment,
    ) -> bool {
        let Some(kept) = turn.kept.as_mut().filter(|kept| !kept.is_recalled) else {
            return false;
        };
        let Some(fence) = turn.fences.next() else {
            return false;
        };
        turn.offer = Some(Offer::of(guard.successor(Arc::<Self>::clone(self), fence)));
        kept.until = Some(now + kept.linger);
        let due = now + kept.linger;
        kept.timer.get_or_insert_with(|| {
            let (cohort, grant_id) = (Arc::downgrade(self), guard.grant().id);
            let timer = self.all.own.spawn(time(cohort, grant_id, due));
            timer.abort_handle()
        });
        true
    }

    /// Takes the lease that lingers, for a task that asks only once.
    pub(crate) fn pick_up(&self) -> Option<Guard> {
        let picked = self.pick(&mut self.state.lock());
        picked?.good()
    }

    /// Takes the lease that lingers, for a task that arrives; or else locks the state.
    pub(super) fn pick_or_lock(&self) -> Result<Guard, MutexGuard<'_, CohortState>> {
        let mut state = self.state.lock();
        let Some(picked) = self.pick(&mut state) else {
            return Err(state);
        };
        drop(state);
        picked.good().ok_or_else(|| self.state.lock())
    }

    /// Takes the lease that lingers. The state must be unlocked before the outcome is used.
    fn pick(&self, state: &mut CohortState) -> Option<PickedLease> {
        let turn = state.turn.as_mut().filter(|turn| turn.lingers())?;
        let is_good = turn.is_good(Moment::now()) && !self.all.lanes.is_closing();
        let guard = turn.offer.take().and_then(|offer| offer.take());
        if let Some(kept) = &mut turn.kept {
            kept.until = None;
        }
        let over = state.turn.take_if(|_| !is_good);
        Some(PickedLease { guard, over })
    }

    /// If it lingers until now, it ends. Returns until when it lingers; `None`: not at all.
    fn is_due(&self, grant_id: Uuid) -> Option<Moment> {
        let mut state = self.state.lock();
        let turn = state.turn.as_mut().filter(|turn| turn.is_of(grant_id))?;
        let kept = turn.kept.as_mut()?;
        let Some(until) = kept.until else {
            kept.timer = None;
            return None;
        };
        if !until.has_passed() {
            return Some(until);
        }
        let over = state.turn.take();
        drop(state);
        // Dropping the guard releases the lease.
        drop(over?.offer?.take());
        None
    }
}

#[cfg(test)]
impl Cohort {
    pub(crate) fn lingers(&self) -> bool {
        self.state
            .lock()
            .turn
            .as_ref()
            .is_some_and(CohortTurn::lingers)
    }
}

impl Keeper for Cohort {
    fn recall(&self) -> Option<Guard> {
        let mut state = self.state.lock();
        let lingers = state.turn.as_mut().is_some_and(|turn| {
            if let Some(kept) = &mut turn.kept {
                kept.is_recalled = true;
            }
            turn.lingers()
        });
        let over = state.turn.take_if(|_| lingers);
        drop(state);
        over?.offer?.take()
    }
}

/// Ends the lingering in time.
async fn time(cohort: Weak<Cohort>, grant_id: Uuid, mut due: Moment) {
    loop {
        sleep_until(due).await;
        let Some(until) = cohort.upgrade().and_then(|cohort| cohort.is_due(grant_id)) else {
            return;
        };
        due = until;
    }
}
