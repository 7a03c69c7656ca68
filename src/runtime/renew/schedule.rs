//! When what is renewed, and when what is announced. No clock is read here: the time is an argument.
//!
//! # Fairness
//!
//! Renewals go out in chunks. Leases of about the same TTL (up to twice as long) are a class. What is due of all classes
//! shares a statement while that has room for it, and while statements are fast enough for the lease with the shortest
//! TTL, which then bounds it. Else each class has statements of its own, in turn, with the time that it can bear. So the
//! leases of one class may be more than the database can renew, and cost the other classes nothing. Within a class the
//! longest due comes first.
//!
//! # The spare connection
//!
//! While a statement is in flight on the first connection, another one goes over the spare one: when it would be full, or
//! when the one in flight may take longer than a lease that is due can wait. What is sent there is bounded by the lease
//! with the shortest TTL: it is never kept waiting by two slow statements.
//!
//! # What cannot be held
//!
//! When a class has more leases than can be renewed, some are lost. Those that would be lost before the answer to their
//! renewal comes are sent last: renewing them would lose the next ones, too, one after the other.
//!
//! # What fails
//!
//! The leases of a statement that failed are *suspects*. Suspects are sent apart from the others, in turn with them, and in
//! chunks half as large after each failure: a row that the database refuses fails alone in the end, and one slow
//! statement is not sent again whole.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use uuid::Uuid;

use super::kept::Kept;
use super::pace::{CHUNK, Pace};
use super::tally::{Report, Tally};
use crate::model::{Loss, Moment, Subject};
use crate::runtime::backoff;
use crate::runtime::grant::End;
use crate::store::RequestLimit;
use crate::store::lease::Renewed;

#[path = "turns.rs"]
mod turns;

/// After so many failures of a full chunk a suspect is sent alone: `CHUNK` halved so often is one.
pub(super) const ALONE: u32 = CHUNK.ilog2();

/// The bounds of the bound on a renewal statement: one that hangs is better sent again on a new connection.
const MIN_BOUND: Duration = Duration::from_millis(50);
const MAX_BOUND: Duration = Duration::from_secs(2);

/// Ordered by time; the id tells equal times apart.
type Queue = BTreeSet<(Moment, Uuid)>;

#[derive(Debug, Default)]
pub(super) struct Schedule {
    entries: HashMap<Uuid, Entry>,
    /// When each entry has something to announce, or earlier: a renewal does not move it.
    news: Queue,
    /// When each entry is to be renewed, by class of TTL.
    due: BTreeMap<u32, Queue>,
    suspects: Queue,
    /// How many entries there are of each TTL.
    ttls: BTreeMap<Duration, usize>,
    /// Whether the suspects are next.
    suspects_turn: bool,
    /// The class that had the last statement of its own on the first connection, and on the spare one.
    last_class: u32,
    last_spare: u32,
    /// The bound of the statement that is in flight on the first connection.
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
    kept: Kept,
    news_at: Moment,
    renewal: Renewal,
    /// How often in a row its row was found locked.
    locked: u32,
    /// The largest chunk that it may be in: half of that with which it failed.
    largest: usize,
    /// How often in a row it failed alone.
    failed: u32,
    /// The tally has counted that it is late.
    late: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Renewal {
    Queued(Moment),
    Suspect(Moment),
    /// In a chunk that was taken.
    Sent,
    /// Its cap allows no more.
    Never,
}

/// Which task has to wake for what was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wake {
    pub(super) announcer: bool,
    pub(super) renewer: bool,
    pub(super) helper: bool,
}

/// What is sent in one statement (locks and attempts: one each).
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) kept: Vec<Kept>,
    /// How long a statement may take.
    pub(super) bound: Duration,
}

fn is_due(queue: &Queue, now: Moment) -> bool {
    queue.first().is_some_and(|(at, _)| *at <= now)
}

fn class(ttl: Duration) -> u32 {
    ttl.as_millis().max(1).ilog2()
}

/// How long a statement for leases of this TTL may take: long enough before the end for another try.
fn bound(ttl: Duration) -> Duration {
    (ttl / 4).clamp(MIN_BOUND, MAX_BOUND)
}

impl Schedule {
    /// Its chunks need requests within `limit`.
    pub(super) fn within(limit: RequestLimit) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    /// Adds a grant. A task is woken only when the grant needs it earlier than it would wake anyway: most grants are
    /// released long before.
    pub(super) fn keep(&mut self, now: Moment, kept: Kept) -> Wake {
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
            renewal: Renewal::Never,
            locked: 0,
            largest: CHUNK,
            failed: 0,
            late: false,
        };
        self.news.insert((news_at, id));
        self.entries.insert(id, entry);
        if let Some(at) = renew_at {
            self.queue(id, Renewal::Queued(at));
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
        self.queue(id, Renewal::Never);
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

    /// Puts the renewal of an entry into the queue where it belongs.
    fn queue(&mut self, id: Uuid, renewal: Renewal) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let due = self.due.entry(class(entry.kept.ttl())).or_default();
        match entry.renewal {
            Renewal::Queued(at) => drop(due.remove(&(at, id))),
            Renewal::Suspect(at) => drop(self.suspects.remove(&(at, id))),
            Renewal::Sent | Renewal::Never => {}
        }
        entry.renewal = renewal;
        match renewal {
            Renewal::Queued(at) => drop(due.insert((at, id))),
            Renewal::Suspect(at) => drop(self.suspects.insert((at, id))),
            Renewal::Sent | Renewal::Never => {}
        }
    }

    /// Announces at most `limit` warnings and losses that are due, and tells when the next one is.
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

    /// What the log is to be told by now. At the end it is told all.
    pub(super) fn report(&mut self, now: Moment, at_end: bool) -> Option<Report> {
        self.tally.report(now, self.entries.len(), at_end)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What is held.
    pub(super) fn held(&self, now: Moment) -> Vec<Subject> {
        let entries = self.entries.values();
        let held = entries.filter(|entry| entry.kept.is_held_at(now));
        held.map(|entry| entry.kept.subject()).collect()
    }

    /// Announces what is due of an entry, and forgets it when it has ended.
    fn look(&mut self, now: Moment, id: Uuid) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        entry.kept.announce(now);
        let status = entry.kept.status();
        if let Some(end) = status.end {
            if end == End::Lost(Loss::Expired) {
                self.tally.lost(now);
            }
            return self.remove(id);
        }
        let late = status.at_risk && entry.kept.is_renewable(now);
        if late && !entry.late {
            self.tally.late(now);
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
    pub(super) fn settle(&mut self, now: Moment, kept: &Kept, outcome: Renewed, sent: Moment) {
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
            Renewal::Never
        } else if kept.renew_at() > now {
            entry.locked = 0;
            Renewal::Queued(kept.renew_at())
        } else {
            // A transaction has its row locked: it alone is put off.
            entry.locked += 1;
            Renewal::Queued(now + backoff::again(entry.locked + 2, kept.ttl() / 10))
        };
        self.queue(id, renewal);
    }

    /// Their statement failed. The others are next; one that was alone in it is put off.
    pub(super) fn fail(&mut self, now: Moment, kept: &[Kept]) {
        self.suspects_turn = false;
        for id in kept.iter().map(Kept::id) {
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
            self.queue(id, Renewal::Suspect(at));
        }
    }

    /// They were not sent after all.
    pub(super) fn put_back(&mut self, kept: &[Kept]) {
        for kept in kept {
            self.queue(kept.id(), Renewal::Queued(kept.renew_at()));
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
