//! Which jobs on one subject may be in a batch together.

use std::collections::HashMap;

use crate::model::{Moment, Subject};
use crate::runtime::job::{AnyTask, Job, Turn};

/// What a batch has that is about one subject, while the batch is picked. A read and a claim of the same record may be in it
/// together: they do not wait for each other, because each caller awaits its own. All other jobs keep their order.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// Where in the batch.
    read: Option<usize>,
    claim: Option<usize>,
    /// Nothing more fits in front of what is in the batch, or was left out.
    closed: bool,
}

impl Place {
    fn of(&mut self, job: &dyn AnyTask) -> Option<&mut Option<usize>> {
        match job.turn() {
            Turn::Read | Turn::LargeRead => Some(&mut self.read),
            Turn::Claim => Some(&mut self.claim),
            _ => None,
        }
    }

    /// Whether the answer to one in the batch does for this one, too.
    pub(super) fn joins(&mut self, job: &dyn AnyTask, batch: &[Job]) -> bool {
        let first = self.of(job).and_then(|place| batch.get((*place)?));
        !self.closed && first.is_some_and(|first| job.shares(&**first))
    }

    pub(super) fn admits(&mut self, job: &dyn AnyTask) -> bool {
        let is_first = match self.of(job) {
            Some(place) => place.is_none(),
            None => self.read.is_none() && self.claim.is_none(),
        };
        is_first && !self.closed
    }

    /// The job is in the batch, at that place; or it is not.
    pub(super) fn pass(&mut self, job: &dyn AnyTask, picked: Option<usize>) {
        match (self.of(job), picked) {
            (Some(place), Some(_)) => *place = place.or(picked),
            // One by something else that was seen, or larger than the first.
            (Some(place), None) if place.is_some() => {}
            _ => self.closed = true,
        }
    }
}

/// The record about which an attempt says something, in the order in which it does.
pub(super) fn ordered(job: &dyn AnyTask) -> Option<&Subject> {
    let head = job.head();
    head.subject.as_ref().filter(|_| head.in_order)
}

/// The records about which something is put off, and until when.
pub(super) fn put_off(later: &[(Moment, Job)]) -> HashMap<Subject, Moment> {
    let of = |(at, job): &(Moment, Job)| Some((ordered(&**job)?.clone(), *at));
    later.iter().filter_map(of).collect()
}
