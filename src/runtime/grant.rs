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
    /// The owner in the row: fresh for every grant.
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
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(36);
    /// What is trusted of that.
    const TRUSTED: Duration = Duration::from_secs(30);
    const EXACT: ClockError = ClockError::new(Duration::ZERO);

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    /// A grant that was asked for at `sent`, and got all of its TTL.
    fn grant(sent: Moment, cap: Option<Moment>) -> Grant {
        let name = Name::new("n").unwrap();
        let grant = Grant::new(name, Uuid::nil(), 1, TTL, EXACT, cap, sent + TRUSTED);
        assert!(grant.add_guard());
        grant
    }

    #[test]
    fn it_is_held_until_the_deadline() {
        let start = Moment::now();
        let it = grant(start, None);
        assert_eq!(it.status().deadline, start + TRUSTED);
        assert!(it.is_held_at(start + secs(29)));
        assert!(!it.is_held_at(start + TRUSTED));
        it.announce(start + TRUSTED);
        assert!(!it.is_held_at(start));
        assert_eq!(it.loss(), Some(Loss::Expired));
    }

    #[test]
    fn a_confirmation_at_the_deadline_does_not_revive_a_grant() {
        let start = Moment::now();
        let it = grant(start, None);
        it.confirm(start + TRUSTED, start + secs(29), TTL);
        assert!(!it.is_held_at(start));
        assert_eq!(it.loss(), Some(Loss::Expired));
        it.confirm(start + secs(1), start + secs(1), TTL);
        assert_eq!(it.loss(), Some(Loss::Expired));
    }

    #[test]
    fn a_confirmation_counts_from_before_it_was_asked_for_and_never_moves_the_deadline_back() {
        let start = Moment::now();
        let it = grant(start, None);
        it.confirm(start + secs(20), start + secs(10), TTL);
        assert_eq!(it.status().deadline, start + secs(40));
        it.confirm(start + secs(21), start + secs(21), secs(6));
        assert_eq!(it.status().deadline, start + secs(40));
    }

    #[test]
    fn renewal_warning_and_loss_are_a_third_of_the_trusted_time_apart() {
        let start = Moment::now();
        let it = grant(start, None);
        assert_eq!(it.renew_at(), start + secs(10));
        assert_eq!(it.announce_at(), start + secs(20));
        it.announce(start + secs(19));
        assert!(!it.status().at_risk);
        it.announce(start + secs(20));
        assert!(it.status().at_risk);
        assert_eq!(it.announce_at(), start + TRUSTED);
        // A little more time is no reason to take the warning back.
        it.confirm(start + secs(25), start + secs(23), secs(12));
        assert_eq!(it.status().deadline, start + secs(33));
        assert!(it.status().at_risk);
        it.confirm(start + secs(26), start + secs(25), TTL);
        assert!(!it.status().at_risk);
        assert_eq!(it.announce_at(), start + secs(45));
    }

    #[test]
    fn a_renewal_asks_for_what_reaches_the_cap_and_no_more() {
        let start = Moment::now();
        let cap = start + secs(45);
        let it = grant(start, Some(cap));
        assert_eq!(it.renewal_ttl(start + secs(10)), Some(TTL));
        assert_eq!(it.renewal_ttl(start + secs(20)), Some(secs(30)));
        it.confirm(start + secs(20), start + secs(20), secs(30));
        assert_eq!(it.status().deadline, cap);
        assert_eq!(it.renewal_ttl(start + secs(21)), None);
        it.announce(cap);
        assert_eq!(it.loss(), Some(Loss::MaxHold));
        // It is never trusted beyond the cap, whatever the database says.
        let it = grant(start, Some(cap));
        it.confirm(start + secs(20), start + secs(20), TTL);
        assert_eq!(it.status().deadline, cap);
    }

    #[test]
    fn the_last_guard_ends_the_grant() {
        let start = Moment::now();
        let it = grant(start, None);
        assert!(it.add_guard());
        assert!(!it.drop_guard(start));
        assert!(it.is_held_at(start));
        assert!(it.drop_guard(start));
        assert!(!it.is_held_at(start));
        assert!(!it.add_guard());
        assert_eq!(it.loss(), None);
    }

    #[test]
    fn a_guard_that_is_dropped_at_the_deadline_was_not_held_any_more() {
        let start = Moment::now();
        let it = grant(start, None);
        assert_eq!(it.loss_at(start + secs(29)), None);
        assert_eq!(it.loss_at(start + TRUSTED), Some(Loss::Expired));
        assert!(it.drop_guard(start + TRUSTED));
        assert_eq!(it.loss(), Some(Loss::Expired));
    }

    #[test]
    fn a_row_that_is_gone_is_a_loss_unless_the_grant_was_closing() {
        let start = Moment::now();
        let it = grant(start, None);
        it.gone();
        assert_eq!(it.loss(), Some(Loss::TakenOver));
        let it = grant(start, None);
        it.close();
        it.gone();
        assert!(!it.is_held_at(start));
        assert_eq!(it.loss(), None);
    }

    /// No renewals run here: nothing but the task that waits looks at the clock.
    #[tokio::test]
    async fn a_loss_is_noticed_by_the_task_that_waits_for_it() {
        let ago = Moment::now() - TRUSTED;
        let it = grant(ago + Duration::from_millis(30), None);
        assert!(it.is_held());
        assert_eq!(it.lost().await, Some(Loss::Expired));
        assert!(it.status().deadline.has_passed() && !it.is_held());
    }

    #[tokio::test]
    async fn a_risk_is_noticed_by_the_task_that_waits_for_it() {
        let ago = Moment::now() - secs(20);
        let it = grant(ago + Duration::from_millis(30), None);
        it.at_risk().await;
        assert!(it.status().at_risk && it.is_held());
    }

    #[tokio::test]
    async fn a_release_is_no_loss() {
        let start = Moment::now();
        let it = grant(start, None);
        let (lost, ()) = tokio::join!(it.lost(), async {
            it.drop_guard(start);
        });
        assert_eq!(lost, None);
    }
}
