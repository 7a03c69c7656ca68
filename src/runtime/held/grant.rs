//! A grant as this process knows it: until when this process may trust it, and how it ended.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use uuid::Uuid;

pub(crate) use super::status::{GrantEnd, GrantSubject, Status};
use crate::model::{ClockError, Loss, Moment, Name};
use crate::runtime::base::meter;
use crate::runtime::base::spans::HoldSpans;
use crate::runtime::base::timer::sleep_until;
use crate::store::verbs::queue::{FenceBlock, Ticket};

/// One grant of a name, one attempt of a record, or one session. The guards, the renewals and a lane share it.
#[derive(Debug)]
pub(crate) struct Grant<K = Name> {
    pub(crate) name: K,
    /// The name for callers. (A permit's row has a name of its own.)
    pub(crate) shown: K,
    /// The id in the row: `grant_id` of a lock, `attempt_id` of a record, `id` of a session. Fresh for every grant.
    pub(crate) id: Uuid,
    /// The fence of the grant, or the number of the attempt.
    fence: AtomicI64,
    /// The TTL of what is renewed: the lease, or the session that the grant belongs to.
    pub(crate) ttl: Duration,
    /// How many sendings of its acquire may still reach the server.
    pub(crate) late: u32,
    /// The waiter that a late join may still make, if any.
    pub(crate) ticket: Option<Ticket>,
    /// The name was passed on to it: there may be more waiters.
    pub(crate) was_queued: bool,
    /// Where its waiter stood in the queue.
    pub(crate) position: Option<i64>,
    /// What it has for the tasks of a cohort.
    pub(crate) reserved: FenceBlock,
    clock_error: ClockError,
    /// The grant is never renewed beyond this moment.
    cap: Option<Moment>,
    /// The outcome is in a caller's commit, so a renewal that finds the attempt ended means done, not lost.
    closing: AtomicBool,
    /// How many transactions have pinned it.
    pins: AtomicU64,
    /// A transaction has pinned it, or has tried to: that may still be open.
    pub(crate) may_be_pinned: AtomicBool,
    status: Mutex<Status>,
    /// Notified when the status has changed. (A watch channel would take four times as much memory as all the rest.)
    changed: Notify,
    /// The session that it belongs to, if it belongs to one: it ends with the session.
    pub(super) session: Option<Arc<Grant<Uuid>>>,
    /// Those of its guards; of a session, those of its grants.
    pub(super) spans: HoldSpans,
}

impl<K: GrantSubject> Grant<K> {
    /// A confirmed grant, which may be trusted until `deadline`.
    pub(crate) fn new(
        name: K,
        id: Uuid,
        fence: i64,
        ttl: Duration,
        clock_error: ClockError,
        cap: Option<Moment>,
        deadline: Moment,
    ) -> Self
    where
        K: Clone,
    {
        let status = Status {
            deadline,
            at_risk: false,
            end: None,
            guards: 0,
        };
        Self {
            shown: name.clone(),
            name,
            id,
            fence: AtomicI64::new(fence),
            ttl,
            late: 0,
            ticket: None,
            was_queued: false,
            position: None,
            reserved: FenceBlock::default(),
            clock_error,
            cap,
            closing: AtomicBool::new(false),
            pins: AtomicU64::new(0),
            may_be_pinned: AtomicBool::new(false),
            status: Mutex::new(status),
            changed: Notify::new(),
            session: None,
            spans: HoldSpans::default(),
        }
    }

    /// Binds the grant to a session.
    pub(crate) fn in_session(self, session: &Arc<Grant<Uuid>>) -> Self {
        Self {
            session: Some(Arc::clone(session)),
            ..self
        }
    }

    pub(crate) fn fence(&self) -> i64 {
        self.fence.load(Ordering::Acquire)
    }

    /// The row has at least this fence now: it was raised, a reader has become a writer, or fences were reserved.
    pub(crate) fn set_fence(&self, fence: i64) {
        self.fence.fetch_max(fence, Ordering::AcqRel);
    }

    pub(crate) fn session_id(&self) -> Option<Uuid> {
        self.session.as_ref().map(|session| session.id)
    }

    pub(crate) fn status(&self) -> Status {
        let own = *self.status.lock();
        match &self.session {
            Some(session) => own.within(&session.status.lock()),
            None => own,
        }
    }

    /// Whether this process may still call the grant held. False from the deadline on, even when no task was awake to
    /// announce the loss.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held_at(Moment::now())
    }

    pub(crate) fn is_held_at(&self, now: Moment) -> bool {
        let status = self.status();
        status.end.is_none() && now < status.deadline
    }

    /// Resolves when the grant is lost, at its deadline at the latest. The waiting task reads the clock itself and
    /// depends on no other task. `None`: the grant was released instead.
    pub(crate) async fn lost(&self) -> Option<Loss> {
        self.until(|status| (status.end.is_some(), status.deadline))
            .await;
        self.loss()
    }

    /// Resolves when the grant is at risk or has ended. The waiting task reads the clock itself, as in [`Self::lost`].
    pub(crate) async fn at_risk(&self) {
        self.until(|status| {
            let until = self.warn_at(status.deadline);
            (status.at_risk || status.end.is_some(), until)
        })
        .await;
    }

    /// Resolves when `wished` accepts the status. Checks again when the clock may have changed it.
    async fn until(&self, wished: impl Fn(&Status) -> (bool, Moment)) {
        loop {
            let mut changed = pin!(self.changed.notified());
            let of_session = self.session.as_ref().map(|of| of.changed.notified());
            let mut of_session = pin!(of_session);
            // From here on no change is missed.
            changed.as_mut().enable();
            if let Some(changed) = of_session.as_mut().as_pin_mut() {
                changed.enable();
            }
            let (done, due) = wished(&self.status());
            if done {
                return;
            }
            let session_changed = async {
                match of_session.as_pin_mut() {
                    Some(changed) => changed.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = changed => {}
                () = session_changed => {}
                () = sleep_until(due) => self.announce(Moment::now()),
            }
        }
    }

    /// Changes the status. `change` says whether it did.
    fn change(&self, change: impl FnOnce(&mut Status) -> bool) -> bool {
        let (changed, lost) = {
            let mut status = self.status.lock();
            let before = status.end;
            let changed = change(&mut status);
            (changed, status.end.filter(|_| before.is_none()))
        };
        if let Some(GrantEnd::Lost(loss)) = lost {
            meter::lost(K::WHAT, loss);
            self.lose_spans(loss);
        }
        if changed {
            self.changed.notify_waiters();
        }
        changed
    }

    /// How the grant was lost, if it was lost.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.loss_at(Moment::now())
    }

    pub(crate) fn loss_at(&self, now: Moment) -> Option<Loss> {
        let status = self.status();
        match status.end {
            Some(GrantEnd::Lost(loss)) => Some(loss),
            Some(GrantEnd::Released) => None,
            None => (now >= status.deadline).then(|| self.running_out(status.deadline)),
        }
    }

    /// The reason why the grant ends at `deadline`.
    fn running_out(&self, deadline: Moment) -> Loss {
        if self.at_cap(deadline) {
            Loss::MaxHold
        } else {
            Loss::Expired
        }
    }

    /// Whether no renewal can extend `deadline`. It counts from before the request, so it never quite reaches the cap.
    fn at_cap(&self, deadline: Moment) -> bool {
        self.cap.is_some_and(|cap| deadline + self.ttl / 20 >= cap)
    }

    /// Adds a guard, unless the grant has ended.
    pub(crate) fn add_guard(&self) -> bool {
        self.change(|status| {
            let open = !matches!(status.end, Some(GrantEnd::Released));
            if open {
                status.guards += 1;
            }
            open
        })
    }

    /// Removes a guard. With the last guard the grant ends: it is no longer held or renewed. Returns whether this
    /// guard was the last.
    pub(crate) fn drop_guard(&self, now: Moment) -> bool {
        let mut last = false;
        let loss = self.loss_at(now);
        self.change(|status| {
            status.guards = status.guards.saturating_sub(1);
            last = status.guards == 0;
            if last && status.end.is_none() {
                status.end = Some(loss.map_or(GrantEnd::Released, GrantEnd::Lost));
            }
            true
        });
        last
    }

    /// A request sent at `sent` was answered: the lease has `left` of its time. After the deadline the answer is too
    /// late, because callers may already have seen the loss.
    pub(crate) fn confirm(&self, now: Moment, sent: Moment, left: Duration) {
        // The row has more time left than the TTL if the database's clock was set back.
        let deadline = sent + self.clock_error.trusted(left.min(self.ttl));
        let deadline = self.cap.map_or(deadline, |cap| deadline.min(cap));
        self.change(|status| {
            if status.end.is_some() {
                return false;
            }
            if now >= status.deadline {
                status.end = Some(GrantEnd::Lost(self.running_out(status.deadline)));
                return true;
            }
            let later = deadline > status.deadline;
            if later {
                status.deadline = deadline;
                // A little more time does not take the warning back.
                status.at_risk &= now >= self.warn_at(deadline);
            }
            later
        });
    }

    /// The grant no longer has the name. After the deadline this changes nothing: the grant is lost already.
    pub(crate) fn lose(&self, loss: Loss) {
        self.change(|status| {
            let open = status.end.is_none();
            if open {
                let late = status.deadline.has_passed();
                let loss = if late {
                    self.running_out(status.deadline)
                } else {
                    loss
                };
                status.end = Some(GrantEnd::Lost(loss));
            }
            open
        });
    }

    /// How long a lease of its TTL is trusted.
    pub(crate) fn trusted(&self) -> Duration {
        self.clock_error.trusted(self.ttl)
    }

    /// A transaction has pinned the grant, and may commit even after its deadline.
    pub(crate) fn pinned(&self) {
        self.pins.fetch_add(1, Ordering::Relaxed);
    }

    /// How many transactions have pinned it so far. Whether they have ended is unknown: sqlx does not report that.
    pub(crate) fn pins(&self) -> u64 {
        self.pins.load(Ordering::Relaxed)
    }

    /// From here on, losing the row means that the attempt completed.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// Whether losing the row means that the attempt completed.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// The row no longer names this grant.
    pub(crate) fn gone(&self) {
        if self.closing.load(Ordering::Acquire) {
            self.change(|status| {
                status.end = status.end.or(Some(GrantEnd::Released));
                true
            });
        } else {
            self.lose(Loss::TakenOver);
        }
    }

    /// Announces the warning or the loss, if it is due.
    pub(crate) fn announce(&self, now: Moment) {
        if let Some(session) = &self.session {
            session.announce(now);
        }
        self.change(|status| {
            if status.end.is_some() {
                false
            } else if now >= status.deadline {
                status.end = Some(GrantEnd::Lost(self.running_out(status.deadline)));
                true
            } else if !status.at_risk && now >= self.warn_at(status.deadline) {
                status.at_risk = true;
                true
            } else {
                false
            }
        });
    }

    /// When the next announcement is due, unless a renewal is confirmed first: the warning, then the loss.
    pub(crate) fn announce_at(&self) -> Moment {
        let status = self.status();
        if status.at_risk {
            status.deadline
        } else {
            self.warn_at(status.deadline)
        }
    }

    /// When the warning is due: with a third of the trusted time left. One renewal is overdue by then.
    fn warn_at(&self, deadline: Moment) -> Moment {
        deadline - self.clock_error.trusted(self.ttl) / 3
    }

    /// When the next renewal is due: with two thirds of the trusted time left.
    pub(crate) fn renew_at(&self) -> Moment {
        self.status().deadline - self.clock_error.trusted(self.ttl) * 2 / 3
    }

    /// The TTL that a renewal sent at `now` may ask for; `None` when the cap allows no more.
    pub(crate) fn renewal_ttl(&self, now: Moment) -> Option<Duration> {
        let Some(cap) = self.cap else {
            return Some(self.ttl);
        };
        let reached = self.at_cap(self.status().deadline);
        (!reached).then(|| self.ttl.min(self.clock_error.lease_for(cap - now)))
    }
}

#[cfg(test)]
#[path = "grant_tests.rs"]
mod tests;
