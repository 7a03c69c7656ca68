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
//! - *Rolled back*: the fence is given back with everything else. The next one is greater all the same, unless
//!   the database's clock stands behind the fences of the row.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::hold::clock::{Moment, sleep_until};
use crate::hold::{Core, retry};
use crate::lock::{Advance, Busy, Version, check_wait};
use crate::store::fault::{Fault, FaultKind};
use crate::store::{Store, Told, TxAsk, TxTaken, TxWaited};
use crate::{Engine, Error, Name};
use uuid::Uuid;

/// An open transaction of sqlx: `Transaction<'_, Postgres>`, `Transaction<'_, MySql>` (MariaDB too),
/// `Transaction<'_, Sqlite>`, or a [`RetryTx`](crate::RetryTx) of one of them. Sealed.
pub trait Transaction: sealed::Sealed {}

pub(crate) mod sealed {
    use crate::Engine;
    use crate::store::Store;

    pub trait Sealed: Send {
        #[allow(private_bounds, reason = "sealed")]
        type Connection: Store;

        /// The engine, or one of those that share its protocol.
        const ENGINE: Engine;

        #[doc(hidden)]
        fn connection(&mut self) -> &mut Self::Connection;
    }
}

macro_rules! transaction {
    ($feature:literal, $brand:ty, $connection:ty, $engine:expr) => {
        #[cfg(feature = $feature)]
        impl sealed::Sealed for sqlx::Transaction<'_, $brand> {
            type Connection = $connection;

            const ENGINE: Engine = $engine;

            fn connection(&mut self) -> &mut $connection {
                self
            }
        }

        #[cfg(feature = $feature)]
        impl Transaction for sqlx::Transaction<'_, $brand> {}
    };
}

transaction!(
    "postgres",
    sqlx::Postgres,
    sqlx::PgConnection,
    Engine::Postgres
);
transaction!("mysql", sqlx::MySql, sqlx::MySqlConnection, Engine::MySql);
transaction!(
    "sqlite",
    sqlx::Sqlite,
    sqlx::SqliteConnection,
    Engine::Sqlite
);

/// Locks in one transaction: made by [`Rowlock::in_tx`](crate::Rowlock::in_tx).
///
/// The transaction is one of the application's own pool, on the database of the client. It is only
/// borrowed: statements of the application's own go before, between and behind.
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
    /// deadlock.
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
    /// it stands for.
    ///
    /// # Errors
    ///
    /// A refused name; a transaction that belongs to another database or is over; a database out of reach; a
    /// damaged row.
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
    /// A transaction that belongs to another database, is read only, is over, or has to be begun again; a
    /// database out of reach. A conflict is not an error.
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
            reason: "at least one is needed",
        });
    }
    names.sort();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::AlreadyLocked {
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
    /// The fence of the grant: greater than that of every earlier grant of the name. Of several names,
    /// that of the first in their order.
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
    /// has looked at may stay locked until then. (Those of several names before the busy one; under REPEATABLE READ
    /// also one whose lease came as a surprise: it cannot be renewed meanwhile.)
    ///
    /// # Errors
    ///
    /// Refused names; a transaction that belongs to another database, is read only, is over, or has to be
    /// begun again; a name that it has locked before; a database out of reach; a damaged row. Contention is
    /// not an error.
    ///
    /// # Cancel safety
    ///
    /// After a future that was dropped, roll the transaction back.
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
        if new && attempt.wait(Some(Duration::ZERO)).await? == TxWaited::Invisible {
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
    /// [`Error::WaitTimeout`] when it was not free in time, [`Error::TransactionAborted`] when the database chose
    /// this transaction to end a deadlock, and those of [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// After a future that was dropped, roll the transaction back.
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
        let mut attempt = InTransaction::new(&self.core, self.tx, names, "lock")?;
        let mut backoff = retry::poll();
        loop {
            let busy = match attempt.look_first().await? {
                Looked::Leased(busy) => busy,
                Looked::Free { .. } => match attempt.take().await? {
                    Taking::Locked(locked) => return Ok(locked),
                    Taking::Missed(Some(busy)) => return Err(conflict(&busy.name)),
                    Taking::Missed(None) => attempt.busy().await?,
                    Taking::Blocking => return Err(attempt.blocking()),
                },
            };
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
            backoff = retry::poll();
            match attempt.wait(left).await? {
                TxWaited::TimedOut if limit.is_some_and(Moment::has_passed) => {
                    return Err(timed_out(busy));
                }
                TxWaited::Locked | TxWaited::TimedOut => {}
                TxWaited::Invisible => return Err(attempt.invisible()),
            }
        }
    }
}

pub(super) fn conflict(name: &Name) -> Error {
    Error::Conflict {
        what: format!("{name:?}"),
    }
}

enum Looked {
    /// Somebody has a lease.
    Leased(Busy),
    /// Nobody, as far as was looked. `new`: a row may be newer than the transaction's snapshot.
    Free { new: bool },
}

enum Taking {
    Locked(Locked),
    /// With the holder, where that is known without another look.
    Missed(Option<Busy>),
    /// Somebody has a lease, and this transaction its row.
    Blocking,
}

/// One call in a transaction: the client, the transaction and the names, checked.
pub(super) struct InTransaction<'a, T> {
    core: &'a Arc<Core>,
    tx: &'a mut T,
    names: Vec<Name>,
    doing: &'static str,
}

impl<'a, T: Transaction> InTransaction<'a, T> {
    pub(super) fn new(
        core: &'a Arc<Core>,
        tx: &'a mut T,
        names: Vec<Name>,
        doing: &'static str,
    ) -> Result<Self, Error> {
        let it = Self {
            core,
            tx,
            names,
            doing,
        };
        if core.engine.feature() == T::ENGINE.feature() {
            Ok(it)
        } else {
            Err(it.wrong(format!(
                "it is a transaction of {}, the client's is {}",
                T::ENGINE.feature(),
                core.engine
            )))
        }
    }

    pub(super) fn connection(&mut self) -> &mut T::Connection {
        self.tx.connection()
    }

    /// Looks at what has to be seen from outside of the transaction, before it locks anything.
    ///
    /// Rows are made outside: inside, everybody else who makes the same one would wait for the transaction's
    /// end. And MySQL cannot look at a lease without locking it, so where leases have been seen, they are
    /// looked for first. On SQLite everybody waits anyway, and a transaction sees everything.
    async fn look_first(&self) -> Result<Looked, Error> {
        let mut new = false;
        let engine = self.core.engine;
        if engine == Engine::Sqlite {
            return Ok(Looked::Free { new });
        }
        let blocks = matches!(engine, Engine::MySql | Engine::MariaDb);
        for name in &self.names {
            let known = self.core.known(name);
            if known.is_some_and(|known| !(known.leased && blocks)) {
                continue;
            }
            new |= known.is_none();
            let seen = self.core.row(name).await?;
            if seen.holder.is_some() {
                return Ok(Looked::Leased(Busy {
                    name: name.clone(),
                    holder: seen.holder,
                }));
            }
        }
        Ok(Looked::Free { new })
    }

    /// Makes the row of the name, as [`look_first`](Self::look_first) does.
    pub(super) async fn ensure_row(&self) -> Result<(), Error> {
        let name = self.first();
        if self.core.engine != Engine::Sqlite && self.core.known(name).is_none() {
            self.core.row(name).await?;
        }
        Ok(())
    }

    async fn take(&mut self) -> Result<Taking, Error> {
        let asks: Vec<TxAsk> = self.names.iter().map(|name| self.ask(name, None)).collect();
        match self.grant(&asks).await? {
            TxTaken::Granted { fences, .. } => {
                let grants = self.names.iter().cloned().zip(fences).collect();
                Ok(Taking::Locked(Locked { grants }))
            }
            TxTaken::Missed(None) | TxTaken::Early(_) => Ok(Taking::Missed(None)),
            TxTaken::Missed(Some(row)) => {
                let holder = row.info()?;
                Ok(Taking::Missed(Some(Busy {
                    name: holder.name.clone(),
                    holder: Some(holder),
                })))
            }
            TxTaken::Again => Err(Error::AlreadyLocked {
                name: self.first().clone(),
            }),
            TxTaken::Blocking => Ok(Taking::Blocking),
            TxTaken::NoRow => Err(self.aborted("the lock's row was removed")),
        }
    }

    pub(super) fn ask(&self, name: &Name, version: Option<i64>) -> TxAsk {
        TxAsk {
            name: name.clone(),
            version,
            before: self.core.known(name).and_then(|known| known.granted),
        }
    }

    /// One try to be granted everything.
    pub(super) async fn grant(&mut self, asks: &[TxAsk]) -> Result<TxTaken, Error> {
        let taken = loop {
            let told = self.tx.connection().tx_take(asks).await;
            match self.told(told)? {
                TxTaken::Early(pause) => sleep_until(Moment::now() + pause).await,
                taken => break taken,
            }
        };
        match &taken {
            TxTaken::Granted {
                fences,
                perhaps_again,
            } => {
                for (ask, fence) in asks.iter().zip(fences) {
                    self.core.remember_grant(&ask.name, *fence);
                }
                for ask in asks.iter().filter(|ask| perhaps_again.contains(&ask.name)) {
                    // What others do not see, this transaction has written.
                    if self.core.committed_fence(&ask.name).await? != ask.before {
                        return Err(Error::AlreadyLocked {
                            name: ask.name.clone(),
                        });
                    }
                }
            }
            TxTaken::Blocking => asks
                .iter()
                .for_each(|ask| self.core.remember_lease(&ask.name)),
            TxTaken::NoRow => asks.iter().for_each(|ask| self.core.forget(&ask.name)),
            TxTaken::Again | TxTaken::Missed(_) | TxTaken::Early(_) => {}
        }
        Ok(taken)
    }

    async fn wait(&mut self, limit: Option<Duration>) -> Result<TxWaited, Error> {
        let waited = self.tx.connection().tx_wait(&self.names, limit).await;
        waited.map_err(|fault| self.error(fault))
    }

    /// Who is in the way, as everybody sees it.
    async fn busy(&self) -> Result<Busy, Error> {
        for name in &self.names {
            let seen = self.core.row(name).await?;
            if seen.holder.is_some() {
                return Ok(Busy {
                    name: name.clone(),
                    holder: seen.holder,
                });
            }
        }
        Ok(Busy {
            name: self.first().clone(),
            holder: None,
        })
    }

    fn first(&self) -> &Name {
        // Checked when the request was made.
        &self.names[0]
    }

    /// What was found, if it was found in the client's own database.
    pub(super) fn told<F>(&self, told: Result<Told<F>, Fault>) -> Result<F, Error> {
        let told = told.map_err(|fault| self.error(fault))?;
        self.check(told.database)?;
        Ok(told.found)
    }

    pub(super) fn check(&self, database: Option<Uuid>) -> Result<(), Error> {
        match database {
            Some(id) if id == self.core.database => Ok(()),
            Some(_) => Err(self.wrong("its tables are those of another database".into())),
            None => Err(self.wrong("its table rowlock_database is empty".into())),
        }
    }

    fn wrong(&self, detail: String) -> Error {
        Error::WrongDatabase {
            doing: self.doing,
            name: self.first().clone(),
            target: self.core.target.to_string(),
            detail,
        }
    }

    /// Waiting for a lease that this transaction keeps from being renewed would be to rob it.
    fn blocking(&self) -> Error {
        self.aborted("somebody has a lease, which cannot be renewed before this transaction ends")
    }

    pub(super) fn invisible(&self) -> Error {
        self.aborted("the lock's row is newer than the transaction's snapshot")
    }

    fn aborted(&self, detail: &str) -> Error {
        Error::TransactionAborted {
            doing: self.doing,
            name: self.first().clone(),
            detail: detail.into(),
        }
    }

    pub(super) fn error(&self, fault: Fault) -> Error {
        let (doing, name) = (self.doing, self.first().clone());
        let detail = fault.to_string();
        match fault.kind {
            kind if kind.is_retryable_in_tx() => Error::TransactionAborted {
                doing,
                name,
                detail,
            },
            FaultKind::TransactionOver | FaultKind::Disconnected => Error::TransactionOver {
                doing,
                name,
                detail,
            },
            FaultKind::ReadOnly | FaultKind::Unwritable => Error::ReadOnlyTransaction {
                doing,
                name,
                detail,
            },
            FaultKind::NoSuchTable => self.wrong(format!("there are no rowlock tables: {detail}")),
            _ => fault.into_error(doing, &self.core.target),
        }
    }
}
