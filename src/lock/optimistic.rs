//! Optimistic locks: work without a lock, and commit only if the name was not granted meanwhile.
//!
//! # Overview
//!
//! The fence of a name's last grant is its *version*. The caller reads the version, then the data, and works without
//! a lock. At the end it *advances* the version inside the transaction that writes. This succeeds only if the name was
//! not granted in between, in any mode. Advancing is a grant like any other, with a fence of its own.
//!
//! # State model
//!
//! ```text
//!   version read ── work ── advance ──► granted until the transaction ends
//!                              └──────► conflict: roll back, begin again
//! ```
//!
//! # Trust window
//!
//! The row is locked from the advance to the end of the transaction. Before the advance, nothing is trusted.
//!
//! # Failure
//!
//! A process that pauses or crashes blocks no other holder before it advances. After the advance it blocks them for as
//! long as its transaction lives. Under heavy contention most tries fail: use a pessimistic lock there.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::lock::call::{InTransaction, conflict};
use crate::model::{Error, Kind, LockInfo, Name, TransactionError};
use crate::runtime::Core;
use crate::store::verbs::in_tx::TxTaken;
use crate::store::verbs::row::LockRow;
use crate::transaction::Transaction;

/// The version of a name at the time of the read: made by [`Rowlock::version`](crate::Rowlock::version)
/// and [`InTx::version`](crate::InTx::version), compared by [`InTx::advance`](crate::InTx::advance).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/shop.db?mode=rwc", dir.path().display());
/// # let pool = sqlx::SqlitePool::connect(&url).await?;
/// # sqlx::raw_sql("CREATE TABLE stock (items INTEGER); INSERT INTO stock VALUES (9)").execute(&pool).await?;
/// # let rowlock = rowlock::Rowlock::from_pool(&pool).await?;
/// let seen = rowlock.version("stock:42").await?; // first the version,
/// let items: i64 = sqlx::query_scalar("SELECT items FROM stock").fetch_one(&pool).await?; // then the data
/// // … think …
/// let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
/// sqlx::query("UPDATE stock SET items = ?").bind(items - 1).execute(&mut *tx).await?;
/// match rowlock.in_tx(&mut tx).advance(&seen).await? {
///     rowlock::Advance::Granted { fence } => {
///         tx.commit().await?;
///         println!("written under fence {fence}");
///     }
///     rowlock::Advance::Conflict => tx.rollback().await?, // another holder was faster: begin again
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Version {
    name: Name,
    fence: i64,
    holder: Option<LockInfo>,
    database: Uuid,
}

/// The outcome of [`InTx::advance`](crate::InTx::advance).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a conflict means: roll back"]
pub enum Advance {
    /// The name was not granted since the read. This transaction holds it until it ends.
    Granted {
        /// The fence of this grant: the name's new version.
        fence: i64,
    },
    /// The name was granted since the read, had a holder at the read, or is [paused](crate::Admin::pause). Roll back.
    Conflict,
}

impl Version {
    /// The lock.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The fence of the last grant of the name.
    #[must_use]
    pub fn fence(&self) -> i64 {
        self.fence
    }

    /// The holder of a lease of the name at the time of the read. Data that was read then may be half of the
    /// holder's work, so such a version never advances. (The same applies to a lease that has run out while a
    /// transaction has its row locked: the transaction may have pinned it.)
    #[must_use]
    pub fn holder(&self) -> Option<&LockInfo> {
        self.holder.as_ref()
    }

    pub(crate) async fn read(core: &Core, name: Name) -> Result<Self, Error> {
        // A lease of this name may linger in this client. The release goes before.
        drop(core.queue.keepers.recall(&name));
        let seen = core.rows.look_version(&name).await?;
        Ok(Self {
            name,
            fence: seen.fence,
            holder: seen.grant,
            database: core.server.database,
        })
    }

    pub(super) async fn read_in<T: Transaction>(
        core: &Arc<Core>,
        tx: &mut T,
        name: Name,
    ) -> Result<Self, Error> {
        let mut here =
            InTransaction::new(core, tx, vec![name.clone()], "read the version of").await?;
        let mut starved = here.ensure_row().await?;
        let mut row = here.row(&name).await?;
        if row.is_none() && starved.is_none() {
            // The cleaner may have removed the row that this client knew. If the transaction's snapshot is older than
            // the new row, the transaction must begin again.
            core.rows.drop_known(&name);
            starved = here.ensure_row().await?;
            row = here.row(&name).await?;
        }
        if row.as_ref().is_some_and(LockRow::has_lapsed) {
            // Free the row from outside, unless a transaction has pinned it. An older snapshot does not see that, and
            // shows it held.
            let freed = here.outside(core.rows.row(&name)).await;
            if !matches!(freed, Err(Error::Starved { .. })) {
                freed?;
            }
            row = here.row(&name).await?;
        }
        let Some(row) = row else {
            return Err(starved.unwrap_or_else(|| here.invisible()));
        };
        row.check_kind(Kind::Lock)?;
        Ok(Self {
            name,
            fence: row.fence,
            holder: row.grant()?,
            database: core.server.database,
        })
    }

    pub(super) async fn advance_in<T: Transaction>(
        &self,
        core: &Arc<Core>,
        tx: &mut T,
    ) -> Result<Advance, Error> {
        let mut here = InTransaction::new(core, tx, vec![self.name.clone()], "advance").await?;
        here.check(Some(self.database))?;
        if self.holder.is_some() {
            return Ok(Advance::Conflict);
        }
        let params = here.ask(&self.name, Some(self.fence));
        match here.grant(&[params]).await? {
            TxTaken::Granted { fences, .. } => Ok(Advance::Granted {
                fence: fences.first().copied().unwrap_or_default(),
            }),
            TxTaken::Missed(_) | TxTaken::Blocking | TxTaken::NoRow | TxTaken::Early(_) => {
                Ok(Advance::Conflict)
            }
            TxTaken::Quarantined(left) => Err(Error::WaitTimeout {
                name: self.name.clone(),
                waited: Duration::ZERO,
                busy: Box::new(here.quarantined(left)),
            }),
            TxTaken::Again => Err(Error::Transaction(TransactionError::AlreadyLocked {
                name: self.name.clone(),
            })),
        }
    }
}

impl Advance {
    /// The fence, or [`Error::Conflict`], which [`Retry`](crate::Retry) tries again.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`].
    pub fn or_conflict(self, version: &Version) -> Result<i64, Error> {
        match self {
            Self::Granted { fence } => Ok(fence),
            Self::Conflict => Err(conflict(&version.name)),
        }
    }
}

/// Checks that an `UPDATE` of the application's own table, with a version column, found the version that the
/// application had read.
///
/// `UPDATE … SET …, version = version + 1 WHERE id = … AND version = …` changes one row, or none when another
/// transaction was faster. [`Retry::run`](crate::Retry::run) tries the conflict again.
///
/// # Errors
///
/// [`Error::Conflict`] when no row was changed, [`TransactionError::NotOneRow`] when several were.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/shop.db?mode=rwc", dir.path().display());
/// # let pool = sqlx::SqlitePool::connect(&url).await?;
/// # sqlx::raw_sql("CREATE TABLE account (id INTEGER, cents INTEGER, version INTEGER);
/// #                INSERT INTO account VALUES (7, 500, 1)").execute(&pool).await?;
/// let left: i64 = rowlock::Retry::new()
///     .run(&pool, async |mut tx| {
///         let (cents, version): (i64, i64) =
///             sqlx::query_as("SELECT cents, version FROM account WHERE id = 7").fetch_one(&mut *tx).await?;
///         let done = sqlx::query("UPDATE account SET cents = ?, version = version + 1 WHERE id = 7 AND version = ?")
///             .bind(cents - 100)
///             .bind(version)
///             .execute(&mut *tx)
///             .await?;
///         rowlock::one_changed(done.rows_affected())?;
///         Ok::<_, rowlock::Error>(cents - 100)
///     })
///     .await?;
/// # assert_eq!(left, 400);
/// # Ok(())
/// # }
/// ```
pub fn one_changed(rows_affected: u64) -> Result<(), Error> {
    match rows_affected {
        1 => Ok(()),
        0 => Err(Error::Conflict {
            what: "a row was changed, or is gone".into(),
        }),
        rows => Err(Error::Transaction(TransactionError::NotOneRow { rows })),
    }
}
