//! The operations of a lane that are in no statement just now, in their order, and the flushes that wait for them.
//!
//! Nothing here reads a clock: every method that needs the time is told it.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::sync::oneshot;

use super::records::place;
use super::undo;
use crate::model::{Moment, Subject};
use crate::runtime::backoff;
use crate::runtime::op::Op;
use crate::store::RequestLimit;

/// The most operations in one statement.
pub(super) const MAX_BATCH: usize = 256;
/// The outcomes in one statement have little more than so many bytes: servers limit a statement (MariaDB to 16 MiB).
pub(super) const MAX_BYTES: usize = 1 << 20;
/// The longest pause before an operation is sent again, and before an undo is repeated. (Up to as much comes on top by chance.)
pub(super) const MAX_PAUSE: Duration = Duration::from_millis(200);
pub(super) const MAX_UNDO_PAUSE: Duration = Duration::from_secs(30);
/// What is to be sent again within so short a time is sent together; timers are no finer.
const TOGETHER: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(super) struct Pending {
    /// To be sent, oldest first.
    ready: VecDeque<Op>,
    /// Operations that wait for a moment before they are sent again.
    later: Vec<(Moment, Op)>,
    flushes: Vec<Flush>,
    limit: RequestLimit,
    /// How many operations have arrived.
    arrived: u64,
    /// The last batch was an operation that may go alone only.
    went_alone: bool,
}

/// A caller waits until everything that has arrived is done.
#[derive(Debug)]
struct Flush {
    reply: oneshot::Sender<()>,
    /// The last operation that it waits for.
    mark: u64,
    /// What was in flight may have left something to undo: everything is waited for twice.
    second: bool,
}

impl Pending {
    /// Its batches need requests within `limit`.
    pub(super) fn within(limit: RequestLimit) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    /// A new operation.
    pub(super) fn arrive(&mut self, mut op: Op) {
        if let Op::Flush(reply) = op {
            self.flushes.push(Flush {
                reply,
                mark: self.arrived,
                second: false,
            });
            return;
        }
        self.arrived += 1;
        if let Some(fate) = op.fate_mut() {
            fate.number = self.arrived;
        }
        self.ready.push_back(op);
    }

    /// What has not arrived from outside, and is to be sent after everything else.
    pub(super) fn push_back(&mut self, op: Op) {
        self.ready.push_back(op);
    }

    /// What is to be sent before everything else.
    pub(super) fn push_front(&mut self, op: Op) {
        self.ready.push_front(op);
    }

    /// Removes what is to be sent now.
    pub(super) fn take_ready(&mut self) -> VecDeque<Op> {
        std::mem::take(&mut self.ready)
    }

    /// Whether nothing is to be sent now.
    pub(super) fn is_idle(&self) -> bool {
        self.ready.is_empty()
    }

    /// When the first of those that were put off is to be sent again.
    pub(super) fn wakes_at(&self) -> Option<Moment> {
        self.later.iter().map(|(at, _)| *at).min()
    }

    /// Those that were put off long enough are to be sent now.
    pub(super) fn wake(&mut self, now: Moment) {
        let (ready, later) = std::mem::take(&mut self.later)
            .into_iter()
            .partition(|(at, _)| *at <= now + TOGETHER);
        self.later = later;
        // They came before what has arrived since.
        let arrived = std::mem::take(&mut self.ready);
        self.ready.extend(ready.into_iter().map(|(_, op)| op));
        self.ready.extend(arrived);
    }

    /// Not now: a row is locked, or the statement lost against another transaction. `jitter` is from 0 to 1: the part of the
    /// pause that comes on top, so that what fails together in several processes does not come back together. What one
    /// statement has left undone has the same one, and shares the next statement, too.
    pub(super) fn put_off(&mut self, mut op: Op, now: Moment, jitter: f64) {
        let longest = if op.is_repeated_undo() {
            MAX_UNDO_PAUSE
        } else {
            MAX_PAUSE
        };
        let tries = op.fate_mut().map_or(0, |fate| {
            fate.tries += 1;
            fate.tries
        });
        let pause = backoff::pause(tries, longest).mul_f64(1.0 + jitter);
        self.later.push((now + pause, op));
    }

    /// Removes the operations whose patience has ended, and returns them. The undo of an acquire that may have happened
    /// takes its place, so that the operations on its name that come after it find what it leaves.
    pub(super) fn expire(&mut self, now: Moment) -> Vec<Op> {
        let mut expired = Vec::new();
        for op in std::mem::take(&mut self.ready) {
            if op.is_abandoned() {
                continue;
            }
            if op.fate().is_some_and(|fate| fate.give_up <= now) {
                self.ready.extend(undo::of(&op, now));
                expired.push(op);
            } else {
                self.ready.push_back(op);
            }
        }
        expired
    }

    /// When the patience of the next operation ends.
    pub(super) fn gives_up_at(&self) -> Option<Moment> {
        let fates = self.ready.iter().filter_map(Op::fate);
        fates.map(|fate| fate.give_up).min()
    }

    /// The next batch, oldest first: at most one operation per name or record (and those that share it), so that the
    /// operations on it keep their order and never meet in a statement.
    ///
    /// What may go alone only (see [`Fate::company`](crate::runtime::op::Fate)) takes turns with all else, and the one under
    /// which the connection broke least often goes first: the guilty one comes last.
    pub(super) fn pick(&mut self, now: Moment) -> Vec<Op> {
        let breaks = |op: &Op| {
            op.fate()
                .filter(|fate| fate.company == 1)
                .map(|fate| fate.breaks)
        };
        let least = self.ready.iter().filter_map(breaks).min();
        let others_turn = self.went_alone && self.ready.iter().any(|op| breaks(op).is_none());
        let makes_way = |op: &Op| breaks(op).is_some() && (others_turn || breaks(op) > least);
        let mut batch = self.pick_but(now, makes_way);
        if batch.is_empty() {
            // What is left waits for what has made way.
            batch = self.pick_but(now, |_| false);
        }
        self.went_alone = batch.iter().any(|op| breaks(op).is_some());
        batch
    }

    fn pick_but(&mut self, now: Moment, makes_way: impl Fn(&Op) -> bool) -> Vec<Op> {
        let mut batch: Vec<Op> = Vec::new();
        let mut room = Room::of(self.limit);
        let mut places: HashMap<Subject, place::Place> = HashMap::new();
        let mut company = usize::MAX;
        let put_off = place::put_off(&self.later);
        for op in std::mem::take(&mut self.ready) {
            if op.is_abandoned() {
                continue;
            }
            let op = match &op {
                Op::Take(take) if take.reply.is_closed() => undo::of(&op, now).unwrap_or(op),
                _ => op,
            };
            if let Some(at) = place::ordered(&op).and_then(|key| put_off.get(key)) {
                self.later.push((*at, op));
                continue;
            }
            let its_company = op.fate().map_or(usize::MAX, |fate| fate.company);
            let mut admit = |op: &Op| {
                !makes_way(op) && room.operations < company.min(its_company) && room.take(op)
            };
            let picked = match op.subject() {
                None => admit(&op),
                Some(subject) => {
                    let place = places.entry(subject).or_default();
                    let picked = place.joins(&op, &batch) || (place.admits(&op) && admit(&op));
                    place.pass(&op, picked.then_some(batch.len()));
                    picked
                }
            };
            if picked {
                company = company.min(its_company);
                batch.push(op);
            } else {
                self.ready.push_back(op);
            }
        }
        batch
    }

    /// Answers the flushes that have nothing to wait for any more.
    pub(super) fn answer_flushes(&mut self) {
        if self.flushes.is_empty() {
            return;
        }
        let later = self.later.iter().map(|(_, op)| op);
        let waiting = self.ready.iter().chain(later);
        // A repeated undo waits for what may never come.
        let waiting = waiting.filter(|op| !op.is_repeated_undo());
        let oldest = waiting
            .filter_map(|op| Some(op.fate()?.number))
            .min()
            .unwrap_or(u64::MAX);
        for mut flush in std::mem::take(&mut self.flushes) {
            if oldest > flush.mark && !flush.second {
                flush.mark = self.arrived;
                flush.second = true;
            }
            if oldest > flush.mark {
                let _ = flush.reply.send(());
            } else {
                self.flushes.push(flush);
            }
        }
    }
}

/// What still fits into a batch.
#[derive(Debug)]
struct Room {
    limit: RequestLimit,
    operations: usize,
    /// Bytes of the statements that acquire and release.
    takes: usize,
    releases: usize,
    /// Bytes of outcomes that are written.
    written: usize,
    /// Bytes of outcomes that are read, as far as they are known to be large.
    read: usize,
}

impl Room {
    fn of(limit: RequestLimit) -> Self {
        Self {
            limit,
            operations: 0,
            takes: 0,
            releases: 0,
            written: 0,
            read: 0,
        }
    }

    fn take(&mut self, op: &Op) -> bool {
        if self.operations == MAX_BATCH {
            return false;
        }
        let in_one_piece = match op {
            Op::Take(op) => {
                let (name, holder) = (op.ask.name.as_bytes().len(), op.ask.holder.len());
                self.limit.admits(&mut self.takes, name, holder)
            }
            Op::Release(op) => {
                let name = op.ask.name.as_bytes().len();
                self.limit.admits(&mut self.releases, name, 0)
            }
            _ => true,
        };
        in_one_piece && self.take_outcome(op)
    }

    fn take_outcome(&mut self, op: &Op) -> bool {
        let size = place::size(op);
        let bytes = if place::only_looks(op) {
            &mut self.read
        } else {
            &mut self.written
        };
        let fits = size == 0 || *bytes <= MAX_BYTES;
        if fits {
            self.operations += 1;
            *bytes += size;
        }
        fits
    }
}

#[cfg(test)]
#[path = "pending_tests.rs"]
mod tests;
