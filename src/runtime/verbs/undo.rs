//! Undoing an acquire or a claim whose outcome is unknown and that no caller will receive.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::MAX_UNDO;
use super::finish::{End, Finish};
use super::release::Release;
use crate::model::{Moment, Name, Subject};
use crate::runtime::head::{Fate, Head, Manner};
use crate::runtime::job::Task;
use crate::runtime::waiters::Waiters;
use crate::store::lease::ReleaseAsk;
use crate::store::record::{ANY_ATTEMPT, ClaimAsk, FinishAsk, RecordEnd};

/// Frees the grant of an acquire, and the grants that `late` more sendings may still get.
pub(super) fn acquire(
    name: &Name,
    grant_id: Uuid,
    ttl: Duration,
    late: u32,
    waiters: &Arc<Waiters>,
    now: Moment,
) -> Task<Release> {
    let ask = ReleaseAsk {
        name: name.clone(),
        grant_id,
        fence: 0,
    };
    let verb = Release {
        ask,
        grant: None,
        late,
        reply: None,
        waiters: Arc::clone(waiters),
    };
    // It may have been granted just now; after its TTL it expires by itself.
    verb.task(Fate::until(now + ttl.min(MAX_UNDO)))
}

/// Frees the key of a claim whose outcome no caller will receive. The claim does not count as an attempt.
pub(crate) fn claim(claim: &ClaimAsk, fate: &Fate, now: Moment) -> Task<Finish> {
    let ask = FinishAsk {
        key: claim.key.clone(),
        attempt_id: claim.attempt_id,
        attempt: ANY_ATTEMPT,
        end: RecordEnd::Free {
            bound: false,
            pardon: 1,
            remember: claim.remember,
            remember_begun: claim.remember_begun,
            step_is_open: false,
        },
    };
    let subject = Subject::Record(claim.key.clone());
    let late = fate.in_doubt();
    let fate = Fate::until(now + claim.lease.min(MAX_UNDO));
    Task {
        head: Head::new(subject, "release", Manner::Duty, fate),
        verb: Finish {
            ask,
            end: End::Undo { late },
        },
    }
}
