//! Cleaning.

use super::Admin;
use crate::model::{Error, InvalidError};
use crate::runtime::upkeep::cleaner::BATCH;
use crate::store::verbs::Store;
use crate::store::verbs::clean::CleanedRows;

impl Admin<'_> {
    /// How many rows of one kind the cleaner in the background removes in one transaction.
    pub const CLEAN_BATCH: u32 = BATCH;

    /// Removes one batch of expired rows: outcomes past their retention, forgotten records and expired form tokens, at
    /// most `batch` of each (1 to 10,000), and expired sessions with their locks. Also removes the rows of all locks
    /// that were not used for ten days, and looks for them `batch` rows at a time. The cleaner does this in the
    /// background, see [`Builder::clean_every`](crate::Builder::clean_every).
    ///
    /// Fences of a lock rise even after its row was removed, unless the database's clock is set back by more than ten
    /// days.
    ///
    /// A client removes one batch at a time: a concurrent call waits for its turn, however long that takes.
    ///
    /// # Errors
    ///
    /// A batch out of range; a database out of reach.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the cleaning after the current batch.
    pub async fn clean(self, batch: u32) -> Result<Cleaned, Error> {
        let rows = self.clean_records(batch).await?;
        Ok(Cleaned {
            outcomes: rows.outcomes,
            records: rows.records,
            tokens: rows.tokens,
            sessions: rows.sessions,
            locks: self.clean_locks(batch).await?,
        })
    }

    /// Removes all expired rows, in as many batches as needed. (It looks at the rows of locks once.)
    ///
    /// # Errors
    ///
    /// The errors of [`clean`](Self::clean). Rows that were removed before an error stay removed.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`clean`](Self::clean).
    pub async fn clean_all(self, batch: u32) -> Result<Cleaned, Error> {
        let mut all = Cleaned::default();
        loop {
            let rows = self.clean_records(batch).await?;
            all.outcomes += rows.outcomes;
            all.records += rows.records;
            all.tokens += rows.tokens;
            all.sessions += rows.sessions;
            if !rows.is_full(batch) {
                break;
            }
        }
        all.locks = self.clean_locks(batch).await?;
        Ok(all)
    }

    async fn clean_records(self, batch: u32) -> Result<CleanedRows, Error> {
        check_batch(batch)?;
        let clean = async move |store: &mut dyn Store| store.clean(batch).await;
        self.core().lanes.clean(clean).await
    }

    async fn clean_locks(self, batch: u32) -> Result<u64, Error> {
        check_batch(batch)?;
        let lanes = &self.core().lanes;
        let makes = self.core().holdings.settings.preparing.migrate;
        let keep = async move |store: &mut dyn Store| store.keep_functions(makes).await;
        lanes.clean(keep).await?;
        let (mut removed, mut after) = (0, Vec::new());
        loop {
            let clean = async move |store: &mut dyn Store| store.lock_clean(&after, batch).await;
            let cleaned = lanes.clean(clean).await?;
            removed += cleaned.removed;
            match cleaned.last {
                Some(last) => after = last,
                None => return Ok(removed),
            }
        }
    }
}

/// The numbers of rows that a cleaning removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cleaned {
    /// Outcomes past their retention, whose keys are still remembered.
    pub outcomes: u64,
    /// Records.
    pub records: u64,
    /// Expired form tokens that were not used.
    pub tokens: u64,
    /// Rows of locks that were not used for ten days.
    pub locks: u64,
    /// Expired sessions, and the locks that they left behind. (These were free for other holders before.)
    pub sessions: u64,
}

/// Refuses a batch of 0, with which a cleaning would not end, and large batches.
fn check_batch(batch: u32) -> Result<(), Error> {
    if (1..=10_000).contains(&batch) {
        return Ok(());
    }
    Err(Error::Invalid(InvalidError::Setting {
        setting: "batch",
        reason: "1 to 10000 rows are allowed",
    }))
}
