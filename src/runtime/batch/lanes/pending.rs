//! The jobs of a lane that are in no statement now, in their order, and the flushes that wait for them.
//!
//! Nothing here reads a clock: the time is an argument.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::sync::oneshot;

use super::batch_limits::{MAX_BATCH, Room};
use super::subject;
use super::subject::SubjectInBatch;
use crate::model::{Moment, Subject};
use crate::runtime::base::backoff;
use crate::runtime::batch::head::{JobHead, Manner};
use crate::runtime::batch::job::{AnyTask, Job, Rank};
use crate::store::driver::request::RequestLimit;

/// The longest pause before a job is sent again, and before an undo is repeated. (Jitter adds up to as much again.)
pub(super) const MAX_PAUSE: Duration = Duration::from_millis(200);
pub(super) const MAX_UNDO_PAUSE: Duration = Duration::from_secs(30);
/// Jobs that are due within this time of each other are sent together; timers are no finer.
const TOGETHER: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Jobs to send now, oldest first.
    ready: VecDeque<Job>,
    /// Jobs to send again at a later moment.
    later: Vec<(Moment, Job)>,
    flushes: Vec<Flush>,
    limit: RequestLimit,
    /// How many jobs have arrived.
    arrived: u64,
    /// The last batch was a job that has to go alone.
    went_alone: bool,
}

/// A caller waits until all jobs that have arrived are done.
#[derive(Debug)]
struct Flush {
    reply: oneshot::Sender<()>,
    /// The last job to wait for.
    mark: u64,
    /// The second round: the jobs in flight may have left undos, so a flush waits twice.
    second: bool,
}

impl Pending {
    /// Requests of its batches stay within `limit`.
    pub(super) fn within(limit: RequestLimit) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    /// Answers `reply` when all jobs that have arrived are done.
    pub(super) fn flush(&mut self, reply: oneshot::Sender<()>) {
        self.flushes.push(Flush {
            reply,
            mark: self.arrived,
            second: false,
        });
    }

    /// Adds a new job. A confirm has a window, so it goes before the joins of others that wait for the same name.
    pub(super) fn arrive(&mut self, mut job: Job) {
        self.arrived += 1;
        job.head_mut().progress.number = self.arrived;
        let passes = |before: &Job| match before.rank() {
            Rank::Confirm => false,
            Rank::Join => true,
            _ => before.head().subject != job.head().subject,
        };
        let passed = match job.rank() {
            Rank::Confirm => self.ready.iter().rev().take_while(|it| passes(it)).count(),
            _ => 0,
        };
        self.ready.insert(self.ready.len() - passed, job);
    }

    /// Adds a job of the lane's own, to send after all others.
    pub(super) fn push_back(&mut self, job: Job) {
        self.ready.push_back(job);
    }

    /// Adds a job of the lane's own, to send before all others.
    pub(super) fn push_front(&mut self, job: Job) {
        self.ready.push_front(job);
    }

    /// The jobs that have to be done before the lane ends. (A vigil is none: the effect that it undoes may never
    /// arrive.)
    fn to_do(&self) -> impl Iterator<Item = &JobHead> {
        let later = self.later.iter().map(|(_, job)| job);
        let waiting = self.ready.iter().chain(later);
        let to_do = waiting
            .filter(|job| !job.is_abandoned())
            .map(|job| job.head());
        to_do.filter(|head| head.manner != Manner::Vigil)
    }

    pub(super) fn is_done(&self) -> bool {
        self.to_do().next().is_none()
    }

    /// The jobs that change something.
    pub(super) fn duties(&self) -> impl Iterator<Item = &JobHead> {
        self.to_do().filter(|head| head.manner != Manner::Look)
    }

    /// Removes the jobs to send now.
    pub(super) fn take_ready(&mut self) -> VecDeque<Job> {
        std::mem::take(&mut self.ready)
    }

    pub(super) fn has_flushes(&self) -> bool {
        !self.flushes.is_empty()
    }

    /// Whether there is no job to send now.
    pub(super) fn is_idle(&self) -> bool {
        self.ready.is_empty()
    }

    /// When the first job that was put off is due again.
    pub(super) fn wakes_at(&self) -> Option<Moment> {
        self.later.iter().map(|(at, _)| *at).min()
    }

    /// Moves the jobs that were put off long enough to those to send now.
    pub(super) fn wake(&mut self, now: Moment) {
        let (ready, later) = std::mem::take(&mut self.later)
            .into_iter()
            .partition(|(at, _)| *at <= now + TOGETHER);
        self.later = later;
        // They are older than the jobs that have arrived since.
        let arrived = std::mem::take(&mut self.ready);
        self.ready.extend(ready.into_iter().map(|(_, job)| job));
        self.ready.extend(arrived);
    }

    /// Sends the job again later: a row is locked, or the statement lost against another transaction. `jitter`, from 0
    /// to 1, is the part of the pause that is added, so that processes that fail together do not return together. The
    /// jobs that one statement left undone have the same jitter, and share the next statement too.
    pub(super) fn put_off(&mut self, mut job: Job, now: Moment, jitter: f64) {
        let longest = if job.head().manner == Manner::Vigil {
            MAX_UNDO_PAUSE
        } else {
            MAX_PAUSE
        };
        let put_offs = &mut job.head_mut().progress.put_offs;
        *put_offs += 1;
        let pause = backoff::pause(*put_offs, longest).mul_f64(1.0 + jitter);
        self.later.push((now + pause, job));
    }

    /// When the jobs that were put off come back.
    #[cfg(test)]
    pub(super) fn moments(&self) -> std::collections::BTreeSet<Moment> {
        self.later.iter().map(|(at, _)| *at).collect()
    }

    /// Removes the jobs whose time is over, and returns them. The undo of an acquire that may have happened takes the
    /// acquire's place, so that later jobs on the name find what the undo leaves.
    pub(super) fn expire(&mut self, now: Moment) -> Vec<Job> {
        let mut expired = Vec::new();
        for job in std::mem::take(&mut self.ready) {
            if job.is_abandoned() {
                continue;
            }
            if job.head().progress.give_up <= now {
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
        let moments = self.ready.iter().map(|job| job.head().progress.give_up);
        moments.min()
    }

    /// The next batch, oldest first: at most one job per name or record (and the jobs that share its answer), so that
    /// the jobs on it keep their order and never meet in a statement.
    ///
    /// A job that has to go alone (see [`Progress::company`](crate::runtime::batch::head::Progress)) takes turns with
    /// the other jobs. Of several such jobs, the one under which the connection broke least often goes first, so the
    /// guilty job comes last.
    pub(super) fn pick(&mut self, now: Moment) -> Vec<Job> {
        let breaks = |job: &dyn AnyTask| {
            let progress = job.head().progress;
            (progress.company == 1).then_some(progress.breaks)
        };
        let least = self.ready.iter().filter_map(|job| breaks(&**job)).min();
        let has_others = self.ready.iter().any(|job| breaks(&**job).is_none());
        let others_turn = self.went_alone && has_others;
        let makes_way =
            |job: &dyn AnyTask| breaks(job).is_some() && (others_turn || breaks(job) > least);
        let mut batch = self.pick_but(now, makes_way);
        if batch.is_empty() {
            // Nothing else can go: the other jobs wait for jobs that made way for them, on the same subjects. These go
            // now.
            batch = self.pick_but(now, |_| false);
        }
        self.went_alone = batch.iter().any(|job| breaks(&**job).is_some());
        batch
    }

    fn pick_but(&mut self, now: Moment, makes_way: impl Fn(&dyn AnyTask) -> bool) -> Vec<Job> {
        let mut batch: Vec<Job> = Vec::new();
        let mut room = Room::of(self.limit);
        let expected = self.ready.len().min(MAX_BATCH);
        let mut subjects: HashMap<Subject, SubjectInBatch> = HashMap::with_capacity(expected);
        let mut company = usize::MAX;
        let put_off = subject::put_off(&self.later);
        for mut job in std::mem::take(&mut self.ready) {
            if job.is_abandoned() {
                continue;
            }
            // Its caller has gone, and it was sent: it is undone.
            if job.is_closed()
                && let Some(undo) = job.undo(now)
            {
                job = undo;
            }
            if let Some(at) = subject::ordered(&*job).and_then(|key| put_off.get(key)) {
                self.later.push((*at, job));
                continue;
            }
            let its_company = job.head().progress.company;
            let mut admit = |job: &dyn AnyTask| {
                !makes_way(job) && room.jobs < company.min(its_company) && room.take(job)
            };
            let picked = match job.head().subject.clone() {
                None => admit(&*job),
                Some(subject) => {
                    let of_subject = subjects.entry(subject).or_default();
                    let joins = of_subject.joins(&*job, &batch);
                    let picked = joins || (of_subject.admits(&*job) && admit(&*job));
                    of_subject.pass(&*job, picked.then_some(batch.len()));
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

    /// Answers the flushes that have nothing left to wait for.
    pub(super) fn answer_flushes(&mut self) {
        if self.flushes.is_empty() {
            return;
        }
        let later = self.later.iter().map(|(_, job)| job);
        let heads = self.ready.iter().chain(later).map(|job| job.head());
        // A repeated undo waits for an effect that may never arrive.
        let waiting = heads.filter(|head| head.manner != Manner::Vigil);
        let numbers = waiting.map(|head| head.progress.number);
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
