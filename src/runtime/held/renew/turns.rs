//! Whose turn it is: which leases go into the next statement, on the first connection and on the spare one.

use std::ops::Bound;
use std::time::Duration;

use uuid::Uuid;

use super::{Chunk, MAX_BOUND, Moments, RenewalState, Schedule, bound, class, is_due};
use crate::model::Moment;
use crate::runtime::held::renew::renewable::Renewable;

impl Schedule {
    /// Whether statements are fast enough for all classes to share them.
    pub(super) fn is_calm(&self) -> bool {
        self.pace.needed() <= self.dial_limit()
    }

    /// Takes out the leases to send now over the first connection, and drops those that have ended.
    pub(in crate::runtime::held::renew) fn chunk(&mut self, now: Moment) -> Chunk {
        let suspects_due = is_due(&self.suspects, now);
        let others_due = self.due.values().any(|queue| is_due(queue, now));
        let suspects = suspects_due && (self.suspects_turn || !others_due);
        self.suspects_turn = !suspects;
        let all = self.all(now).filter(|_| !suspects);
        let shared = all.is_some();
        let picked = if suspects {
            self.pick_suspects(now, None)
        } else {
            all.unwrap_or_else(|| self.pick_next_class(now))
        };
        let kept = self.take(now, picked);
        // The first sending must not delay the lease with the shortest TTL, in the chunk or not. A renewal that is cut
        // off for this has its own bound the next time.
        let shortest = if shared {
            self.shortest()
        } else {
            kept.iter().map(Renewable::ttl).min()
        };
        let bound = shortest.map_or(MAX_BOUND, bound);
        self.in_flight = (!kept.is_empty()).then_some(bound);
        Chunk { kept, bound }
    }

    /// The chunk of the first connection was answered, or failed.
    pub(in crate::runtime::held::renew) fn landed(&mut self) {
        self.in_flight = None;
    }

    /// Whether the statement in flight may take longer than a lease of this TTL can wait.
    pub(super) fn overtakes(&self, ttl: Duration) -> bool {
        self.in_flight
            .is_some_and(|in_flight| in_flight > bound(ttl))
    }

    /// The classes that have a lease which cannot wait for the statement in flight, the shortest first.
    fn overtaking(&self) -> impl Iterator<Item = (&u32, &Moments)> {
        self.due.iter().filter(|(class, _)| {
            let mut ttls = self.ttls.range(Duration::from_millis(1 << **class)..);
            ttls.next().is_some_and(|(ttl, _)| self.overtakes(*ttl))
        })
    }

    /// When the next statement on the spare connection is due, as far as is known now.
    pub(in crate::runtime::held::renew) fn spare_next(&mut self, now: Moment) -> Option<Moment> {
        self.helper = self.spare_at(now);
        self.helper
    }

    fn spare_at(&self, now: Moment) -> Option<Moment> {
        self.in_flight?;
        if self.spare_pick(now).is_some() {
            return Some(now);
        }
        let urgent = class(self.shortest()?);
        let calm = self.is_calm();
        let shared = self
            .due
            .iter()
            .filter(|(class, _)| calm || **class == urgent);
        let full = shared.filter_map(|(_, queue)| self.full_at(queue)).min();
        let queued = self.overtaking().filter_map(|(_, queue)| queue.first());
        let mut suspects = self.suspects.iter();
        let suspect = suspects.find(|(_, id)| self.class_of(id) == urgent);
        let suspect = suspect.filter(|_| self.overtakes(self.shortest().unwrap_or(MAX_BOUND)));
        let next = [full, queued.chain(suspect).map(|(at, _)| *at).min()];
        next.into_iter().flatten().filter(|at| *at > now).min()
    }

    /// When more leases are due than fit into a request, or enough for a chunk.
    fn full_at(&self, queue: &Moments) -> Option<Moment> {
        let mut used = 0;
        let last = queue
            .iter()
            .enumerate()
            .find(|(count, (_, id))| count + 1 == self.pace.size() || !self.fits(&mut used, id));
        last.map(|(_, (at, _))| *at)
    }

    fn fits(&self, used: &mut usize, id: &Uuid) -> bool {
        let name = self.entries[id].kept.name_len();
        self.limit.admits(used, name, 0)
    }

    /// Takes out the leases to send now over the spare connection.
    pub(in crate::runtime::held::renew) fn spare_chunk(&mut self, now: Moment) -> Option<Chunk> {
        let picked = self.spare_pick(now)?;
        self.last_spare = picked.first().map_or(0, |id| self.class_of(id));
        let kept = self.take(now, picked);
        let bound = self.dial_limit();
        Some(Chunk { kept, bound })
    }

    fn spare_pick(&self, now: Moment) -> Option<Vec<Uuid>> {
        self.in_flight?;
        let shortest = self.shortest()?;
        let urgent = class(shortest);
        let mut overtaking = self.overtaking();
        if let Some((class, queue)) = overtaking.find(|(_, queue)| is_due(queue, now)) {
            return Some(self.candidates(now, *class, queue));
        }
        let calm = self.is_calm();
        let full = self
            .turns(self.last_spare)
            .filter(|(class, _)| calm || **class == urgent)
            .map(|(class, queue)| self.candidates(now, *class, queue))
            .find(|picked| self.is_full(now, picked));
        if full.is_some() {
            return full;
        }
        let suspects = self.pick_suspects(now, Some(urgent));
        (self.overtakes(shortest) && !suspects.is_empty()).then_some(suspects)
    }

    /// Whether a request of these leases would be full of leases that are due now.
    fn is_full(&self, now: Moment, picked: &[Uuid]) -> bool {
        let due =
            |id: &Uuid| matches!(self.entries[id].renewal, RenewalState::Queued(at) if at <= now);
        let mut used = 0;
        let fitting = picked.iter().take_while(|id| self.fits(&mut used, id));
        let request = &picked[..fitting.count()];
        let is_full = request.len() < picked.len() || picked.len() == self.pace.size();
        is_full && request.iter().all(due)
    }

    /// Takes out as many of `picked` as fit into one request. Skips those that have ended or are at their cap.
    fn take(&mut self, now: Moment, picked: Vec<Uuid>) -> Vec<Renewable> {
        let mut kept = Vec::new();
        let mut used = 0;
        for id in picked {
            let Some(entry) = self.entries.get(&id) else {
                continue;
            };
            if !self.fits(&mut used, &id) {
                break;
            }
            if !entry.kept.is_held_at(now) {
                self.look(now, id);
            } else if entry.kept.is_renewable(now) {
                kept.push(entry.kept.clone());
                self.queue(id, RenewalState::Sent);
            } else {
                self.queue(id, RenewalState::Never);
            }
        }
        kept
    }

    fn class_of(&self, id: &Uuid) -> u32 {
        class(self.entries[id].kept.ttl())
    }

    /// The classes, starting with the one after `last`.
    fn turns(&self, last: u32) -> impl Iterator<Item = (&u32, &Moments)> {
        let after = (Bound::Excluded(last), Bound::Unbounded);
        let before = ..=last;
        self.due.range(after).chain(self.due.range(before))
    }

    /// The due leases of the class whose turn it is.
    fn pick_next_class(&mut self, now: Moment) -> Vec<Uuid> {
        let turn = self
            .turns(self.last_class)
            .find(|(_, queue)| is_due(queue, now));
        let Some((class, queue)) = turn else {
            return Vec::new();
        };
        let (class, picked) = (*class, self.candidates(now, *class, queue));
        self.last_class = class;
        picked
    }

    /// The due leases of all classes, if they can share a statement, with leases that are due soon.
    fn all(&self, now: Moment) -> Option<Vec<Uuid>> {
        let queues = self.due.iter();
        let all: Vec<_> = queues
            .flat_map(|(class, queue)| self.candidates(now, *class, queue))
            .collect();
        let mut used = 0;
        let fits = all.len() < self.pace.size() && all.iter().all(|id| self.fits(&mut used, id));
        (fits && self.is_calm()).then_some(all)
    }

    /// The longest due first. Leases that would be lost before their answer comes are last.
    fn candidates(&self, now: Moment, class: u32, queue: &Moments) -> Vec<Uuid> {
        let size = self.pace.size();
        let soon = now + Duration::from_millis(1 << class) / 10;
        let (mut good, mut hopeless) = (Vec::new(), Vec::new());
        for (_, id) in queue.iter().take_while(|(at, _)| *at <= soon) {
            if good.len() == size {
                break;
            }
            let kept = &self.entries[id].kept;
            let needed = self.pace.needed().min(kept.ttl() / 4);
            if kept.is_held_at(now + needed) {
                good.push(*id);
            } else {
                hopeless.push(*id);
            }
        }
        good.extend(hopeless);
        good.truncate(size);
        good
    }

    /// Suspects of one class (of `class`, if given) that failed in chunks of the same size.
    fn pick_suspects(&self, now: Moment, class: Option<u32>) -> Vec<Uuid> {
        let like = |id: &Uuid| (self.entries[id].largest, self.class_of(id));
        let due = self.suspects.iter().take_while(|(at, _)| *at <= now);
        let mut due = due
            .map(|(_, id)| *id)
            .filter(|id| class.is_none_or(|class| self.class_of(id) == class))
            .peekable();
        let Some(first) = due.peek().map(like) else {
            return Vec::new();
        };
        let size = first.0.min(self.pace.size());
        let alike = due.filter(|id| like(id) == first).take(size);
        alike.collect()
    }
}
