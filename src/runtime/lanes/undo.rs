//! What undoes an operation of which nobody will learn what it did.

use std::time::Duration;

use uuid::Uuid;

use super::records;
use crate::model::{Moment, Name};
use crate::runtime::op::{Fate, Op, Release};
use crate::runtime::record::{RecordOp, RecordWork};
use crate::store::lease::{ReleaseAsk, TakeAsk};

/// How long an undo is repeated.
pub(super) const MAX_UNDO: Duration = Duration::from_mins(10);

/// What is to be done after `op` when it ends without the outcome that its caller asked for: an acquire, or a claim, that
/// was sent may have happened.
pub(super) fn of(op: &Op, now: Moment) -> Option<Op> {
    match op {
        Op::Take(take) if take.fate.sent => {
            let ask = &take.ask;
            let undo = release(&ask.name, ask.owner, ask.ttl, take.fate.doubts, now);
            Some(Op::Release(undo))
        }
        // The caller has waited long enough, and the name is to be free all the same: the undo frees the grant, and then
        // what late sendings of its acquire are granted.
        Op::Release(op) if op.reply.is_some() => {
            let grant = op.grant.as_ref()?;
            let undo = release(&grant.name, grant.id, grant.ttl, op.late + 1, now);
            Some(repeated(undo))
        }
        Op::Release(op) => after(op, now),
        Op::Record(RecordOp {
            work: RecordWork::Claim(claim),
            fate,
        }) if fate.sent => Some(records::undo(&claim.ask, fate, false, now)),
        _ => None,
    }
}

/// What is to be done after the release of a grant, whatever has come of it: while sendings of its acquire may reach the server
/// yet, one of them may grant the name again, to nobody.
pub(super) fn after(op: &Release, now: Moment) -> Option<Op> {
    let grant = op.grant.as_ref().filter(|_| op.late > 0)?;
    let undo = release(&grant.name, grant.id, grant.ttl, op.late, now);
    Some(repeated(undo))
}

/// The same after an acquire that was not granted, `late` sendings of which may reach the server yet.
pub(super) fn late(ask: &TakeAsk, late: u32, now: Moment) -> Op {
    repeated(release(&ask.name, ask.owner, ask.ttl, late, now))
}

/// What it looks for may never come: nobody waits for it.
fn repeated(undo: Release) -> Op {
    Op::Release(Release {
        repeated: true,
        ..undo
    })
}

fn release(name: &Name, owner: Uuid, ttl: Duration, late: u32, now: Moment) -> Release {
    Release {
        ask: ReleaseAsk {
            name: name.clone(),
            owner,
            fence: 0,
        },
        grant: None,
        late,
        repeated: false,
        reply: None,
        // It may have been granted just now; after its TTL it is free by itself.
        fate: Fate::until(now + ttl.min(MAX_UNDO)),
    }
}
