//! Leases: the verbs that a lane sends for locks, their asks and their outcomes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use super::fault::Fault;
use super::row::LockRow;
use crate::model::Name;

/// The verbs for leases, and for the rows of locks.
#[async_trait]
pub(crate) trait LeaseStore {
    /// Grants a lease where the name has none that is live, under the next fence:
    /// `max(previous + 1, microseconds of the clock)`.
    ///
    /// One outcome per ask, in the order of the asks. A name that is held, or whose row somebody has
    /// locked, is `Busy`; when the holder that is reported is the ask's own grant, an earlier
    /// sending of this ask was what took it.
    async fn lease_take(&mut self, asks: &[TakeAsk]) -> Result<Vec<Taken>, Fault>;

    /// Extends leases that are live and still the asked grants'. An
    /// expiry never moves back. A lease that has run out is not revived, even if nobody took it.
    ///
    /// One outcome per ask, in the order of the asks.
    async fn lease_renew(&mut self, asks: &[RenewAsk]) -> Result<Vec<Renewed>, Fault>;

    /// Frees leases that are live and still the asked grants'. Need not survive a crash of the
    /// server: a lost release only leaves a row that expires.
    ///
    /// One outcome per ask, in the order of the asks.
    async fn lease_release(&mut self, asks: &[ReleaseAsk]) -> Result<Vec<Freed>, Fault>;

    /// Frees a name, whoever holds it, and tells who did. A row that is locked is waited for, for less
    /// than `limit`, also when nobody waits for the answer any more; a row that cannot be read is
    /// freed too.
    async fn lease_force_release(
        &mut self,
        name: &Name,
        limit: Duration,
    ) -> Result<Option<LockRow>, Fault>;

    /// The live holder of one name.
    async fn lock_inspect(&mut self, name: &Name) -> Result<Option<LockRow>, Fault>;

    /// The live holders of all names, by name.
    async fn lock_list(&mut self) -> Result<Vec<LockRow>, Fault>;

    /// The row of a name, as [`RowAsk`] wants it.
    async fn lock_row(&mut self, name: &Name, ask: RowAsk) -> Result<Option<LockRow>, Fault>;
}

/// What to do about the row of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowAsk {
    /// Read it as it is.
    Look,
    /// Make it when it is missing: free, with the clock as its fence. Free it when its lease has run out, unless a
    /// transaction has it locked: the holder may have it pinned.
    Make,
}

#[derive(Debug, Clone)]
pub(crate) struct TakeAsk {
    pub(crate) name: Name,
    /// The id of the grant-to-be: fresh for every acquire.
    pub(crate) grant_id: Uuid,
    pub(crate) ttl: Duration,
    /// For people to read.
    pub(crate) holder: Arc<str>,
}

#[derive(Debug, Clone)]
pub(crate) enum Taken {
    Granted {
        fence: i64,
    },
    /// `None`: the row is locked by somebody, or is changing hands right now.
    Busy(Option<LockRow>),
}

#[derive(Debug, Clone)]
pub(crate) struct RenewAsk {
    pub(crate) name: Name,
    pub(crate) grant_id: Uuid,
    /// From now on, by the database's clock.
    pub(crate) ttl: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Renewed {
    /// The grant is live, with this much time. When its row was locked, it is what was left before.
    Live { remaining: Duration },
    /// The name is not this grant's any more, or its lease has run out.
    Gone,
}

#[derive(Debug, Clone)]
pub(crate) struct ReleaseAsk {
    pub(crate) name: Name,
    pub(crate) grant_id: Uuid,
    pub(crate) fence: i64,
}

impl ReleaseAsk {
    /// What a row that was not freed says about this ask. `None`: there is no row.
    pub(super) fn freed(&self, row: Option<&LockRow>) -> Freed {
        match row {
            Some(row) if row.is_of(self.grant_id) && row.is_live() => Freed::Locked,
            Some(row) if row.is_of(self.grant_id) => Freed::Expired,
            Some(row) if row.grant_id.is_none() && row.fence == self.fence => Freed::WasFree,
            _ => Freed::Superseded,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freed {
    /// It was held until now, and is free.
    Released,
    /// The row is free and bears this grant's fence: it was released before, by whatever sending.
    WasFree,
    /// Its time had run out; nobody has taken the name since.
    Expired,
    /// The name is somebody else's by now, or was.
    Superseded,
    /// The row is locked by somebody: not released yet.
    Locked,
}
