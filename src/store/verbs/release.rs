//! Releasing: what is asked, what becomes of the name, and a release that passes its name on.

use uuid::Uuid;

use super::fault::Fault;
use super::permit::{PermitStore, pass_any};
use super::queue::{EndedGrant, PassOutcome, PassWhy, QueueStore};
use super::row::LockRow;
use crate::model::Name;

#[derive(Debug, Clone)]
pub(crate) struct ReleaseParams {
    pub(crate) name: Name,
    pub(crate) grant_id: Uuid,
    pub(crate) fence: i64,
    /// The name was passed on to this grant: it probably has more waiters.
    pub(crate) was_queued: bool,
}

impl ReleaseParams {
    /// Whether the row has the live grant of this ask, and waiters: only passing it on releases it.
    pub(crate) fn is_awaited(&self, row: &LockRow) -> bool {
        row.is_of(self.grant_id) && row.is_live() && row.waiters > 0
    }

    /// The outcome of an ask whose row was not freed. `None`: there is no row.
    pub(crate) fn freed(&self, row: Option<&LockRow>) -> FreeOutcome {
        match row {
            Some(row) if row.is_of(self.grant_id) && row.is_live() => FreeOutcome::Locked,
            Some(row) if row.is_of(self.grant_id) => FreeOutcome::Expired,
            Some(row) if row.grant_id.is_none() && row.fence == self.fence => FreeOutcome::WasFree,
            _ => FreeOutcome::Superseded,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FreeOutcome {
    /// The grant was held until now, and the name is free.
    Released,
    /// The grant was held until now, and the name was passed on to the waiters with these grant ids.
    Passed(Vec<Uuid>),
    /// The row is free and has this grant's fence: an earlier sending released it.
    WasFree,
    /// The lease had expired; no other holder has taken the name since.
    Expired,
    /// The name belongs, or belonged, to a later grant.
    Superseded,
    /// Another transaction has the row locked: not released yet.
    Locked,
}

/// What became of a grant that was to end.
impl From<Option<PassOutcome>> for FreeOutcome {
    fn from(passed: Option<PassOutcome>) -> Self {
        let Some(PassOutcome { ended, next }) = passed else {
            return Self::Locked;
        };
        match ended {
            EndedGrant::Live if next.is_empty() => Self::Released,
            EndedGrant::Live => Self::Passed(next),
            EndedGrant::Expired => Self::Expired,
            EndedGrant::Nothing => Self::Superseded,
        }
    }
}

/// For how many locked rows one request waits. Each takes some 20 ms, and everything else of the lane waits too.
const MOST_LOCKED: usize = 5;

/// [`pass_on`] for the releases at these places, beginning with a random one. After [`MOST_LOCKED`] locked rows the
/// others count as locked too, and are tried again: so each has its turn.
pub(crate) async fn pass_all_on(
    store: &mut (impl PermitStore + QueueStore + Send + ?Sized),
    all: &[ReleaseParams],
    mut places: Vec<usize>,
    outcomes: &mut [FreeOutcome],
) -> Result<(), Fault> {
    let first = fastrand::usize(..places.len().max(1));
    places.rotate_left(first);
    let mut locked = 0;
    for place in places {
        outcomes[place] = match locked {
            MOST_LOCKED.. => FreeOutcome::Locked,
            _ => pass_on(store, &all[place]).await?,
        };
        locked += usize::from(outcomes[place] == FreeOutcome::Locked);
    }
    Ok(())
}

/// Releases a permit, or a lock whose name has waiters: passes the name on.
pub(crate) async fn pass_on(
    store: &mut (impl PermitStore + QueueStore + Send + ?Sized),
    params: &ReleaseParams,
) -> Result<FreeOutcome, Fault> {
    let of_permit = params.name.of_permit();
    let name = of_permit.as_ref().unwrap_or(&params.name);
    let why = PassWhy::Ended(params.grant_id);
    let passed = pass_any(store, name, why, of_permit.is_some()).await?;
    Ok(FreeOutcome::from(passed))
}
