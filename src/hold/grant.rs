//! A grant as this process knows it: until when it may be trusted, and how it ended.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use uuid::Uuid;

use super::clock::Moment;
use crate::Name;
use crate::lock::Loss;

/// One grant of one name, or one attempt of one record. Guards, the renewals and a lane share it.
#[derive(Debug)]
pub(crate) struct Grant<K = Name> {
    pub(crate) name: K,
    /// The owner in the row: fresh for every grant.
    pub(crate) id: Uuid,
    /// The grant's, or the number of the attempt.
    pub(crate) fence: i64,
    pub(crate) ttl: Duration,
    /// How many sendings of its acquire may reach the server yet.
    pub(crate) late: u32,
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
    /// A grant that was confirmed; its request was sent at `sent`.
    pub(crate) fn new(
        name: K,
        id: Uuid,
        fence: i64,
        ttl: Duration,
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
            cap,
            closing: AtomicBool::new(false),
            pins: AtomicU64::new(0),
            status: watch::Sender::new(status),
        }
    }

    pub(crate) fn status(&self) -> Status {
        *self.status.borrow()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Whether it is held, as far as this process may say so. True until the deadline, also when
    /// nobody has been awake to announce the loss.
    pub(crate) fn is_held(&self) -> bool {
        let status = self.status();
        status.end.is_none() && !status.deadline.has_passed()
    }

    /// How it was lost, if it was.
    pub(crate) fn loss(&self) -> Option<Loss> {
        let status = self.status();
        match status.end {
            Some(End::Lost(loss)) => Some(loss),
            Some(End::Released) => None,
            None => status
                .deadline
                .has_passed()
                .then(|| self.running_out(status.deadline)),
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
    pub(crate) fn drop_guard(&self) -> bool {
        let mut last = false;
        self.status.send_modify(|status| {
            status.guards = status.guards.saturating_sub(1);
            last = status.guards == 0;
            if last && status.end.is_none() {
                status.end = Some(if status.deadline.has_passed() {
                    End::Lost(self.running_out(status.deadline))
                } else {
                    End::Released
                });
            }
        });
        last
    }

    /// A renewal was confirmed. It comes too late when the deadline has passed: somebody may have
    /// been told so already.
    pub(crate) fn confirm(&self, deadline: Moment) {
        let deadline = self.cap.map_or(deadline, |cap| deadline.min(cap));
        self.status.send_if_modified(|status| {
            if status.end.is_some() {
                return false;
            }
            if status.deadline.has_passed() {
                status.end = Some(End::Lost(self.running_out(status.deadline)));
                return true;
            }
            let later = deadline > status.deadline;
            if later {
                status.deadline = deadline;
                // A little more time is no reason to take the warning back.
                status.at_risk &= (deadline - self.ttl / 3).has_passed();
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

    /// From now on, not to be the row's owner any more is to have ended.
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
    pub(crate) fn announce(&self) {
        let warn_at = self.warn_at();
        self.status.send_if_modified(|status| {
            if status.end.is_some() {
                false
            } else if status.deadline.has_passed() {
                status.end = Some(End::Lost(self.running_out(status.deadline)));
                true
            } else if !status.at_risk && warn_at.has_passed() {
                status.at_risk = true;
                true
            } else {
                false
            }
        });
    }

    /// When the warning is due: with a third of the TTL left, which is one renewal overdue.
    pub(crate) fn warn_at(&self) -> Moment {
        self.status().deadline - self.ttl / 3
    }

    /// When the next renewal is due: with two thirds of the TTL left.
    pub(crate) fn renew_at(&self) -> Moment {
        self.status().deadline - self.ttl * 2 / 3
    }

    /// What a renewal that is sent now may ask for; `None` when the cap allows no more.
    pub(crate) fn renewal_ttl(&self) -> Option<Duration> {
        let Some(cap) = self.cap else {
            return Some(self.ttl);
        };
        let reached = self.at_cap(self.status().deadline);
        (!reached).then(|| self.ttl.min(cap.remaining()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(left: Duration, cap: Option<Moment>) -> Grant {
        let name = Name::new("n").unwrap();
        let deadline = Moment::now() + left;
        let grant = Grant::new(name, Uuid::nil(), 1, Duration::from_secs(30), cap, deadline);
        assert!(grant.add_guard());
        grant
    }

    #[test]
    fn a_confirmation_after_the_deadline_does_not_revive_a_grant() {
        let it = grant(Duration::ZERO, None);
        assert!(!it.is_held());
        it.confirm(Moment::now() + Duration::from_secs(30));
        assert!(!it.is_held());
        assert_eq!(it.loss(), Some(Loss::Expired));
    }

    #[test]
    fn a_deadline_never_moves_back() {
        let it = grant(Duration::from_secs(30), None);
        let before = it.status().deadline;
        it.confirm(before - Duration::from_secs(5));
        assert_eq!(it.status().deadline, before);
    }

    #[test]
    fn the_warning_comes_with_a_third_left_and_a_confirmation_takes_it_back() {
        let it = grant(Duration::from_secs(11), None);
        it.announce();
        assert!(!it.status().at_risk);
        let it = grant(Duration::from_secs(9), None);
        it.announce();
        assert!(it.status().at_risk);
        it.confirm(Moment::now() + Duration::from_secs(30));
        assert!(!it.status().at_risk);
        assert!(it.is_held());
    }

    #[test]
    fn a_renewal_asks_for_no_more_than_the_cap() {
        let cap = Moment::now() + Duration::from_secs(10);
        let it = grant(Duration::from_secs(5), Some(cap));
        assert!(it.renewal_ttl().unwrap() <= Duration::from_secs(10));
        it.confirm(cap);
        assert_eq!(it.renewal_ttl(), None);
    }

    #[test]
    fn the_last_guard_ends_the_grant() {
        let it = grant(Duration::from_secs(5), None);
        assert!(it.add_guard());
        assert!(!it.drop_guard());
        assert!(it.is_held());
        assert!(it.drop_guard());
        assert!(!it.is_held());
        assert!(!it.add_guard());
    }
}
