//! In which order leases that are due are renewed, and which warnings and losses are due. (When a lease is due:
//! `held/grant.rs`.) No clock is read here: the time is an argument.
//!
//! # Order
//!
//! Renewals go out in chunks, the earliest deadline first. So a lease of a short TTL overtakes a crowd of longer ones,
//! and each longer one is first when its own deadline comes near. What is soon due rides along.
//!
//! # What cannot be held
//!
//! When more leases are held than can be renewed, some are lost. A lease that would end before the answer to its
//! renewal comes is sent last: renewing it first would lose the next ones too, one after the other.
//!
//! # What fails
//!
//! The leases of a failed statement are put off for a moment, and then let those go first that have failed less often.
//! Each may be in a chunk of half the size at most. So a row that the database refuses fails alone in the end, and a
//! slow statement is not repeated whole.

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

/// After this many failures of a full chunk a lease is sent alone: `CHUNK` halved this often is one.
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
    /// When each entry is to be renewed.
    later: Moments,
    /// The deadlines of the entries to renew now.
    ready: Moments,
    /// How many entries there are of each TTL.
    ttls: BTreeMap<Duration, usize>,
    limit: RequestLimit,
    pub(super) pace: Pace,
    /// The last statement failed.
    has_failed: bool,
    tally: Tally,
    /// When the two tasks wake next.
    announcer: Option<Moment>,
    renewer: Option<Moment>,
}

#[derive(Debug)]
struct Entry {
    kept: Renewable,
    news_at: Moment,
    renewal: RenewalState,
    /// How often in a row its row was locked, or it failed alone.
    put_off: u32,
    /// The size of the largest chunk that may contain it: half of the one that failed.
    largest: usize,
    /// The tally has counted it as late.
    late: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RenewalState {
    Later(Moment),
    /// With its deadline.
    Ready(Moment),
    /// It is in a chunk that was taken, or its cap allows no more renewals.
    Unqueued,
}

/// Which tasks have to wake for the new entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wake {
    pub(super) announcer: bool,
    pub(super) renewer: bool,
}

/// The leases to renew together: one statement for locks and one for attempts.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) kept: Vec<Renewable>,
    /// The bound of each statement.
    pub(super) bound: Duration,
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
        *self.ttls.entry(kept.ttl()).or_default() += 1;
        let entry = Entry {
            kept,
            news_at,
            renewal: RenewalState::Unqueued,
            put_off: 0,
            largest: CHUNK,
            late: false,
        };
        self.news.insert((news_at, id));
        self.entries.insert(id, entry);
        if let Some(at) = renew_at {
            self.queue(id, RenewalState::Later(at));
        }
        Wake { announcer, renewer }
    }

    pub(super) fn remove(&mut self, id: Uuid) {
        self.queue(id, RenewalState::Unqueued);
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
        match entry.renewal {
            RenewalState::Later(at) => drop(self.later.remove(&(at, id))),
            RenewalState::Ready(at) => drop(self.ready.remove(&(at, id))),
            RenewalState::Unqueued => {}
        }
        entry.renewal = renewal;
        match renewal {
            RenewalState::Later(at) => drop(self.later.insert((at, id))),
            RenewalState::Ready(at) => drop(self.ready.insert((at, id))),
            RenewalState::Unqueued => {}
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
    pub(super) fn next(&mut self, now: Moment) -> Option<Moment> {
        let later = self.later.first().map(|(at, _)| *at);
        self.renewer = if self.ready.is_empty() {
            later
        } else {
            Some(now)
        };
        self.renewer
    }

    /// How long a statement may take that leaves time for another try: a quarter of the shortest TTL.
    pub(super) fn bound(&self) -> Duration {
        let shortest = self.ttls.keys().next();
        shortest.map_or(MAX_BOUND, |ttl| (*ttl / 4).clamp(MIN_BOUND, MAX_BOUND))
    }

    /// A statement for `count` renewals took `took`.
    pub(super) fn took(&mut self, took: Duration, count: usize) {
        self.pace.took(took, self.bound(), count);
    }

    /// Takes out the leases to send now, and drops those that have ended.
    pub(super) fn chunk(&mut self, now: Moment) -> Chunk {
        // What is soon due rides along, unless it has failed.
        let soon = now + self.ttls.keys().next().copied().unwrap_or_default() / 10;
        let due = self.later.iter().take_while(|(at, _)| *at <= soon);
        let due = due.filter(|(at, id)| *at <= now || self.entries[id].largest == CHUNK);
        let due: Vec<Uuid> = due.map(|(_, id)| *id).collect();
        for id in due {
            self.make_ready(id);
        }
        // With less time than this, a lease would be lost before its answer comes.
        let needed = self.pace.needed().min(self.bound());
        let in_time = (now + needed, Uuid::nil());
        let in_order = self
            .ready
            .range(in_time..)
            .chain(self.ready.range(..in_time));
        // After a failure, those first that may be in the largest chunk: they have failed less often.
        let largest = |id: &Uuid| self.entries[id].largest;
        let has_failed = std::mem::take(&mut self.has_failed);
        let failed = self.ready.iter().filter(|_| has_failed);
        let widest = failed.map(|(_, id)| largest(id)).max();
        let in_order = in_order.filter(|(_, id)| widest.is_none_or(|widest| largest(id) == widest));
        let picked: Vec<Uuid> = in_order.take(self.pace.size()).map(|(_, id)| *id).collect();
        let kept = self.take(now, picked);
        // A server that is too slow for the shortest TTL gets more time; but a lease has time for another try.
        let left = kept.iter().map(|kept| kept.status().deadline - now);
        let most = left.min().map_or(MAX_BOUND, |left| left * 2 / 3);
        let bound = self.bound().max(self.pace.slow().min(most)).min(MAX_BOUND);
        Chunk { kept, bound }
    }

    /// Takes out as many of `picked` as fit into one request. Skips those that have ended or are at their cap.
    fn take(&mut self, now: Moment, picked: Vec<Uuid>) -> Vec<Renewable> {
        let (mut kept, mut used, mut largest) = (Vec::new(), 0, CHUNK);
        for id in picked {
            let Some(entry) = self.entries.get(&id) else {
                continue;
            };
            largest = largest.min(entry.largest);
            if kept.len() >= largest || !self.limit.admits(&mut used, entry.kept.name_len(), 0) {
                break;
            }
            if !entry.kept.is_held_at(now) {
                self.look(now, id);
                continue;
            }
            if entry.kept.is_renewable(now) {
                kept.push(entry.kept.clone());
            }
            self.queue(id, RenewalState::Unqueued);
        }
        kept
    }

    fn make_ready(&mut self, id: Uuid) {
        if let Some(entry) = self.entries.get(&id) {
            let deadline = entry.kept.status().deadline;
            self.queue(id, RenewalState::Ready(deadline));
        }
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
            RenewalState::Unqueued
        } else if kept.renew_at() > now {
            entry.put_off = 0;
            RenewalState::Later(kept.renew_at())
        } else {
            // A transaction has the row locked: only this lease is put off.
            entry.put_off += 1;
            RenewalState::Later(now + entry.pause())
        };
        self.queue(id, renewal);
    }

    /// Their statement failed. The other leases are next; a lease that was alone in it is put off for longer.
    pub(super) fn fail(&mut self, now: Moment, kept: &[Renewable]) {
        self.has_failed = true;
        for id in kept.iter().map(Renewable::id) {
            let Some(entry) = self.entries.get_mut(&id) else {
                continue;
            };
            entry.largest = (kept.len() / 2).max(1);
            entry.put_off += u32::from(kept.len() == 1);
            let at = now + entry.pause();
            self.queue(id, RenewalState::Later(at));
        }
    }

    /// They were not sent.
    pub(super) fn put_back(&mut self, kept: &[Renewable]) {
        for kept in kept {
            self.make_ready(kept.id());
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl Entry {
    fn pause(&self) -> Duration {
        backoff::again(self.put_off, self.kept.ttl() / 10)
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
