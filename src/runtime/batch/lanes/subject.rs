//! Which jobs on one subject may be in a batch together.

use std::collections::HashMap;

use crate::model::{Moment, Subject};
use crate::runtime::batch::job::{AnyTask, Job, Rank};

/// The jobs of a batch on one subject, while the batch is picked. A read and a claim of the same record may go
/// together: neither waits for the other, because each caller awaits its own. All other jobs keep their order.
#[derive(Debug, Default)]
pub(super) struct SubjectInBatch {
    /// The index in the batch.
    read: Option<usize>,
    claim: Option<usize>,
    /// No more jobs on the subject may join, because one that keeps its order was picked or left out.
    closed: bool,
}

impl SubjectInBatch {
    fn of(&mut self, job: &dyn AnyTask) -> Option<&mut Option<usize>> {
        match job.rank() {
            Rank::Read | Rank::LargeRead => Some(&mut self.read),
            Rank::Claim => Some(&mut self.claim),
            _ => None,
        }
    }

    /// Whether the answer to a job in the batch also answers this job.
    pub(super) fn joins(&mut self, job: &dyn AnyTask, batch: &[Job]) -> bool {
        let first = self.of(job).and_then(|index| batch.get((*index)?));
        !self.closed && first.is_some_and(|first| job.shares(&**first))
    }

    pub(super) fn admits(&mut self, job: &dyn AnyTask) -> bool {
        let is_first = match self.of(job) {
            Some(index) => index.is_none(),
            None => self.read.is_none() && self.claim.is_none(),
        };
        is_first && !self.closed
    }

    /// Records that the job is in the batch, at index `picked`, or was left out.
    pub(super) fn pass(&mut self, job: &dyn AnyTask, picked: Option<usize>) {
        match (self.of(job), picked) {
            (Some(index), Some(_)) => *index = index.or(picked),
            // A claim that saw another attempt, or a read larger than the first.
            (Some(index), None) if index.is_some() => {}
            _ => self.closed = true,
        }
    }
}

/// The record of a job that belongs to an attempt: such jobs keep their order.
pub(super) fn ordered(job: &dyn AnyTask) -> Option<&Subject> {
    let head = job.head();
    head.subject.as_ref().filter(|_| head.in_order)
}

/// The records with a job that was put off, and until when.
pub(super) fn put_off(later: &[(Moment, Job)]) -> HashMap<Subject, Moment> {
    let of = |(at, job): &(Moment, Job)| Some((ordered(&**job)?.clone(), *at));
    later.iter().filter_map(of).collect()
}
