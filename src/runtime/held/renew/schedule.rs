//! When leases are renewed, and when warnings and losses are announced. No clock is read here: the time is an
//! argument.
//!
//! # Fairness
//!
//! Renewals go out in chunks. Leases of about the same TTL (up to twice as long) form a class. The due leases of all
//! classes share a statement while it has room for them and statements are fast enough for the lease with the shortest
//! TTL, which then bounds the statement. Otherwise each class has statements of its own, in turn, with a bound that
//! suits its TTL. So a class may hold more leases than the database can renew, without cost to the other classes.
//! Within a class, the longest due comes first.
//!
//! # The spare connection
//!
//! While a statement is in flight on the first connection, another one goes over the spare one in two cases: it would
//! be full, or the statement in flight may take longer than a due lease can wait. The lease with the shortest TTL
//! bounds the statement on the spare connection: two slow statements never keep it waiting.
//!
//! # What cannot be held
//!
//! When a class has more leases than can be renewed, some are lost. A lease that would end before the answer to its
//! renewal comes is sent last: renewing it first would lose the next ones too, one after the other.
//!
//! # What fails
//!
//! The leases of a failed statement are *suspects*. Suspects are sent apart from the others, in turn with them, and in
//! chunks half as large after each failure. So a row that the database refuses fails alone in the end, and a slow
//! statement is not repeated whole.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use uuid::Uuid;

use super::pace::{CHUNK, Pace};
use super::renewable::Renewable;
use super::tally::{LossReport, Tally};
use crate::model::{Loss, Moment};
use crate::runtime::base::backoff;
use crate::runtime::held::grant::GrantEnd;
use crate::store::driver::request::RequestLimit;
use crate::store::verbs::lease::RenewOutcome;

#[path = "turns.rs"]
mod turns;

/// After this many failures of a full chunk a suspect is sent alone: `CHUNK` halved this often is one.
pub(super) const ALONE: u32 = CHUNK.ilog2();

/// The limits of the bound on a renewal statement. A statement that hangs is better sent again on a new connection.
const MIN_BOUND: Duration = Duration::from_millis(50);
const MAX_BOUND: Duration = Duration::from_secs(2);

/// Ordered by time; the id tells equal times apart.
type Moments = BTreeSet<(Moment, Uuid)>;

#[derive(Debug, Default)]
pub(super) struct Schedule {
    entries: HashMap<Uuid, Entry>,
    /// When each entry has something to announce, or an earlier moment: a renewal does not move it.
    news: Moments,
    /// When each entry is to be renewed, by class of TTL.
    due: BTreeMap<u32, Moments>,
    suspects: Moments,
    /// How many entries there are of each TTL.
    ttls: BTreeMap<Duration, usize>,
    /// Whether the suspects have the next turn.
    suspects_turn: bool,
    /// The class of the last statement for one class alone, on the first connection and on the spare one.
    last_class: u32,
    last_spare: u32,
    /// The bound of the statement in flight on the first connection.
    in_flight: Option<Duration>,
    limit: RequestLimit,
    pub(super) pace: Pace,
    tally: Tally,
    /// When the three tasks wake next.
    announcer: Option<Moment>,
    renewer: Option<Moment>,
    helper: Option<Moment>,
}

#[derive(Debug)]
struct Entry {
    kept: Renewable,
    news_at: Moment,
    renewal: RenewalState,
    /// How often in a row its row was locked.
    locked: u32,
    /// The size of the largest chunk that may contain it: half of the one that failed.
    largest: usize,
    /// How often in a row it failed alone.
    failed: u32,
    /// The tally has counted it as late.
    late: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RenewalState {
    Queued(Moment),
    Suspect(Moment),
    /// It is in a chunk that was taken.
    Sent,
    /// Its cap allows no more renewals.
    Never,
}

/// Which tasks have to wake for the new entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wake {
    pub(super) announcer: bool,
    pub(super) renewer: bool,
    pub(super) helper: bool,
}

/// The leases to renew together: one statement for locks and one for attempts.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) kept: Vec<Renewable>,
    /// The bound of each statement.
    pub(super) bound: Duration,
}

fn is_due(queue: &Moments, now: Moment) -> bool {
    queue.first().is_some_and(|(at, _)| *at <= now)
}

fn class(ttl: Duration) -> u32 {
    ttl.as_millis().max(1).ilog2()
}

/// The bound of a statement for leases of this TTL: short enough to leave time for another try.
fn bound(ttl: Duration) -> Duration {
    (ttl / 4).clamp(MIN_BOUND, MAX_BOUND)
}

impl Schedule {
    /// Requests of its chunks stay within `limit`.
    pub(super) fn within(limit: RequestLimit) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    /// Adds a grant. Wakes a task only when the grant needs it before its next wake-up: most grants are released long
    /// before.
    pub(super) fn keep(&mut self, now: Moment, kept: Renewable) -> Wake {
        let id = kept.id();
        let news_at = kept.announce_at();
        let announcer = self.announcer.is_none_or(|at| news_at < at);
        if announcer {
            self.announcer = Some(news_at);
        }
        let renew_at = kept.is_renewable(now).then(|| kept.renew_at());
        let renewer = renew_at.is_some_and(|new| self.renewer.is_none_or(|at| new < at));
        if renewer {
            self.renewer = renew_at;
        }
        let ttl_overtakes = self.overtakes(kept.ttl());
        *self.ttls.entry(kept.ttl()).or_default() += 1;
        let entry = Entry {
            kept,
            news_at,
            renewal: RenewalState::Never,
            locked: 0,
            largest: CHUNK,
            failed: 0,
            late: false,
        };
        self.news.insert((news_at, id));
        self.entries.insert(id, entry);
        if let Some(at) = renew_at {
            self.queue(id, RenewalState::Queued(at));
        }
        let helper =
            ttl_overtakes && renew_at.is_some_and(|new| self.helper.is_none_or(|at| new < at));
        Wake {
            announcer,
            renewer,
            helper,
        }
    }

    pub(super) fn remove(&mut self, id: Uuid) {
        self.queue(id, RenewalState::Never);
        let Some(entry) = self.entries.remove(&id) else {
            return;
        };
        self.news.remove(&(entry.news_at, id));
        let ttl = entry.kept.ttl();
        if let Some(count) = self.ttls.get_mut(&ttl) {
            *count -= 1;
            if *count == 0 {
                self.ttls.remove(&ttl);
            }
        }
    }

    /// Queues the renewal of an entry.
    fn queue(&mut self, id: Uuid, renewal: RenewalState) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let due = self.due.entry(class(entry.kept.ttl())).or_default();
        match entry.renewal {
            RenewalState::Queued(at) => drop(due.remove(&(at, id))),
            RenewalState::Suspect(at) => drop(self.suspects.remove(&(at, id))),
            RenewalState::Sent | RenewalState::Never => {}
        }
        entry.renewal = renewal;
        match renewal {
            RenewalState::Queued(at) => drop(due.insert((at, id))),
            RenewalState::Suspect(at) => drop(self.suspects.insert((at, id))),
            RenewalState::Sent | RenewalState::Never => {}
        }
    }

    /// Announces at most `limit` due warnings and losses. Returns when the next one is due.
    pub(super) fn announce(&mut self, now: Moment, limit: usize) -> Option<Moment> {
        for _ in 0..limit {
            let Some(&(at, id)) = self.news.first().filter(|(at, _)| *at <= now) else {
                break;
            };
            self.news.remove(&(at, id));
            self.look(now, id);
        }
        let next = self.news.first().map(|(at, _)| *at);
        self.announcer = [next, self.tally.due()].into_iter().flatten().min();
        self.announcer
    }

    /// The report for the log, if it is due; at the end always.
    pub(super) fn report(&mut self, now: Moment, at_end: bool) -> Option<LossReport> {
        self.tally.report(now, self.entries.len(), at_end)
    }

    /// Announces what is due for an entry, and forgets the entry when it has ended.
    fn look(&mut self, now: Moment, id: Uuid) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        entry.kept.announce(now);
        let status = entry.kept.status();
        if let Some(end) = status.end {
            if end == GrantEnd::Lost(Loss::Expired) {
                self.tally.lost(now, entry.kept.leases());
            }
            return self.remove(id);
        }
        let late = status.at_risk && entry.kept.is_renewable(now);
        if late && !entry.late {
            self.tally.late(now, entry.kept.leases());
        }
        entry.late = late;
        self.news.remove(&(entry.news_at, id));
        entry.news_at = entry.kept.announce_at();
        self.news.insert((entry.news_at, id));
    }

    /// When the next renewal is due.
    pub(super) fn next(&mut self) -> Option<Moment> {
        let queues = self.due.values().chain([&self.suspects]);
        self.renewer = queues.filter_map(|queue| Some(queue.first()?.0)).min();
        self.renewer
    }

    /// How long dialing may take when a renewal is due.
    pub(super) fn dial_limit(&self) -> Duration {
        self.shortest().map_or(MAX_BOUND, bound)
    }

    fn shortest(&self) -> Option<Duration> {
        self.ttls.keys().next().copied()
    }

    /// The database has answered for `kept`.
    pub(super) fn settle(
        &mut self,
        now: Moment,
        kept: &Renewable,
        outcome: RenewOutcome,
        sent: Moment,
    ) {
        kept.settle(now, outcome, sent);
        let id = kept.id();
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        entry.largest = CHUNK;
        entry.failed = 0;
        if kept.status().end.is_some() {
            return self.look(now, id);
        }
        if kept.announce_at() < entry.news_at {
            self.look(now, id);
        }
        self.again(now, id);
    }

    /// Queues the next renewal of an entry that was sent.
    fn again(&mut self, now: Moment, id: Uuid) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let kept = &entry.kept;
        let renewal = if !kept.is_renewable(now) {
            RenewalState::Never
        } else if kept.renew_at() > now {
            entry.locked = 0;
            RenewalState::Queued(kept.renew_at())
        } else {
            // A transaction has the row locked: only this lease is put off.
            entry.locked += 1;
            RenewalState::Queued(now + backoff::again(entry.locked + 2, kept.ttl() / 10))
        };
        self.queue(id, renewal);
    }

    /// Their statement failed. The other leases are next; a lease that was alone in it is put off.
    pub(super) fn fail(&mut self, now: Moment, kept: &[Renewable]) {
        self.suspects_turn = false;
        for id in kept.iter().map(Renewable::id) {
            let Some(entry) = self.entries.get_mut(&id) else {
                continue;
            };
            entry.largest = (kept.len() / 2).max(1);
            let at = if let [alone] = kept {
                entry.failed += 1;
                now + backoff::again(entry.failed, alone.ttl() / 10)
            } else {
                now
            };
            self.queue(id, RenewalState::Suspect(at));
        }
    }

    /// They were not sent.
    pub(super) fn put_back(&mut self, kept: &[Renewable]) {
        for kept in kept {
            self.queue(kept.id(), RenewalState::Queued(kept.renew_at()));
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
