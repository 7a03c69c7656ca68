//! What nobody uses any more is removed.

use std::time::Duration;

use super::fault::Fault;
use async_trait::async_trait;

/// The verbs for cleaning.
#[async_trait]
pub(crate) trait CleanStore {
    /// Looks at the next `limit` lock rows after the name `after` (empty: from the first one), and removes those
    /// that nobody has used for [`IDLE`]: free ones whose last grant is older, and leases that ran out before.
    /// A row that is locked is passed over: its transaction may have it pinned.
    ///
    /// The fence of a row is a time of the clock or later. A row is removed only when the clock is past its
    /// fence, so the row that is made after it begins with a greater one.
    async fn lock_clean(&mut self, after: &[u8], limit: u32) -> Result<CleanedLocks, Fault>;

    /// Removes what is over: outcomes past their retention, with what the steps came to; records and tokens past their
    /// time; at most `limit` of each. What somebody has locked is passed over, and so are records that are running,
    /// have an open step or are unknown.
    async fn clean(&mut self, limit: u32) -> Result<CleanedRows, Fault>;
}

/// How long a lock row is kept after its last use. Not a whole number of weeks: a weekly job would find its row being
/// removed in the very moment in which it asks for it.
pub(crate) const IDLE: Duration = Duration::from_hours(10 * 24);

/// What one look for idle lock rows came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CleanedLocks {
    pub(crate) removed: u64,
    /// The last name that was looked at; `None` when there are no more.
    pub(crate) last: Option<Vec<u8>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CleanedRows {
    pub(crate) outcomes: u64,
    pub(crate) records: u64,
    pub(crate) tokens: u64,
}
