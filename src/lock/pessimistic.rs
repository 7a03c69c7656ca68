//! Pessimistic locks: the caller's transaction locks the name's row.
//!
//! # Overview
//!
//! The caller's own transaction locks the row of the name and writes a new fence into it. There is no TTL and no
//! renewal: the lock belongs to the transaction, and ends with it.
//!
//! # State model
//!
//! ```text
//!             granted                    commit: the fence stays
//!   (nothing) ───────► locked ─────────────────────────────────────► free
//!                        └── rollback, crash, connection gone ─────► free, as if never granted
//! ```
//!
//! # Trust window
//!
//! None: the transaction's writes commit together with the lock, or not at all. A paused process holds the lock for
//! as long as its connection lives. A crashed process frees the lock when the server sees its connection close.
//!
//! # Failure
//!
//! - *The process crashes, or is paused*: see [`LockInTx::acquire`](super::LockInTx::acquire).
//! - *A deadlock* (two transactions lock the same rows in different orders): the database ends one of the
//!   transactions: [`Error::Conflict`], which [`Retry`](crate::Retry) tries again. The names of one call
//!   never deadlock with each other.
//! - *Transactions lock a name one right after the other*: waiters for a lease of that name may starve, because the
//!   database hands the row to the next transaction in its own queue. With 16 connections that locked one name without
//!   a pause, no waiter on MySQL and MariaDB was granted a lease in 12 s. Choose one mode for such a name.
//! - *A rollback* gives the fence back with everything else. The next fence is still greater than all before, unless
//!   the database's clock shows an earlier time than the fence in the row.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::lock::call::{InTransaction, Taking, TxLook, conflict};
use crate::lock::locked::Locked;
use crate::lock::optimistic::{Advance, Version};
use crate::lock::{TryAcquire, timed_out};
use crate::model::bounds::check_wait;
use crate::model::names::sorted;
use crate::model::{Error, Moment, Name};
use crate::runtime::Core;
use crate::runtime::base::backoff;
use crate::runtime::base::timer::sleep_until;
use crate::store::verbs::in_tx::TxWaited;
use crate::transaction::Transaction;

/// Locks in one transaction: made by [`Rowlock::in_tx`](crate::Rowlock::in_tx).
///
/// The transaction comes from the application's own pool, on the database of the client. rowlock only borrows
/// it: the application can run its own statements before, between and after.
///
/// # Lock first, then read
///
/// A lock protects only the reads after it. Under REPEATABLE READ (the default of MySQL and MariaDB) and SERIALIZABLE,
/// the first plain SELECT of a transaction fixes the snapshot that all later SELECTs see. If it comes before the lock,
/// later SELECTs return old data, and the transaction overwrites newer writes of others. So lock before the first read
/// of the transaction, or read with FOR UPDATE. PostgreSQL detects this, and the call returns
/// [`Error::Conflict`].
///
/// On MySQL and MariaDB, such a transaction may lock a name whose row the cleaner has removed. Then it keeps a lock on
/// the gap around the row until it ends, and no new names can be made there. Roll it back, as after any error, or use
/// READ COMMITTED, which locks no gaps.
///
/// # A transaction that is over
///
/// rowlock detects it, even if your own SQL (`COMMIT`, `ROLLBACK`) has ended it without sqlx's knowledge:
/// [`TransactionError::Over`](crate::TransactionError::Over). (It does not detect that your SQL has begun another
/// transaction since.) On PostgreSQL this takes one more round trip for a lock before the first write, in a
/// transaction that [`Retry`](crate::Retry) has not begun.
///
/// A savepoint that is rolled back gives back what was locked or advanced in it. (GUARANTEES: «How do I make sure that
/// a late write is not committed?».)
///
/// # When the process dies, or is paused
///
/// A process that dies frees the name at once: the server sees its connection close. (If the host vanishes, the server
/// notices by TCP keep-alives: set them to less than two hours.) A paused process keeps the name for as long as its
/// connection lives: limit that in the server (`idle_in_transaction_session_timeout`, `wait_timeout`).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/shop.db?mode=rwc", dir.path().display());
/// let pool = sqlx::SqlitePool::connect(&url).await?;
/// # sqlx::raw_sql("CREATE TABLE stock (items INTEGER)").execute(&pool).await?;
/// let rowlock = rowlock::Rowlock::from_pool(&pool).await?;
///
/// let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
/// let locked = rowlock.in_tx(&mut tx).lock("stock:42").acquire().await?;
/// sqlx::query("UPDATE stock SET items = items - 1").execute(&mut *tx).await?;
/// println!("written under fence {}", locked.fence());
/// tx.commit().await?; // and the lock is free
/// # Ok(())
/// # }
/// ```
#[must_use = "it does nothing by itself"]
pub struct InTx<'t, T> {
    core: Arc<Core>,
    tx: &'t mut T,
}

impl<T> fmt::Debug for InTx<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InTx").finish_non_exhaustive()
    }
}

impl<'t, T: Transaction> InTx<'t, T> {
    pub(crate) fn new(core: Arc<Core>, tx: &'t mut T) -> Self {
        Self { core, tx }
    }

    /// The lock called `name`, in this transaction.
    pub fn lock<N>(self, name: N) -> LockInTx<'t, T>
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        self.lock_all([name])
    }

    /// Several locks at once: all of them or none, in the order of their names, so that no two calls
    /// deadlock. Acquiring fails with
    /// [`TransactionError::DuplicateName`](crate::TransactionError::DuplicateName) when a name is given twice, and
    /// with [`InvalidError::Setting`](crate::InvalidError::Setting) when no name is given.
    pub fn lock_all<I>(self, names: I) -> LockInTx<'t, T>
    where
        I: IntoIterator,
        I::Item: TryInto<Name>,
        <I::Item as TryInto<Name>>::Error: Into<Error>,
    {
        let names = names.into_iter().map(TryInto::try_into);
        let names: Result<Vec<Name>, _> = names.collect();
        LockInTx {
            names: names.map_err(Into::into).and_then(sorted),
            core: self.core,
            tx: self.tx,
            wait: None,
        }
    }

    /// The version of `name`, as this transaction sees it; see [`Version`]. Read it *before* the data that
    /// it protects, and read both in this transaction. (MySQL and MariaDB at SERIALIZABLE lock every row that a
    /// transaction reads, this one too, until the transaction ends.)
    ///
    /// # Errors
    ///
    /// An invalid name; a transaction that belongs to another database, has failed, or must begin again; a database
    /// out of reach; a damaged row. [`Error::Starved`] when the name has no row yet, and rowlock could not make it
    /// within two seconds, or half of [`operation_timeout`](crate::Builder::operation_timeout).
    pub async fn version<N>(self, name: N) -> Result<Version, Error>
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        let name = name.try_into().map_err(Into::into)?;
        Version::read_in(&self.core, self.tx, name).await
    }

    /// Takes the name for this transaction, if the name was not granted since `version` was read, and has no
    /// holder now. The grant has a new fence, which is the new version. Until the transaction ends, no other holder
    /// is granted the name. It never waits for a holder.
    ///
    /// Advance right before the commit: from the advance on, others find the name busy.
    ///
    /// # Errors
    ///
    /// A transaction that belongs to another database, is read only, is over, or must begin again;
    /// a database out of reach. A conflict is not an error. (If this transaction already holds the name, the result is
    /// [`TransactionError::AlreadyLocked`](crate::TransactionError::AlreadyLocked), or a conflict.)
    ///
    /// # Cancel safety
    ///
    /// After dropping the future, roll the transaction back.
    pub async fn advance(self, version: &Version) -> Result<Advance, Error> {
        version.advance_in(&self.core, self.tx).await
    }
}

/// A request for a lock in a transaction: made by [`InTx::lock`] and [`InTx::lock_all`].
#[must_use = "a lock does nothing until it is acquired"]
pub struct LockInTx<'t, T> {
    core: Arc<Core>,
    tx: &'t mut T,
    names: Result<Vec<Name>, Error>,
    wait: Option<Duration>,
}

impl<T> fmt::Debug for LockInTx<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockInTx")
            .field("names", &self.names)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

impl<T: Transaction> LockInTx<'_, T> {
    /// The longest time that [`acquire`](Self::acquire) waits: at most 366 days; for ever when not set.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Asks once, and does not wait for a holder. `None`: another holder has the name, or one of the names, and
    /// nothing was granted. (To learn who, [`acquire`](Self::acquire) with a [`wait`](Self::wait) of zero.)
    ///
    /// After `None` the transaction can go on, but end it soon: on MySQL and MariaDB, rows that it has
    /// looked at may stay locked until it ends. These are the rows of the names before the busy one, and the row of a
    /// lease whose name this client had not seen leased before. That lease cannot be renewed meanwhile.
    ///
    /// # Errors
    ///
    /// Invalid names; a transaction that belongs to another database, is read only, is over, or must begin again; a
    /// name that it already holds; a database out of reach; a damaged row. Contention is not an error, except in one
    /// case on PostgreSQL: a lease was granted in the microseconds in which this transaction locked its row
    /// ([`Error::Conflict`]).
    ///
    /// [`Error::Starved`] when the name has no row yet, and rowlock could not make it within two seconds, or half of
    /// [`operation_timeout`](crate::Builder::operation_timeout); or when a lease of it lingers in this client, and
    /// rowlock could not release it in that time.
    ///
    /// # Cancel safety
    ///
    /// After dropping the future, roll the transaction back. (MySQL over TLS: sqlx's pool may lose the connection for
    /// good, unless the pool has an `after_release` that pings. [`Retry`](crate::Retry) does not need this.)
    pub async fn try_acquire(self) -> Result<Option<Locked>, Error> {
        Ok(self.try_or_busy().await?.held())
    }

    async fn try_or_busy(self) -> Result<TryAcquire<Locked>, Error> {
        let names = self.names?;
        self.core.lanes.check_open()?;
        let mut attempt = InTransaction::new(&self.core, self.tx, names, "lock").await?;
        let new = match attempt.look_first().await? {
            TxLook::Leased(busy) => return Ok(TryAcquire::Busy(busy)),
            TxLook::Free { new } => new,
        };
        match attempt.take().await? {
            Taking::Locked(locked) => return Ok(TryAcquire::Held(locked)),
            Taking::Missed(Some(busy)) => return Ok(TryAcquire::Busy(busy)),
            Taking::Quarantined(left) => return Ok(TryAcquire::Busy(attempt.quarantined(left))),
            Taking::Missed(None) | Taking::Blocking => {}
        }
        attempt.check_starved().await?;
        let hidden = new && attempt.capabilities().locks_only_its_snapshot;
        if hidden && !attempt.sees_all().await? {
            return Err(attempt.invisible());
        }
        let busy = attempt.busy().await?;
        if attempt.freed
            && let Taking::Locked(locked) = attempt.take().await?
        {
            return Ok(TryAcquire::Held(locked));
        }
        Ok(TryAcquire::Busy(busy))
    }

    /// Waits for the lock, for at most [`wait`](Self::wait). With a wait of zero it asks once, as
    /// [`try_acquire`](Self::try_acquire) does.
    ///
    /// It waits in the database for other transactions: the database chooses their order, and detects their deadlocks.
    /// It polls for the end of a lease. Meanwhile the transaction keeps its connection and all its locks. A holder
    /// that needs one of these locks, or a connection of an exhausted pool, waits for ever. So set
    /// [`wait`](Self::wait) where leases and transactions share names.
    ///
    /// On SQLite a transaction that may write locks the whole file, and while it waited, the holder could neither
    /// renew nor release its lease. So a held name is [`Error::Conflict`] at once, which [`Retry`](crate::Retry)
    /// tries again.
    ///
    /// # Errors
    ///
    /// [`Error::WaitTimeout`] when the lock was not free in time, and at once in a
    /// [quarantine](crate::Admin::quarantine); [`Error::Conflict`] when the database ended this
    /// transaction to resolve a deadlock, or (MySQL and MariaDB) when a lease was granted that its holder could not
    /// renew while this transaction waits; and the errors of [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`try_acquire`](Self::try_acquire). Dropping the future does not stop the statement: it keeps
    /// its connection until it gets the row, or until its time limit ends. So set [`wait`](Self::wait), and put no
    /// timeout around this future.
    pub async fn acquire(self) -> Result<Locked, Error> {
        if let Some(wait) = self.wait {
            check_wait(wait)?;
        }
        let started = Moment::now();
        if self.wait == Some(Duration::ZERO) {
            return self.try_or_busy().await?.or_timed_out();
        }
        let limit = self.wait.map(|wait| started + wait);
        let timed_out = |busy| timed_out(busy, started.elapsed());
        let names = self.names?;
        let several = names.len() > 1;
        self.core.lanes.check_open()?;
        let mut attempt = InTransaction::new(&self.core, self.tx, names, "lock").await?;
        let mut backoff = backoff::poll();
        // Whether this transaction may have locked rows that now have a lease.
        let mut may_block = false;
        loop {
            let busy = match attempt.look_first().await? {
                TxLook::Leased(busy) => busy,
                TxLook::Free { .. } => match attempt.take().await? {
                    Taking::Locked(locked) => return Ok(locked),
                    Taking::Missed(Some(busy)) => return Err(conflict(&busy.name)),
                    Taking::Quarantined(left) => return Err(timed_out(attempt.quarantined(left))),
                    Taking::Missed(None) => {
                        attempt.check_starved().await?;
                        may_block |= attempt.capabilities().leased_rows_stay_locked && several;
                        attempt.busy().await?
                    }
                    // Or the name is no lock: then the look fails.
                    Taking::Blocking => {
                        attempt.check_starved().await?;
                        return attempt.busy().await.and(Err(attempt.blocking()));
                    }
                },
            };
            let remaining = busy.remaining();
            if may_block && remaining.is_some() {
                return Err(attempt.blocking());
            }
            let left = limit.map(Moment::remaining);
            if left == Some(Duration::ZERO) {
                return Err(timed_out(busy));
            }
            // Others of this client may have taken it since, and let it linger. (If it cannot be released now, it is
            // busy as before.)
            if attempt.recall().await.unwrap_or_default() {
                continue;
            }
            if remaining.is_some() || attempt.orphaned {
                let pause = backoff.next().unwrap_or_default();
                let pause = remaining.map_or(pause, |remaining| pause.min(remaining));
                let wake = Moment::now() + pause;
                sleep_until(limit.map_or(wake, |limit| wake.min(limit))).await;
                continue;
            }
            backoff = backoff::poll();
            may_block |= attempt.capabilities().leased_rows_stay_locked;
            match attempt.wait(left).await? {
                TxWaited::TimedOut if limit.is_some_and(Moment::has_passed) => {
                    return Err(timed_out(busy));
                }
                TxWaited::Locked | TxWaited::Changed | TxWaited::TimedOut => {}
                TxWaited::Invisible => return Err(attempt.invisible()),
            }
        }
    }
}
