//! Removing expired and unused rows.

use std::time::Duration;

use async_trait::async_trait;

use super::deadlock::DeadlockStore;
use super::fault::Fault;
use super::run::RunStore;
use super::session::SessionStore;

/// The verbs for cleaning.
#[async_trait]
pub(crate) trait CleanStore: DeadlockStore + RunStore + SessionStore + Send {
    /// Looks at the next `limit` lock rows after the name `after` (empty: from the first one), and removes those
    /// unused for [`IDLE`]: free rows whose last grant is older, and rows whose lease expired earlier. Skips locked
    /// rows: their transaction may have the lease pinned.
    ///
    /// A name with permits is unused when no permit is left. So the permits of crashed holders, which no request has
    /// reclaimed yet, are reclaimed first. A free name with waiters is passed on first: those that are dead
    /// leave. The row of a read/write lock has the fence of the last write: one that has only readers is removed in a
    /// moment without any, at most once in [`IDLE`]. That is harmless: the next readers have a greater fence, and no
    /// writer had it.
    ///
    /// The fence of a row is a time of the clock or later. A row is removed only when the clock is past its fence, so
    /// a row that is made later begins with a greater fence.
    async fn lock_clean(&mut self, after: &[u8], limit: u32) -> Result<CleanedLocks, Fault>;

    /// Removes at most `limit` of each kind: outcomes past their retention, with the results of their steps; records
    /// and form tokens past their time; runs that began more than 400 days ago; sessions that have expired, after
    /// their locks are freed. Skips locked rows, and records that are running, have an open step or are unknown.
    async fn clean(&mut self, limit: u32) -> Result<CleanedRows, Fault> {
        let mut cleaned = self.clean_records(limit).await?;
        self.deadlock_clean(limit).await?;
        self.run_clean(limit).await?;
        cleaned.sessions = self.session_sweep(limit).await?;
        Ok(cleaned)
    }

    /// [`clean`](Self::clean) for outcomes, records and form tokens.
    async fn clean_records(&mut self, limit: u32) -> Result<CleanedRows, Fault>;
}

/// How long a lock row is kept after its last use. Not a whole number of weeks: a weekly job would ask for its row
/// just when the cleaner removes it.
pub(crate) const IDLE: Duration = Duration::from_hours(10 * 24);

/// The result of one look for idle lock rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CleanedLocks {
    pub(crate) removed: u64,
    /// The last name in the batch; `None` when there are no more.
    pub(crate) last: Option<Vec<u8>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CleanedRows {
    pub(crate) outcomes: u64,
    pub(crate) records: u64,
    pub(crate) tokens: u64,
    /// Ended sessions, and the locks that they left behind.
    pub(crate) sessions: u64,
}
