//! A grant as this process knows it: until when it may be trusted, and how it ended.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use uuid::Uuid;

use crate::model::{ClockError, Moment};
use crate::model::{Loss, Name};
use crate::runtime::timer::sleep_until;

/// One grant of one name, or one attempt of one record. Guards, the renewals and a lane share it.
#[derive(Debug)]
pub(crate) struct Grant<K = Name> {
    pub(crate) name: K,
    /// The grant id in the row (`attempt_id`, of a record): fresh for every grant.
    pub(crate) id: Uuid,
    /// The grant's, or the number of the attempt.
    pub(crate) fence: i64,
    pub(crate) ttl: Duration,
    /// How many sendings of its acquire may reach the server yet.
    pub(crate) late: u32,
    clock_error: ClockError,
    /// Never renewed beyond this point.
    cap: Option<Moment>,
    /// It is being ended by somebody else's commit: gone is no loss.
    closing: AtomicBool,
    /// How many transactions have pinned it.
    pins: AtomicU64,
    status: watch::Sender<Status>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Status {
    /// Counted from before the last confirmed request was sent.
    pub(crate) deadline: Moment,
    /// A renewal is overdue, or the cap is near.
    pub(crate) at_risk: bool,
    pub(crate) end: Option<End>,
    /// How many guards there are.
    guards: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Released,
    Lost(Loss),
}

impl<K> Grant<K> {
    /// A grant that was confirmed, and may be trusted until `deadline`.
    pub(crate) fn new(
        name: K,
        id: Uuid,
        fence: i64,
        ttl: Duration,
        clock_error: ClockError,
        cap: Option<Moment>,
        deadline: Moment,
    ) -> Self {
        let status = Status {
            deadline,
            at_risk: false,
            end: None,
            guards: 0,
        };
        Self {
            name,
            id,
            fence,
            ttl,
            late: 0,
            clock_error,
            cap,
            closing: AtomicBool::new(false),
            pins: AtomicU64::new(0),
            status: watch::Sender::new(status),
        }
    }

    pub(crate) fn status(&self) -> Status {
        *self.status.borrow()
    }

    /// Whether it is held, as far as this process may say so. False from the deadline on, also when nothing in this
    /// process has been awake to announce the loss.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held_at(Moment::now())
    }

    pub(crate) fn is_held_at(&self, now: Moment) -> bool {
        let status = self.status();
        status.end.is_none() && now < status.deadline
    }

    /// Resolves when the grant is lost: at its deadline at the latest, by the clock of the task that waits. Nothing else
    /// has to be awake for that. `None`: it was released instead.
    pub(crate) async fn lost(&self) -> Option<Loss> {
        self.until(|status| (status.end.is_some(), status.deadline))
            .await;
        self.loss()
    }

    /// Resolves when the grant is at risk, or has ended, in the same way.
    pub(crate) async fn at_risk(&self) {
        self.until(|status| {
            let until = self.warn_at(status.deadline);
            (status.at_risk || status.end.is_some(), until)
        })
        .await;
    }

    /// Resolves when the status is as wished, and looks again when the clock may have changed it.
    async fn until(&self, wished: impl Fn(&Status) -> (bool, Moment)) {
        let mut status = self.status.subscribe();
        loop {
            let (done, due) = wished(&status.borrow_and_update());
            if done {
                return;
            }
            tokio::select! {
                // The sender is in `self`: an error cannot come.
                _ = status.changed() => {}
                () = sleep_until(due) => self.announce(Moment::now()),
            }
        }
    }

    /// How it was lost, if it was.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.loss_at(Moment::now())
    }

    pub(crate) fn loss_at(&self, now: Moment) -> Option<Loss> {
        let status = self.status();
        match status.end {
            Some(End::Lost(loss)) => Some(loss),
            Some(End::Released) => None,
            None => (now >= status.deadline).then(|| self.running_out(status.deadline)),
        }
    }

    /// Why its time runs out at `deadline`.
    fn running_out(&self, deadline: Moment) -> Loss {
        if self.at_cap(deadline) {
            Loss::MaxHold
        } else {
            Loss::Expired
        }
    }

    /// Whether `deadline` is the last one. Counted from before the request, it never quite reaches the
    /// cap.
    fn at_cap(&self, deadline: Moment) -> bool {
        self.cap.is_some_and(|cap| deadline + self.ttl / 20 >= cap)
    }

    /// One guard more, unless the grant has ended.
    pub(crate) fn add_guard(&self) -> bool {
        self.status.send_if_modified(|status| {
            let open = !matches!(status.end, Some(End::Released));
            if open {
                status.guards += 1;
            }
            open
        })
    }

    /// One guard less. With the last one the grant ends: it is not held any more from here on, and
    /// not renewed. Returns whether this was the last.
    pub(crate) fn drop_guard(&self, now: Moment) -> bool {
        let mut last = false;
        self.status.send_modify(|status| {
            status.guards = status.guards.saturating_sub(1);
            last = status.guards == 0;
            if last && status.end.is_none() {
                status.end = Some(if now >= status.deadline {
                    End::Lost(self.running_out(status.deadline))
                } else {
                    End::Released
                });
            }
        });
        last
    }

    /// The database said that `left` was left, and was asked at `sent`. The answer comes too late when the deadline has
    /// passed: a caller may have been told so already.
    pub(crate) fn confirm(&self, now: Moment, sent: Moment, left: Duration) {
        let deadline = sent + self.clock_error.trusted(left);
        let deadline = self.cap.map_or(deadline, |cap| deadline.min(cap));
        self.status.send_if_modified(|status| {
            if status.end.is_some() {
                return false;
            }
            if now >= status.deadline {
                status.end = Some(End::Lost(self.running_out(status.deadline)));
                return true;
            }
            let later = deadline > status.deadline;
            if later {
                status.deadline = deadline;
                // A little more time is no reason to take the warning back.
                status.at_risk &= now >= self.warn_at(deadline);
            }
            later
        });
    }

    /// The name is not this grant's any more. Whoever learns that after the deadline has lost it by
    /// then already.
    pub(crate) fn lose(&self, loss: Loss) {
        self.status.send_if_modified(|status| {
            let open = status.end.is_none();
            if open {
                let late = status.deadline.has_passed();
                let loss = if late {
                    self.running_out(status.deadline)
                } else {
                    loss
                };
                status.end = Some(End::Lost(loss));
            }
            open
        });
    }

    /// A transaction has pinned it, and may commit also after its deadline.
    pub(crate) fn pinned(&self) {
        self.pins.fetch_add(1, Ordering::Relaxed);
    }

    /// How many transactions have pinned it so far. Whether they have ended is not known: sqlx tells nobody.
    pub(crate) fn pins(&self) -> u64 {
        self.pins.load(Ordering::Relaxed)
    }

    /// From now on, losing the row means that the attempt has ended.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// The row says that it is not this grant's any more.
    pub(crate) fn gone(&self) {
        if self.closing.load(Ordering::Acquire) {
            self.status
                .send_modify(|status| status.end = status.end.or(Some(End::Released)));
        } else {
            self.lose(Loss::TakenOver);
        }
    }

    /// Announces what is due: the warning, or the loss.
    pub(crate) fn announce(&self, now: Moment) {
        self.status.send_if_modified(|status| {
            if status.end.is_some() {
                false
            } else if now >= status.deadline {
                status.end = Some(End::Lost(self.running_out(status.deadline)));
                true
            } else if !status.at_risk && now >= self.warn_at(status.deadline) {
                status.at_risk = true;
                true
            } else {
                false
            }
        });
    }

    /// When something is next announced, if no renewal is confirmed: the warning, then the loss.
    pub(crate) fn announce_at(&self) -> Moment {
        let status = self.status();
        if status.at_risk {
            status.deadline
        } else {
            self.warn_at(status.deadline)
        }
    }

    /// The warning is due with a third of the trusted time left, when one renewal is overdue.
    fn warn_at(&self, deadline: Moment) -> Moment {
        deadline - self.clock_error.trusted(self.ttl) / 3
    }

    /// When the next renewal is due: with two thirds of the trusted time left.
    pub(crate) fn renew_at(&self) -> Moment {
        self.status().deadline - self.clock_error.trusted(self.ttl) * 2 / 3
    }

    /// What a renewal that is sent at `now` may ask for; `None` when the cap allows no more.
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
