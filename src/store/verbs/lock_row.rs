//! The rows of locks: the verbs that read and make them.

use async_trait::async_trait;

use super::fault::Fault;
use super::row::LockRow;
use super::session::SessionStore;
use crate::model::Name;

/// The verbs for the rows of locks.
#[async_trait]
pub(crate) trait LockRowStore: SessionStore + Send {
    /// A live grant of one name: that of a lock, or one of the permits.
    async fn lock_inspect(&mut self, name: &Name) -> Result<Option<LockRow>, Fault> {
        Ok(self.lock_grants(name, 1).await?.pop())
    }

    /// All live grants of one name, in the order of their fences: that of a lock, or those of all permits.
    async fn lock_holders(&mut self, name: &Name) -> Result<Vec<LockRow>, Fault> {
        let mut holders = self.lock_grants(name, i64::MAX).await?;
        holders.sort_by_key(|holder| (holder.fence, holder.acquired_at));
        Ok(holders)
    }

    /// Live grants of one name, `most` at most, in the order of the primary key. It reads the part of that key from
    /// the name to its [end](end_of).
    async fn lock_grants(&mut self, name: &Name, most: i64) -> Result<Vec<LockRow>, Fault>;

    /// The row of a name, as [`RowAction`] wants it.
    async fn lock_row(&mut self, name: &Name, params: RowAction) -> Result<Option<LockRow>, Fault> {
        let row = self.lock_row_as_it_is(name, params).await?;
        let left = row.as_ref().and_then(LockRow::left_behind);
        let Some(left) = left.filter(|_| params == RowAction::Make) else {
            return Ok(row);
        };
        self.session_reclaim(&[left]).await?;
        let row = self.lock_row_as_it_is(name, RowAction::Look).await?;
        Ok(row.map(|row| LockRow {
            reclaimed: row.grant_id.is_none(),
            ..row
        }))
    }

    /// Removes the row of a name that has no holder and no waiter. The row is locked, so no grant comes in between. As
    /// for the [cleaner](super::clean), its fence must be smaller than the clock: a row that is made afterwards begins
    /// with the clock.
    async fn lock_forget(&mut self, name: &Name) -> Result<Forgot, Fault>;

    /// [`lock_row`](Self::lock_row), but it leaves the locks of sessions alone.
    async fn lock_row_as_it_is(
        &mut self,
        name: &Name,
        params: RowAction,
    ) -> Result<Option<LockRow>, Fault>;
}

/// The first key after the name and its permits (the name, NUL and a grant id): no other key is between.
pub(crate) fn end_of(name: &Name) -> Vec<u8> {
    [name.as_bytes(), &[1]].concat()
}

/// What became of the row of a name that is to be forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forgot {
    /// It is removed.
    Removed,
    /// There is no such row.
    Missing,
    /// It has a holder, also one whose lease has run out, or a waiter; or a transaction has it locked; or its fence is
    /// not over yet.
    InUse,
}

impl Forgot {
    /// `removed`: how many rows were. Otherwise `is_there` tells whether there is one.
    pub(crate) fn of(removed: u64, is_there: bool) -> Self {
        match (removed, is_there) {
            (1.., _) => Self::Removed,
            (0, true) => Self::InUse,
            (0, false) => Self::Missing,
        }
    }
}

/// How to get the row of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowAction {
    /// Read it as it is.
    Look,
    /// Make it when it is missing: free, with the clock as its fence. Free it when its lease has expired, unless a
    /// transaction has it locked: that transaction may have the lease pinned.
    Make,
}
