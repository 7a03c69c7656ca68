//! What a holder changes in its own lease, besides renewing and releasing it: the verbs, with their parameters and
//! outcomes.

use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use super::fault::Fault;
use crate::model::Name;

/// The verbs for the holder of a live lease. They skip a row that a transaction has locked.
#[async_trait]
pub(crate) trait HoldStore {
    /// Gives a live grant the fence `max(previous + 1, at_least)`, and returns it. A second sending
    /// raises it once more. The commit is durable.
    async fn hold_raise(&mut self, params: &RaiseParams) -> Result<HoldOutcome<i64>, Fault>;

    /// Gives the row of a live lease to the reservation: a grant without a guard, which expires after `time`. So a
    /// late renewal or release of the first grant changes nothing. A lock of a session leaves the session. A second
    /// sending finds the reservation, also one that has run out, and gives it no more time. (A permit is its own
    /// reservation: there a first sending that comes after the second gives it once more.) The commit is durable.
    async fn hold_run_out(&mut self, params: &RunOutParams) -> Result<HoldOutcome<()>, Fault>;
}

#[derive(Debug, Clone)]
pub(crate) struct RaiseParams {
    /// The name of the row.
    pub(crate) name: Name,
    pub(crate) grant_id: Uuid,
    pub(crate) at_least: i64,
}

#[derive(Debug, Clone)]
pub(crate) struct RunOutParams {
    /// The name of the row.
    pub(crate) name: Name,
    pub(crate) grant_id: Uuid,
    /// The id of the grant that nobody has. (The row of a permit is named by its grant id: there it is the same one.)
    pub(crate) reservation: Uuid,
    /// From now on, by the database's clock.
    pub(crate) time: Duration,
}

impl RunOutParams {
    /// The reservation is another grant.
    pub(crate) fn is_reserved(&self) -> bool {
        self.reservation != self.grant_id
    }
}

/// What became of the ask of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HoldOutcome<T> {
    Done(T),
    /// The lease has expired, or the name no longer belongs to the grant.
    Gone,
    /// A transaction has the row locked.
    Locked,
}

impl<T> HoldOutcome<T> {
    /// Nothing was changed. `is_live`: the row has the grant, live.
    pub(crate) fn missed(is_live: bool) -> Self {
        if is_live { Self::Locked } else { Self::Gone }
    }
}
