//! Pessimistic locks: the name's row, locked in a transaction of the caller's.
//!
//! # Overview
//!
//! The row of the name is locked and written (a new fence) in the caller's own transaction. There is no TTL and no
//! renewal: the lock is the transaction's, and ends with it.
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
//! There is none: what the transaction writes commits together with the lock, or not at all. A process that is
//! paused holds the lock for as long as its connection lives; one that dies frees it at once, when the server
//! sees its connection close.
//!
//! # Failure
//!
//! - *The process crashes*: the server rolls back, and the name is free within moments.
//! - *The process is paused*: everybody else waits, or is told busy. Where that must not last, bound it in the
//!   server (`idle_in_transaction_session_timeout`, `wait_timeout`): the transaction is then rolled back, and
//!   nothing of it can be committed any more.
//! - *The host vanishes without a word*: the server waits for its TCP keep-alive; set it to less than its
//!   default of two hours.
//! - *A deadlock* (with other rows that are locked in another order): the database ends one of the
//!   transactions: [`Error::TransactionAborted`], which [`Retry`](crate::Retry) tries again. Names that are
//!   locked in one call never deadlock with each other.
//! - *Transactions that follow each other on a name* keep waiters for a lease of it away: a transaction that ends hands the row to
//!   the next one that waits in the database, and a waiter for a lease, which looks every 2 to 80 ms, finds it locked. With 16
//!   connections that locked one name without a pause, for 5 to 50 ms each, no waiter on MySQL and MariaDB was granted a lease in
//!   12 s (180 to 1,000 transactions); on PostgreSQL they waited for up to 3 s (226 transactions). With 4 connections all were
//!   granted one in 1.2 s. So choose one mode for a name that is never free for long.
//! - *Rolled back*: the fence is given back with everything else. The next one is greater all the same, unless
//!   the database's clock shows an earlier time than the fence in the row.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::lock::call::{InTransaction, Looked, Taking, conflict};
use crate::lock::{Advance, Version};
use crate::model::bounds::check_wait;
use crate::model::{Busy, Error, Moment, Name};
use crate::runtime::timer::sleep_until;
use crate::runtime::{Core, backoff};
use crate::store::in_tx::TxWaited;
use crate::transaction::Transaction;

/// Locks in one transaction: made by [`Rowlock::in_tx`](crate::Rowlock::in_tx).
///
/// The transaction is one of the application's own pool, on the database of the client. It is only
/// borrowed: statements of the application's own go before, between and after.
///
/// # Lock first, then read
///
/// A lock protects what is read after it. Under REPEATABLE READ (the default of MySQL and MariaDB) and
/// SERIALIZABLE the first plain SELECT of a transaction decides what all later ones see: where it comes before the
/// lock, those after it read what was there before, and what others have written meanwhile is overwritten. So lock
/// before the first read of the transaction, or read with FOR UPDATE. PostgreSQL notices, and the call is
/// [`Error::TransactionAborted`].
///
/// On MySQL and MariaDB such a transaction keeps, where it locks a name whose row is missing (the cleaner has removed it
/// meanwhile), a lock on the gap around it until it ends, and nobody makes new names there before. Roll it back, as after any error,
/// or let such transactions be READ COMMITTED, which locks no gaps.
///
/// # A transaction that is over
///
/// It is found out, also where SQL of your own (`COMMIT`, `ROLLBACK`) has ended it and sqlx does not know:
/// [`Error::TransactionOver`]. (Not where that SQL has begun another one since.) On PostgreSQL a lock that comes before anything was written, in a transaction
/// that [`Retry`](crate::Retry) has not begun, takes a round trip more for that.
///
/// # When the process dies, or is paused
///
/// A process that dies frees the name at once: the server sees its connection close. (A host that vanishes without
/// a word is noticed by TCP keep-alives: set them to less than two hours.) A process that is paused keeps it for as
/// long as its connection lives: bound that in the server (`idle_in_transaction_session_timeout`, `wait_timeout`).
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
    /// deadlock. Acquiring fails with [`Error::DuplicateName`] when a name is given twice, and is
    /// [`Error::InvalidSetting`] when there is none.
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
    /// it stands for, and read both in this transaction. (MySQL and MariaDB at SERIALIZABLE lock every row that is
    /// read, this one too, until the transaction ends.)
    ///
    /// # Errors
    ///
    /// A refused name; a transaction that belongs to another database, has failed, or has to be begun again; a
    /// database out of reach; a damaged row. [`Error::Starved`] when the name has no row yet, and none could be made within
    /// two seconds, or half of [`operation_timeout`](crate::Builder::operation_timeout).
    pub async fn version<N>(self, name: N) -> Result<Version, Error>
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        let name = name.try_into().map_err(Into::into)?;
        Version::read_in(&self.core, self.tx, name).await
    }

    /// Takes the name for this transaction, if nobody was granted it since `version` was read, and nobody
    /// holds it now: the version moves on, under a new fence. Until the transaction ends, nobody else is
    /// granted the name. It never waits.
    ///
    /// Advance right before the commit: from here on others find the name busy.
    ///
    /// # Errors
    ///
    /// A transaction that belongs to another database, is read only, is over, or has to be begun again;
    /// a database out of reach. A conflict is not an error. (When this very transaction has been granted the name
    /// before, that is [`Error::AlreadyLocked`], or a conflict.)
    ///
    /// # Cancel safety
    ///
    /// After a future that was dropped, roll the transaction back.
    pub async fn advance(self, version: &Version) -> Result<Advance, Error> {
        version.advance_in(&self.core, self.tx).await
    }
}

/// Sorted, and each once.
fn sorted(mut names: Vec<Name>) -> Result<Vec<Name>, Error> {
    if names.is_empty() {
        return Err(Error::InvalidSetting {
            setting: "names",
            reason: "at least one name is needed",
        });
    }
    names.sort();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::DuplicateName {
            name: pair[0].clone(),
        }),
        None => Ok(names),
    }
}

/// A lock to be acquired in a transaction: made by [`InTx::lock`] and [`InTx::lock_all`].
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

/// Names that a transaction has locked, until it ends. (Dropping this does nothing.)
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locked {
    grants: Vec<(Name, i64)>,
}

impl Locked {
    pub(super) fn new(grants: Vec<(Name, i64)>) -> Self {
        Self { grants }
    }

    /// The fence of the grant: greater than that of every earlier grant of the name. Of several names,
    /// that of the first in their order.
    ///
    /// When the transaction is rolled back, so is its fence. It is never given again, unless the database's clock
    /// stands behind the row's fences (it was set back by hand).
    #[must_use]
    pub fn fence(&self) -> i64 {
        self.grants.first().map_or(0, |(_, fence)| *fence)
    }

    /// The names, in their order, with their fences.
    pub fn fences(&self) -> impl Iterator<Item = (&Name, i64)> {
        self.grants.iter().map(|(name, fence)| (name, *fence))
    }
}

/// The outcome of [`LockInTx::try_acquire`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "it tells whether the name is locked"]
pub enum TryLock {
    /// Locked until the transaction ends.
    Locked(Locked),
    /// Somebody else has it, or one of them. Nothing was granted.
    Busy(Busy),
}

impl TryLock {
    /// The grant, if there is one.
    #[must_use]
    pub fn locked(self) -> Option<Locked> {
        match self {
            Self::Locked(locked) => Some(locked),
            Self::Busy(_) => None,
        }
    }
}

impl<T: Transaction> LockInTx<'_, T> {
    /// How long [`acquire`](Self::acquire) waits, at most 366 days. For ever when not set.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Asks once, and waits for nobody.
    ///
    /// After [`TryLock::Busy`] the transaction can go on, but end it soon: on MySQL and MariaDB the rows that it
    /// has looked at may stay locked until then. (Those of several names before the busy one; also one whose lease
    /// came as a surprise, because this client had not seen a lease of that name before: it cannot be renewed
    /// meanwhile.)
    ///
    /// # Errors
    ///
    /// Refused names; a transaction that belongs to another database, is read only, is over, or has to be
    /// begun again; a name that it has locked before; a database out of reach; a damaged row. Contention is
    /// not an error. (But for one case on PostgreSQL, [`Error::TransactionAborted`]: a lease was granted in the microseconds
    /// in which this transaction locked its row.)
    ///
    /// [`Error::Starved`] when the name has no row yet, and none could be made within two seconds, or half of
    /// [`operation_timeout`](crate::Builder::operation_timeout).
    ///
    /// # Cancel safety
    ///
    /// After a future that was dropped, roll the transaction back. (MySQL over TLS: sqlx's pool may lose the connection for
    /// good, unless the pool has an `after_release` that pings; [`Retry`](crate::Retry) needs none.)
    pub async fn try_acquire(self) -> Result<TryLock, Error> {
        let names = self.names?;
        let mut attempt = InTransaction::new(&self.core, self.tx, names, "lock")?;
        let new = match attempt.look_first().await? {
            Looked::Leased(busy) => return Ok(TryLock::Busy(busy)),
            Looked::Free { new } => new,
        };
        match attempt.take().await? {
            Taking::Locked(locked) => return Ok(TryLock::Locked(locked)),
            Taking::Missed(Some(busy)) => return Ok(TryLock::Busy(busy)),
            Taking::Missed(None) | Taking::Blocking => {}
        }
        attempt.check_starved().await?;
        let hidden = new && attempt.capabilities().locks_only_its_snapshot;
        if hidden && !attempt.sees_all().await? {
            return Err(attempt.invisible());
        }
        attempt.busy().await.map(TryLock::Busy)
    }

    /// Waits for the lock, as long as [`wait`](Self::wait) says.
    ///
    /// It waits in the database for other transactions, which are served in the order that the database
    /// chooses and whose deadlocks it sees; and it looks again and again at a lease. Meanwhile the transaction
    /// keeps its connection, and everything that it has locked: a holder that needs one of these, or a
    /// connection of an exhausted pool, waits for ever. So give [`wait`](Self::wait) a bound where leases and
    /// transactions share names.
    ///
    /// On SQLite a transaction that may write has the whole file, and while it waited the lease could neither
    /// be renewed nor released: a held name is [`Error::Conflict`] at once, which [`Retry`](crate::Retry) tries
    /// again.
    ///
    /// # Errors
    ///
    /// [`Error::WaitTimeout`] when it was not free in time; [`Error::TransactionAborted`] when the database chose
    /// this transaction to end a deadlock, or (MySQL and MariaDB) when somebody was granted a lease that this
    /// transaction would keep from being renewed if it went on waiting; and those of
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`try_acquire`](Self::try_acquire).
    pub async fn acquire(self) -> Result<Locked, Error> {
        let names = self.names?;
        if let Some(wait) = self.wait {
            check_wait(wait)?;
        }
        let started = Moment::now();
        let limit = self.wait.map(|wait| started + wait);
        let timed_out = |busy: Busy| Error::WaitTimeout {
            name: busy.name.clone(),
            waited: started.elapsed(),
            busy: Box::new(busy),
        };
        let several = names.len() > 1;
        let mut attempt = InTransaction::new(&self.core, self.tx, names, "lock")?;
        let mut backoff = backoff::poll();
        // Whether rows may be locked that somebody has a lease of by now.
        let mut may_block = false;
        loop {
            let busy = match attempt.look_first().await? {
                Looked::Leased(busy) => busy,
                Looked::Free { .. } => match attempt.take().await? {
                    Taking::Locked(locked) => return Ok(locked),
                    Taking::Missed(Some(busy)) => return Err(conflict(&busy.name)),
                    Taking::Missed(None) => {
                        attempt.check_starved().await?;
                        may_block |= attempt.capabilities().leased_rows_stay_locked && several;
                        attempt.busy().await?
                    }
                    Taking::Blocking => return Err(attempt.blocking()),
                },
            };
            if may_block && busy.holder.is_some() {
                return Err(attempt.blocking());
            }
            let left = limit.map(Moment::remaining);
            if left == Some(Duration::ZERO) {
                return Err(timed_out(busy));
            }
            if let Some(holder) = &busy.holder {
                let pause = backoff.next().unwrap_or_default().min(holder.remaining);
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
