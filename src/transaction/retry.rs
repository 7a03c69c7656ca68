//! Running a transaction again when somebody else was faster.
//!
//! # Overview
//!
//! [`Retry::run`] begins a transaction, hands it to a closure, and commits when that one returns `Ok`. When it
//! returns an error that another try may well mend, the transaction is rolled back and, after a pause, everything
//! is done again on a fresh one: a conflict of an optimistic lock, a deadlock, a serialization failure, a lock
//! that the database waited for in vain, SQLite's "busy".
//!
//! # Failure
//!
//! - *A pooler has given all of the server's connections to transactions that wait for a row to be made*
//!   ([`Error::Starved`]): what is missing is made, all together, between two attempts, when this transaction keeps no
//!   connection.
//! - *The connection breaks before the commit*: nothing is committed; the error is returned.
//! - *The connection breaks under the commit*: whether it was committed is unknown, and trying again might do it
//!   twice: [`Error::CommitUnknown`].

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::SqlSafeStr;
use sqlx::error::DatabaseError;

use super::sealed::{self, AtEnd};
use super::{Pool, Transaction};
use crate::model::{Engine, Error, FaultKind, Moment, Name};
use crate::runtime::timer::sleep_until;
use crate::runtime::{self, Core, backoff};
use crate::store::fault::{classify, classify_database};

/// A policy for trying a transaction again: how often, and with which pauses.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/shop.db?mode=rwc", dir.path().display());
/// # let pool = sqlx::SqlitePool::connect(&url).await?;
/// # sqlx::raw_sql("CREATE TABLE stock (items INTEGER); INSERT INTO stock VALUES (9)").execute(&pool).await?;
/// # let rowlock = rowlock::Rowlock::from_pool(&pool).await?;
/// use rowlock::Retry;
///
/// let rowlock = &rowlock;
/// let left = Retry::new()
///     .attempts(20)
///     .run(&pool, |mut tx| async move {
///         let seen = rowlock.in_tx(&mut tx).version("stock:42").await?;
///         let items: i64 = sqlx::query_scalar("SELECT items FROM stock").fetch_one(&mut **tx).await?;
///         sqlx::query("UPDATE stock SET items = ?").bind(items - 1).execute(&mut **tx).await?;
///         rowlock.in_tx(&mut tx).advance(&seen).await?.or_conflict(&seen)?;
///         Ok::<_, rowlock::Error>(items - 1)
///     })
///     .await?;
/// # assert_eq!(left, 8);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a policy does nothing until something is run under it"]
pub struct Retry {
    attempts: u32,
    shortest: Duration,
    longest: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self::new()
    }
}

impl Retry {
    /// 10 attempts, with pauses of up to 10 ms, 20 ms, … 1 s between them.
    pub const fn new() -> Self {
        Self {
            attempts: 10,
            shortest: Duration::from_millis(10),
            longest: Duration::from_secs(1),
        }
    }

    /// How often it is tried at most: 1 or more. `u32::MAX` is without end.
    pub const fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// The pause before the second attempt is somewhere between nothing and `shortest`; the bound doubles with
    /// every attempt, up to `longest`, which is at most an hour ("full jitter").
    pub const fn backoff(mut self, shortest: Duration, longest: Duration) -> Self {
        self.shortest = shortest;
        self.longest = longest;
        self
    }

    /// Runs `work` in a fresh transaction of `pool` and commits; tries again, under this policy, when that failed
    /// for a reason that may have passed ([`Retryable`]).
    ///
    /// Return the errors of your statements: a transaction that has failed, and whose closure says `Ok` all the
    /// same, is not committed by PostgreSQL, which reports that as success.
    ///
    /// `work` may run several times: what it does outside of the transaction happens as often. It gets the
    /// transaction, and need not give it back. On SQLite it is begun with BEGIN IMMEDIATE, so that it
    /// cannot be refused the right to write in the middle.
    ///
    /// # Errors
    ///
    /// The last error of `work`, after a rollback; the driver's, when a transaction could not be begun or
    /// committed; [`Error::CommitUnknown`]; [`Error::InvalidSetting`] and [`Error::InvalidDuration`] for a policy
    /// that makes no sense.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future rolls the transaction back, unless its commit was under way.
    pub async fn run<P, T, E, F>(
        &self,
        pool: &P,
        mut work: impl FnMut(RetryTx<sqlx::Transaction<'static, P::Brand>>) -> F,
    ) -> Result<T, E>
    where
        P: Pool,
        E: From<sqlx::Error> + From<Error> + Retryable,
        F: Future<Output = Result<T, E>>,
    {
        let mut attempts = self.attempts_of_one()?;
        loop {
            match Self::once(pool, &attempts.missing, &mut work).await {
                Ok(done) => return Ok(done),
                Err(error) => attempts.again(error).await?,
            }
        }
    }

    async fn once<P, T, E, F>(
        pool: &P,
        missing: &Missing,
        work: &mut impl FnMut(RetryTx<sqlx::Transaction<'static, P::Brand>>) -> F,
    ) -> Result<T, E>
    where
        P: Pool,
        E: From<sqlx::Error> + From<Error> + Retryable,
        F: Future<Output = Result<T, E>>,
    {
        let (tx, lent) = Open::begin(pool, missing).await?.lend();
        let result = work(tx).await;
        let open = lent.back()?;
        match result {
            Ok(done) => open.commit::<E>().await.map(|()| done),
            Err(error) => {
                runtime::finished(open.roll_back()).await;
                Err(error)
            }
        }
    }

    /// The attempts of one run.
    pub(crate) fn attempts_of_one(&self) -> Result<Attempts, Error> {
        self.check()?;
        Ok(Attempts {
            left: (self.attempts != u32::MAX).then_some(self.attempts),
            pauses: Box::new(backoff::full_jitter(self.shortest, self.longest)),
            missing: Arc::default(),
        })
    }

    fn check(&self) -> Result<(), Error> {
        if self.attempts == 0 {
            return Err(Error::InvalidSetting {
                setting: "attempts",
                reason: "at least one attempt is needed",
            });
        }
        if self.longest > Duration::from_hours(1) || self.shortest > self.longest {
            return Err(Error::InvalidDuration {
                setting: "backoff",
                given: self.longest,
                bounds: "the longest pause is at most an hour, and not shorter than the shortest",
            });
        }
        Ok(())
    }
}

/// How often is left, and how long to wait before.
pub(crate) struct Attempts {
    /// `None`: without end.
    left: Option<u32>,
    pauses: Box<dyn Iterator<Item = Duration> + Send>,
    pub(crate) missing: Missing,
}

/// The rows that a transaction could not have made while it kept its connection.
pub(crate) type Missing = Arc<Mutex<Vec<(Arc<Core>, Name)>>>;

impl Attempts {
    /// Waits for the next attempt. The error comes back when there is none, or none would help.
    pub(crate) async fn again<E: Retryable>(&mut self, error: E) -> Result<(), E> {
        if let Some(left) = &mut self.left {
            *left -= 1;
        }
        if self.left == Some(0) || !error.is_retryable() {
            return Err(error);
        }
        let missing = std::mem::take(&mut *lock(&self.missing));
        if !missing.is_empty() {
            // Now that the connection is free. What fails here, fails again in the next attempt.
            runtime::make_rows(missing).await;
        }
        sleep_until(Moment::now() + self.pauses.next().unwrap_or_default()).await;
        Ok(())
    }
}

/// The transaction of one attempt of [`Retry::run`]: dereferences to sqlx's. Dropping it hands it back, to be
/// committed or rolled back.
pub struct RetryTx<T> {
    open: Option<Open<T>>,
    slot: Arc<Mutex<Option<Open<T>>>>,
}

/// A transaction, and what is to be done when it has ended.
pub(crate) struct Open<T> {
    pub(crate) tx: T,
    at_end: Vec<AtEnd>,
    /// To be made before the next attempt, when it has been rolled back.
    missing: Missing,
}

/// The way back of a transaction that was handed out. When it is dropped instead, because the work was cut off, a task of
/// the caller's runtime rolls the transaction back: the statement that was cut off may have failed, and whoever uses its
/// connection next is told that error. For sqlx's pool of MySQL over TLS that would cost the connection.
pub(crate) struct Lent<T> {
    slot: Arc<Mutex<Option<Open<T>>>>,
    abandon: fn(Open<T>),
}

impl<B: sqlx::Database> Open<sqlx::Transaction<'static, B>> {
    /// Begins a transaction that may write. Dropping the future leaves no open one in the pool.
    pub(crate) async fn begin<P: Pool<Brand = B>>(
        pool: &P,
        missing: &Missing,
    ) -> Result<Self, sqlx::Error> {
        let conn = pool.pool().acquire().await?;
        let statement = P::BEGIN.map(SqlSafeStr::into_sql_str);
        let tx = runtime::finished(sqlx::Transaction::begin(conn, statement)).await?;
        Ok(Self {
            tx,
            at_end: Vec::new(),
            missing: Arc::clone(missing),
        })
    }

    pub(crate) async fn commit<E: From<sqlx::Error> + From<Error>>(self) -> Result<(), E> {
        let committed = self.tx.commit().await;
        for then in self.at_end {
            then();
        }
        outcome_of(committed)
    }

    /// Hands it to a closure, which gives it back by dropping it.
    pub(crate) fn lend(
        self,
    ) -> (
        RetryTx<sqlx::Transaction<'static, B>>,
        Lent<sqlx::Transaction<'static, B>>,
    ) {
        let slot = Arc::new(Mutex::new(None));
        let tx = RetryTx {
            open: Some(self),
            slot: Arc::clone(&slot),
        };
        let abandon = |open: Self| drop(runtime::finished(open.roll_back()));
        (tx, Lent { slot, abandon })
    }

    pub(crate) async fn roll_back(self) {
        // What cannot be rolled back is a connection that is gone, and its transaction with it.
        let _ = self.tx.rollback().await;
        for then in self.at_end {
            then();
        }
    }
}

/// What is known after a commit: nothing, when the connection broke before the answer.
fn outcome_of<E: From<sqlx::Error> + From<Error>>(
    committed: Result<(), sqlx::Error>,
) -> Result<(), E> {
    match committed {
        Ok(()) => Ok(()),
        Err(error) if classify(&error) == FaultKind::Disconnected => {
            let detail = error.to_string();
            Err(Error::CommitUnknown { detail }.into())
        }
        Err(error) => Err(error.into()),
    }
}

impl<T> Lent<T> {
    fn take(&self) -> Option<Open<T>> {
        lock(&self.slot).take()
    }

    pub(crate) fn back(self) -> Result<Open<T>, Error> {
        self.take().ok_or(Error::InvalidSetting {
            setting: "work",
            reason: "the closure has kept the transaction: it must be dropped before it returns",
        })
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        if let Some(open) = self.take() {
            (self.abandon)(open);
        }
    }
}

impl<T> RetryTx<T> {
    fn open(&mut self) -> &mut Open<T> {
        self.open.as_mut().expect("it is there until it is dropped")
    }
}

impl<T> fmt::Debug for RetryTx<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryTx").finish_non_exhaustive()
    }
}

impl<T> Deref for RetryTx<T> {
    type Target = T;

    fn deref(&self) -> &T {
        let open = self.open.as_ref();
        &open.expect("it is there until it is dropped").tx
    }
}

impl<T> DerefMut for RetryTx<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.open().tx
    }
}

impl<T> Drop for RetryTx<T> {
    fn drop(&mut self) {
        *lock(&self.slot) = self.open.take();
    }
}

impl<T: Transaction> sealed::Sealed for RetryTx<T> {
    type Connection = T::Connection;

    const ENGINE: Engine = T::ENGINE;

    fn connection(&mut self) -> &mut T::Connection {
        T::connection(self)
    }

    fn at_end(&mut self, then: AtEnd) {
        self.open().at_end.push(then);
    }

    #[allow(private_interfaces, reason = "sealed")]
    fn make_row_first(&mut self, core: &Arc<Core>, name: &Name) {
        lock(&self.open().missing).push((Arc::clone(core), name.clone()));
    }
}

impl<T: Transaction> Transaction for RetryTx<T> {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An error that tells whether the transaction may well succeed when it is begun anew.
///
/// [`rowlock::Error`](Error) does, and so does everything that is a boxed error: `Box<dyn Error + Send + Sync>`,
/// and `anyhow::Error`. They look for rowlock's and sqlx's errors behind them (a variant of an enum that is
/// `#[error(transparent)]` hides rowlock's). An enum of the application's own says so for each of its variants:
///
/// ```
/// use rowlock::Retryable;
///
/// #[derive(Debug, thiserror::Error)]
/// enum ShopError {
///     #[error(transparent)]
///     Lock(#[from] rowlock::Error),
///     #[error(transparent)]
///     Sql(#[from] sqlx::Error),
///     #[error("sold out")]
///     SoldOut,
/// }
///
/// impl Retryable for ShopError {
///     fn is_retryable(&self) -> bool {
///         match self {
///             Self::Lock(error) => error.is_retryable(),
///             Self::Sql(error) => rowlock::is_retryable(error),
///             Self::SoldOut => false,
///         }
///     }
/// }
///
/// assert!(ShopError::Lock(rowlock::one_changed(0).unwrap_err()).is_retryable());
/// assert!(!ShopError::Sql(sqlx::Error::RowNotFound).is_retryable());
/// assert!(!ShopError::SoldOut.is_retryable());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not tell whether a transaction that failed with it may be tried again",
    label = "this error type does not implement `rowlock::Retryable`",
    note = "return `rowlock::Error`, `Box<dyn std::error::Error + Send + Sync>` or `anyhow::Error` from the closure",
    note = "or write `impl rowlock::Retryable for {Self}`: its `is_retryable` asks `rowlock::Error::is_retryable` and \
            `rowlock::is_retryable` for the errors in it"
)]
pub trait Retryable {
    /// Whether to try again.
    fn is_retryable(&self) -> bool;
}

impl Retryable for Error {
    fn is_retryable(&self) -> bool {
        Error::is_retryable(self)
    }
}

impl<E: AsRef<dyn std::error::Error + Send + Sync>> Retryable for E {
    fn is_retryable(&self) -> bool {
        is_retryable(self.as_ref())
    }
}

/// Whether an error, or one of those that caused it, says that the transaction may well succeed when it is
/// begun anew: a conflict, a deadlock, a serialization failure, a lock that was waited for in vain.
#[must_use]
pub fn is_retryable(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<Error>() {
            return error.is_retryable();
        }
        if let Some(error) = error.downcast_ref::<sqlx::Error>() {
            return classify(error).is_retryable_in_tx();
        }
        // Behind `#[error(transparent)]`, sqlx's own error is passed over.
        if let Some(error) = error.downcast_ref::<Box<dyn DatabaseError>>() {
            return classify_database(error.as_ref()).is_retryable_in_tx();
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_without_an_answer_is_unknown_and_a_refused_one_is_not() {
        let broken = std::io::Error::new(std::io::ErrorKind::BrokenPipe, "cut");
        let told = outcome_of::<Failed>(Err(broken.into()));
        assert!(matches!(
            told,
            Err(Failed::Lock(Error::CommitUnknown { .. }))
        ));
        let told = outcome_of::<Failed>(Err(sqlx::Error::RowNotFound));
        assert!(matches!(told, Err(Failed::Sql(sqlx::Error::RowNotFound))));
        assert!(outcome_of::<Failed>(Ok(())).is_ok());
    }

    #[derive(Debug)]
    enum Failed {
        Lock(Error),
        Sql(sqlx::Error),
    }

    impl From<Error> for Failed {
        fn from(error: Error) -> Self {
            Self::Lock(error)
        }
    }

    impl From<sqlx::Error> for Failed {
        fn from(error: sqlx::Error) -> Self {
            Self::Sql(error)
        }
    }
}
