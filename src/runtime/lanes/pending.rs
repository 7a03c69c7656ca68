//! The jobs of a lane that are in no statement just now, in their order, and the flushes that wait for them.
//!
//! Nothing here reads a clock: every method that needs the time is told it.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::sync::oneshot;

use super::place::{self, Place};
use super::room::Room;
use crate::model::{Moment, Subject};
use crate::runtime::backoff;
use crate::runtime::head::{Head, Manner};
use crate::runtime::job::{AnyTask, Job};
use crate::store::RequestLimit;

/// The longest pause before a job is sent again, and before an undo is repeated. (Up to as much comes on top by chance.)
pub(super) const MAX_PAUSE: Duration = Duration::from_millis(200);
pub(super) const MAX_UNDO_PAUSE: Duration = Duration::from_secs(30);
/// What is to be sent again within so short a time is sent together; timers are no finer.
const TOGETHER: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(super) struct Pending {
    /// To be sent, oldest first.
    ready: VecDeque<Job>,
    /// Jobs that wait for a moment before they are sent again.
    later: Vec<(Moment, Job)>,
    flushes: Vec<Flush>,
    limit: RequestLimit,
    /// How many jobs have arrived.
    arrived: u64,
    /// The last batch was a job that may go alone only.
    went_alone: bool,
}

/// A caller waits until everything that has arrived is done.
#[derive(Debug)]
struct Flush {
    reply: oneshot::Sender<()>,
    /// The last job that it waits for.
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

    /// A caller waits until everything that has arrived is done.
    pub(super) fn flush(&mut self, reply: oneshot::Sender<()>) {
        self.flushes.push(Flush {
            reply,
            mark: self.arrived,
            second: false,
        });
    }

    /// A new job.
    pub(super) fn arrive(&mut self, mut job: Job) {
        self.arrived += 1;
        job.head_mut().fate.number = self.arrived;
        self.ready.push_back(job);
    }

    /// What has not arrived from outside, and is to be sent after everything else.
    pub(super) fn push_back(&mut self, job: Job) {
        self.ready.push_back(job);
    }

    /// What is to be sent before everything else.
    pub(super) fn push_front(&mut self, job: Job) {
        self.ready.push_front(job);
    }

    /// What has to be done before the lane ends. (What a vigil looks for may never come.)
    pub(super) fn duties(&self) -> impl Iterator<Item = &Head> {
        let later = self.later.iter().map(|(_, job)| job);
        let waiting = self.ready.iter().chain(later);
        let duties = waiting
            .filter(|job| !job.is_abandoned())
            .map(|job| job.head());
        duties.filter(|head| head.manner != Manner::Vigil)
    }

    pub(super) fn has_no_duty(&self) -> bool {
        self.duties().next().is_none()
    }

    /// Removes everything that is not done.
    pub(super) fn leave(&mut self) -> Vec<Job> {
        let later = std::mem::take(&mut self.later).into_iter();
        let mut left: Vec<Job> = std::mem::take(&mut self.ready).into();
        left.extend(later.map(|(_, job)| job));
        left.retain(|job| !job.is_abandoned());
        self.answer_flushes();
        left
    }

    /// Removes what is to be sent now.
    pub(super) fn take_ready(&mut self) -> VecDeque<Job> {
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
        self.ready.extend(ready.into_iter().map(|(_, job)| job));
        self.ready.extend(arrived);
    }

    /// Not now: a row is locked, or the statement lost against another transaction. `jitter` is from 0 to 1: the part of the
    /// pause that comes on top, so that what fails together in several processes does not come back together. What one
    /// statement has left undone has the same one, and shares the next statement, too.
    pub(super) fn put_off(&mut self, mut job: Job, now: Moment, jitter: f64) {
        let longest = if job.head().manner == Manner::Vigil {
            MAX_UNDO_PAUSE
        } else {
            MAX_PAUSE
        };
        let put_offs = &mut job.head_mut().fate.put_offs;
        *put_offs += 1;
        let pause = backoff::pause(*put_offs, longest).mul_f64(1.0 + jitter);
        self.later.push((now + pause, job));
    }

    /// Removes the jobs whose time is over, and returns them. The undo of an acquire that may have happened
    /// takes its place, so that the jobs on its name that come after it find what it leaves.
    pub(super) fn expire(&mut self, now: Moment) -> Vec<Job> {
        let mut expired = Vec::new();
        for job in std::mem::take(&mut self.ready) {
            if job.is_abandoned() {
                continue;
            }
            if job.head().fate.give_up <= now {
                self.ready.extend(job.undo(now));
                expired.push(job);
            } else {
                self.ready.push_back(job);
            }
        }
        expired
    }

    /// When the time of the next job is over.
    pub(super) fn gives_up_at(&self) -> Option<Moment> {
        let moments = self.ready.iter().map(|job| job.head().fate.give_up);
        moments.min()
    }

    /// The next batch, oldest first: at most one job per name or record (and those that share it), so that the
    /// jobs on it keep their order and never meet in a statement.
    ///
    /// What may go alone only (see [`Fate::company`](crate::runtime::head::Fate)) takes turns with all else, and the one under
    /// which the connection broke least often goes first: the guilty one comes last.
    pub(super) fn pick(&mut self, now: Moment) -> Vec<Job> {
        let breaks = |job: &dyn AnyTask| {
            let fate = job.head().fate;
            (fate.company == 1).then_some(fate.breaks)
        };
        let least = self.ready.iter().filter_map(|job| breaks(&**job)).min();
        let has_others = self.ready.iter().any(|job| breaks(&**job).is_none());
        let others_turn = self.went_alone && has_others;
        let makes_way =
            |job: &dyn AnyTask| breaks(job).is_some() && (others_turn || breaks(job) > least);
        let mut batch = self.pick_but(now, makes_way);
        if batch.is_empty() {
            // What is left waits for what has made way.
            batch = self.pick_but(now, |_| false);
        }
        self.went_alone = batch.iter().any(|job| breaks(&**job).is_some());
        batch
    }

    fn pick_but(&mut self, now: Moment, makes_way: impl Fn(&dyn AnyTask) -> bool) -> Vec<Job> {
        let mut batch: Vec<Job> = Vec::new();
        let mut room = Room::of(self.limit);
        let mut places: HashMap<Subject, Place> = HashMap::new();
        let mut company = usize::MAX;
        let put_off = place::put_off(&self.later);
        for mut job in std::mem::take(&mut self.ready) {
            if job.is_abandoned() {
                continue;
            }
            // Its caller has gone, and it was sent.
            if job.is_closed()
                && let Some(undo) = job.undo(now)
            {
                job = undo;
            }
            if let Some(at) = place::ordered(&*job).and_then(|key| put_off.get(key)) {
                self.later.push((*at, job));
                continue;
            }
            let its_company = job.head().fate.company;
            let mut admit = |job: &dyn AnyTask| {
                !makes_way(job) && room.jobs < company.min(its_company) && room.take(job)
            };
            let picked = match job.head().subject.clone() {
                None => admit(&*job),
                Some(subject) => {
                    let place = places.entry(subject).or_default();
                    let joins = place.joins(&*job, &batch);
                    let picked = joins || (place.admits(&*job) && admit(&*job));
                    place.pass(&*job, picked.then_some(batch.len()));
                    picked
                }
            };
            if picked {
                company = company.min(its_company);
                batch.push(job);
            } else {
                self.ready.push_back(job);
            }
        }
        batch
    }

    /// Answers the flushes that have nothing to wait for any more.
    pub(super) fn answer_flushes(&mut self) {
        if self.flushes.is_empty() {
            return;
        }
        let later = self.later.iter().map(|(_, job)| job);
        let heads = self.ready.iter().chain(later).map(|job| job.head());
        // A repeated undo waits for what may never come.
        let waiting = heads.filter(|head| head.manner != Manner::Vigil);
        let numbers = waiting.map(|head| head.fate.number);
        let oldest = numbers.min().unwrap_or(u64::MAX);
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

#[cfg(test)]
#[path = "pending_tests.rs"]
mod tests;
