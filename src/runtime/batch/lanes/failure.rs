//! What happens to jobs whose statement failed, and to jobs that are given up.

use super::Lane;
use crate::model::{Error, FaultKind, Moment};
use crate::runtime::batch::head::Manner;
use crate::runtime::batch::job::{AnyTask, Job};
use crate::store::verbs::fault::Fault;

/// A job may be what breaks the connection once it broke this often under the job.
const SUSPECT_FROM: u32 = 2;

/// The connection broke under a statement of all these jobs.
fn isolate(jobs: &mut [Job], suspect_from: u32) {
    let together = jobs.len();
    for job in jobs {
        job.head_mut().progress.broke(together, suspect_from);
    }
}

impl Lane {
    /// Settles a statement that failed. A refused statement is sent again as two, which isolates the guilty job. Jobs
    /// that shared an answer are sent in one of the next statements.
    pub(super) fn broke_off(
        &mut self,
        jobs: Vec<Job>,
        mut followers: Vec<Job>,
        fault: Fault,
    ) -> [Vec<Job>; 2] {
        if fault.kind == FaultKind::Disconnected && !self.link.was_cut() {
            // The connection would have broken under each of them.
            for job in &mut followers {
                job.head_mut().progress.broke(jobs.len(), SUSPECT_FROM);
            }
        }
        self.not_sent(followers);
        let mut first = self.failed(jobs, fault);
        let second = first.split_off(first.len() / 2);
        [first, second]
    }

    /// Settles the jobs of a statement that failed. Returns those to send again in smaller statements.
    pub(super) fn failed(&mut self, mut jobs: Vec<Job>, fault: Fault) -> Vec<Job> {
        let kind = fault.kind;
        tracing::debug!(target = %self.target, error = %fault, ?kind, count = jobs.len(), "statement failed");
        for job in &mut jobs {
            job.head_mut().progress.sent = true;
        }
        match kind {
            FaultKind::Disconnected => {
                for job in &mut jobs {
                    job.head_mut().doubt();
                }
                let alone = jobs.len() == 1;
                // (A renewal that cuts a statement off is no fault of the server's, nor of a job.)
                if !self.link.was_cut() {
                    self.strike(fault);
                    isolate(&mut jobs, SUSPECT_FROM);
                }
                // A forced release names no grant: a second sending might free the next holder.
                let is_order = |job: &Job| job.head().manner == Manner::Order;
                let (orders, jobs): (Vec<_>, Vec<_>) = jobs.into_iter().partition(is_order);
                for job in orders {
                    let error = self.gave_up(&job);
                    job.fail(error);
                }
                let (guilty, jobs): (Vec<_>, Vec<_>) = jobs
                    .into_iter()
                    .partition(|job| alone && job.head().progress.breaks >= SUSPECT_FROM);
                self.not_sent(jobs);
                self.put_off_all(guilty);
            }
            FaultKind::TooLarge if jobs.len() > 1 => {
                isolate(&mut jobs, 1);
                self.not_sent(jobs);
            }
            FaultKind::ReadOnly => {
                let jobs = self.refuse_takes(jobs, &fault);
                self.refuse_waiting_takes(&fault);
                self.read_only = Some(fault.clone());
                self.strike(fault);
                self.put_off_all(jobs);
            }
            _ if kind.may_be_sent_again() => {
                self.trouble.refused(fault);
                self.refused = true;
                self.put_off_all(jobs);
            }
            _ if jobs.len() > 1 => return jobs,
            _ => {
                for job in jobs {
                    let error = fault.clone().into_error(job.head().doing, &self.target);
                    self.fail(job, error);
                }
            }
        }
        Vec::new()
    }

    pub(super) fn put_off_all(&mut self, jobs: Vec<Job>) {
        self.put_off(jobs.into_iter().map(AnyTask::again));
    }

    /// Sends jobs again later: a row is locked, or the statement lost against another transaction. They come back
    /// together.
    pub(super) fn put_off(&mut self, jobs: impl IntoIterator<Item = Job>) {
        let now = Moment::now();
        for job in jobs {
            self.pending.put_off(job, now, self.jitter);
        }
    }

    /// The error for a job that is given up.
    pub(super) fn gave_up(&self, job: &Job) -> Error {
        let head = job.head();
        match &head.subject {
            Some(on) if head.progress.in_doubt() => Error::OutcomeUnknown {
                doing: head.doing,
                on: on.clone(),
                target: self.target.to_string(),
                detail: self.trouble.detail(),
            },
            _ => self.trouble.error(head.doing, &self.target),
        }
    }

    /// Fails acquires that a read-only server refused: a caller that may wait asks again. Acquires that were sent are
    /// undone all the same: they may have been granted before the server became read-only (MySQL makes missing rows in
    /// a statement of its own, and a late grant is confirmed by another one). Returns the other jobs, and the acquires
    /// that an earlier sending may have granted.
    pub(super) fn refuse_takes(
        &mut self,
        jobs: impl IntoIterator<Item = Job>,
        fault: &Fault,
    ) -> Vec<Job> {
        let mut others = Vec::new();
        for job in jobs {
            let head = job.head();
            if head.manner != Manner::Acquire || head.progress.in_doubt() {
                others.push(job);
                continue;
            }
            let error = fault.clone().into_error(head.doing, &self.target);
            // No flush waits for it: the server may stay read-only for long, and most such acquires were not granted.
            if let Some(mut late) = job.undo(Moment::now()) {
                late.head_mut().repeat();
                self.pending.push_back(late);
            }
            job.fail(error);
        }
        others
    }

    /// [`Self::refuse_takes`] for waiting jobs: they need not wait for the jobs before them.
    pub(super) fn refuse_waiting_takes(&mut self, fault: &Fault) {
        let ready = self.pending.take_ready();
        let others = self.refuse_takes(ready, fault);
        self.not_sent(others);
    }

    /// Fails the job with an error. Undoes an acquire that may have happened.
    pub(super) fn fail(&mut self, job: Job, error: Error) {
        if let Some(undo) = job.undo(Moment::now()) {
            self.pending.push_back(undo);
        }
        job.fail(error);
    }
}
