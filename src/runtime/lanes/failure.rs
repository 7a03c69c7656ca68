//! What becomes of jobs whose statement failed, and of those that are given up.

use super::Lane;
use crate::model::{Error, FaultKind, Moment};
use crate::runtime::head::Manner;
use crate::runtime::job::Job;
use crate::store::fault::Fault;

/// How often the connection has to break under a job before that may be the job's doing.
const SUSPECT_FROM: u32 = 2;

/// The connection broke under a statement with all of them.
fn isolate(jobs: &mut [Job], suspect_from: u32) {
    let together = jobs.len();
    for job in jobs {
        job.head_mut().fate.broke(together, suspect_from);
    }
}

impl Lane {
    /// What becomes of a statement that failed. What was refused is sent in two statements instead, so that the guilty job
    /// is found; those that shared an answer are sent with one of the next.
    pub(super) fn broke_off(
        &mut self,
        jobs: Vec<Job>,
        mut followers: Vec<Job>,
        fault: Fault,
    ) -> [Vec<Job>; 2] {
        if fault.kind == FaultKind::Disconnected {
            // It would have broken under each of them.
            for job in &mut followers {
                job.head_mut().fate.broke(jobs.len(), SUSPECT_FROM);
            }
        }
        self.not_sent(followers);
        let mut first = self.failed(jobs, fault);
        let second = first.split_off(first.len() / 2);
        [first, second]
    }

    /// What becomes of jobs whose statement failed. Returns those that are to be sent again in smaller
    /// statements.
    pub(super) fn failed(&mut self, mut jobs: Vec<Job>, fault: Fault) -> Vec<Job> {
        let kind = fault.kind;
        tracing::debug!(target = %self.target, error = %fault, ?kind, count = jobs.len(), "statement failed");
        for job in &mut jobs {
            job.head_mut().fate.sent = true;
        }
        match kind {
            FaultKind::Disconnected => {
                self.strike(fault);
                for job in &mut jobs {
                    job.head_mut().doubt();
                }
                let alone = jobs.len() == 1;
                isolate(&mut jobs, SUSPECT_FROM);
                // A forced release names no grant: sent again, it might free the next holder.
                let is_order = |job: &Job| job.head().manner == Manner::Order;
                let (orders, jobs): (Vec<_>, Vec<_>) = jobs.into_iter().partition(is_order);
                for job in orders {
                    let error = self.gave_up(&job);
                    job.fail(error);
                }
                let (guilty, jobs): (Vec<_>, Vec<_>) = jobs
                    .into_iter()
                    .partition(|job| alone && job.head().fate.breaks >= SUSPECT_FROM);
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
        for job in jobs {
            self.put_off(job.again());
        }
    }

    /// Not now: a row is locked, or the statement lost against another transaction.
    pub(super) fn put_off(&mut self, job: Job) {
        self.pending.put_off(job, Moment::now(), self.jitter);
    }

    /// The error for a job that is given up.
    pub(super) fn gave_up(&self, job: &Job) -> Error {
        let head = job.head();
        match &head.subject {
            Some(on) if head.fate.in_doubt() => Error::OutcomeUnknown {
                doing: head.doing,
                on: on.clone(),
                target: self.target.to_string(),
                detail: self.trouble.detail(),
            },
            _ => self.trouble.error(head.doing, &self.target),
        }
    }

    /// Acquires that a server refused because it takes no writes are answered at once: a caller who may wait tries again.
    /// What was sent is undone all the same: it may have been granted before the server took no writes any more (MySQL
    /// makes missing rows in a statement of its own, and a late grant is confirmed in another one). Returns the other
    /// jobs, and what an earlier sending may have done.
    pub(super) fn refuse_takes(
        &mut self,
        jobs: impl IntoIterator<Item = Job>,
        fault: &Fault,
    ) -> Vec<Job> {
        let mut others = Vec::new();
        for job in jobs {
            let head = job.head();
            if head.manner != Manner::Acquire || head.fate.in_doubt() {
                others.push(job);
                continue;
            }
            let error = fault.clone().into_error(head.doing, &self.target);
            // Nobody waits for it: it may be long until the server takes writes again, and mostly nothing was granted.
            if let Some(mut late) = job.undo(Moment::now()) {
                late.head_mut().repeat();
                self.pending.push_back(late);
            }
            job.fail(error);
        }
        others
    }

    /// The same for those that wait for a statement: they need not wait for what is before them.
    pub(super) fn refuse_waiting_takes(&mut self, fault: &Fault) {
        let ready = self.pending.take_ready();
        let others = self.refuse_takes(ready, fault);
        self.not_sent(others);
    }

    /// Answers with an error. An acquire that may have happened is undone.
    pub(super) fn fail(&mut self, job: Job, error: Error) {
        if let Some(undo) = job.undo(Moment::now()) {
            self.pending.push_back(undo);
        }
        job.fail(error);
    }
}
