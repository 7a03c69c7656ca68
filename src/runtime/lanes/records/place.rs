//! Which operations on records go into a batch: what shares an answer, what keeps its order, how large it is.

use std::collections::HashMap;

use crate::model::{Moment, RecordKey};
use crate::runtime::op::Op;
use crate::runtime::record::{RecordOp, RecordWork};

/// Whether one answer does for both. (A claim that was sent before may have happened: it needs an answer of its own.)
pub(super) fn shares(op: &Op, first: &Op) -> bool {
    match (op, first) {
        (Op::Record(op), Op::Record(first)) => {
            (!op.fate.sent || op.work.only_looks()) && op.work.shares_with(&first.work)
        }
        _ => false,
    }
}

/// What a batch has that is about one subject, while the batch is picked. A read and a claim of the same record may be in it
/// together: they do not wait for each other, because each caller awaits its own. All other operations keep their order.
#[derive(Debug, Default)]
pub(in crate::runtime::lanes) struct Place {
    /// Where in the batch.
    read: Option<usize>,
    claim: Option<usize>,
    /// Nothing more fits in front of what is in the batch, or was left out.
    closed: bool,
}

impl Place {
    fn of(&mut self, op: &Op) -> Option<&mut Option<usize>> {
        match op {
            Op::Record(RecordOp { work, .. }) => match work {
                RecordWork::Read(_) => Some(&mut self.read),
                RecordWork::Claim(_) => Some(&mut self.claim),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the answer to one in the batch does for this one, too.
    pub(in crate::runtime::lanes) fn joins(&mut self, op: &Op, batch: &[Op]) -> bool {
        let first = self.of(op).and_then(|place| batch.get((*place)?));
        !self.closed && first.is_some_and(|first| shares(op, first))
    }

    pub(in crate::runtime::lanes) fn admits(&mut self, op: &Op) -> bool {
        let is_first = match self.of(op) {
            Some(place) => place.is_none(),
            None => self.read.is_none() && self.claim.is_none(),
        };
        is_first && !self.closed
    }

    /// The operation is in the batch, at that place; or it is not.
    pub(in crate::runtime::lanes) fn pass(&mut self, op: &Op, picked: Option<usize>) {
        match (self.of(op), picked) {
            (Some(place), Some(_)) => *place = place.or(picked),
            // One by something else that was seen, or larger than the first.
            (Some(place), None) if place.is_some() => {}
            _ => self.closed = true,
        }
    }
}

/// The record about which an attempt says something, in the order in which it does.
pub(in crate::runtime::lanes) fn ordered(op: &Op) -> Option<&RecordKey> {
    let Op::Record(RecordOp { work, .. }) = op else {
        return None;
    };
    match work {
        RecordWork::Finish(..) | RecordWork::StepBegin(..) | RecordWork::StepFinish(..) => {
            work.key()
        }
        _ => None,
    }
}

/// The records about which something is put off, and until when.
pub(in crate::runtime::lanes) fn put_off(later: &[(Moment, Op)]) -> HashMap<RecordKey, Moment> {
    let of = |(at, op): &(Moment, Op)| Some((ordered(op)?.clone(), *at));
    later.iter().filter_map(of).collect()
}

pub(in crate::runtime::lanes) fn only_looks(op: &Op) -> bool {
    matches!(op, Op::Record(op) if op.work.only_looks())
}

/// How large the outcome is that an operation carries, or is known to bring.
pub(in crate::runtime::lanes) fn size(op: &Op) -> usize {
    let Op::Record(RecordOp { work, .. }) = op else {
        return 0;
    };
    match work {
        RecordWork::Read(read) => read.size.unwrap_or(0),
        _ => work.written().unwrap_or(0),
    }
}
