//! Running a transaction again after a conflict.
//!
//! # Overview
//!
//! [`Retry::run`] begins a transaction, passes it to a closure, and commits when the closure returns `Ok`. When the
//! closure returns an error that may pass, `Retry` rolls back, pauses, and runs the closure again in a fresh
//! transaction. Such errors are a conflict of an optimistic lock, a deadlock, a serialization failure, a lock wait
//! that timed out, and SQLite's "busy".
//!
//! # Failure
//!
//! - *A pooler has given all of the server's connections to transactions that wait for rowlock to make a row*
//!   ([`Error::Starved`]): `Retry` makes all missing rows between two attempts, when this transaction keeps no
//!   connection.
//! - *The connection breaks before the commit*: nothing is committed, and the error is returned.
//! - *The connection breaks during the commit*: the commit may or may not have happened, and another try might do the
//!   work twice: [`Error::CommitUnknown`].

use std::sync::Arc;
use std::time::Duration;

use super::commit_failure::CommitFailure;
use super::open::{Open, RetryTx, Run};
use super::{Pool, Retryable};
use crate::model::{Error, InvalidError, Moment};
use crate::runtime::base::backoff;
use crate::runtime::base::tasks::Tasks;
use crate::runtime::base::timer::sleep_until;
use crate::runtime::upkeep::known_rows::make_rows;

/// A policy for retrying a transaction: the number of attempts, and the pauses between them.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/shop.db?mode=rwc", dir.path().display());
/// # let pool = sqlx::SqlitePool::connect(&url).await?;
/// # sqlx::raw_sql("CREATE TABLE stock (items INTEGER); INSERT INTO stock VALUES (9)").execute(&pool).await?;
/// # let rowlock = rowlock::Rowlock::from_pool(&pool).await?;
/// let rowlock = &rowlock;
/// let left = rowlock
///     .retry()
///     .attempts(20)
///     .run(&pool, async |mut tx| {
///         let seen = rowlock.in_tx(&mut tx).version("stock:42").await?;
///         let items: i64 = sqlx::query_scalar("SELECT items FROM stock").fetch_one(&mut *tx).await?;
///         sqlx::query("UPDATE stock SET items = ?").bind(items - 1).execute(&mut *tx).await?;
///         rowlock.in_tx(&mut tx).advance(&seen).await?.or_conflict(&seen)?;
///         Ok::<_, rowlock::Error>(items - 1)
///     })
///     .await?;
/// # assert_eq!(left, 8);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a policy does nothing until it runs a transaction"]
pub struct Retry {
    /// The client's tasks, which finish a statement whose future was dropped. `None` without a client.
    tasks: Option<Tasks>,
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
    ///
    /// If the caller drops the future, a task of the runtime finishes the transaction. No client waits for that task.
    /// With a policy from [`Rowlock::retry`](crate::Rowlock::retry), the client waits for it.
    pub const fn new() -> Self {
        Self {
            tasks: None,
            attempts: 10,
            shortest: Duration::from_millis(10),
            longest: Duration::from_secs(1),
        }
    }

    /// The largest number of attempts: 1 or more. `u32::MAX` means no limit.
    pub const fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// The bounds of the random pauses ("full jitter"). The pause before the second attempt is between zero and
    /// `shortest`. The bound doubles with every attempt, up to `longest`, which is at most an hour.
    pub const fn backoff(mut self, shortest: Duration, longest: Duration) -> Self {
        self.shortest = shortest;
        self.longest = longest;
        self
    }

    /// Runs `work` in a fresh transaction of `pool`, and commits. Tries again, under this policy, after a failure
    /// that may pass ([`Retryable`]).
    ///
    /// Write `work` as an async closure, which borrows what it captures: `async |mut tx| { … }`. If you write `?`
    /// after the call, give the closure its error type: `async |mut tx| -> Result<_, AppError> { … }`.
    ///
    /// Return the errors of your statements. If a statement has failed and the closure still returns `Ok`, PostgreSQL
    /// rolls the transaction back and reports success.
    ///
    /// `work` may run several times, and its effects outside of the transaction happen as often. `work` gets the
    /// transaction, and need not give it back. A guard that `work` makes ends before the commit, and the next holder
    /// may not see what `work` has written: acquire locks before the transaction, [pin](crate::Held::pin) them in it,
    /// or hand their guards to [`RetryTx::keep`](super::RetryTx::keep). On SQLite the transaction begins with BEGIN
    /// IMMEDIATE, so that SQLite cannot refuse a later write.
    ///
    /// On SQLite, the transactions of this process wait for each other in memory, in order. `work` must not begin
    /// another transaction in the same file by rowlock: that is [`InvalidError::Setting`].
    ///
    /// # Errors
    ///
    /// The last error of `work`, after a rollback; the driver's error, when a transaction could not begin or commit
    /// (PostgreSQL: 25P02, when a statement of `work` has failed and `work` went on: nothing was written);
    /// [`Error::CommitUnknown`]; [`Error::Conflict`], when earlier transactions of this process had the SQLite file
    /// for the pool's `acquire_timeout`, in each attempt; [`InvalidError::Setting`] and [`InvalidError::Duration`] for
    /// an invalid policy.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future rolls the transaction back. After `work`, the commit goes on in the background.
    pub async fn run<P, T, E, F>(
        &self,
        pool: &P,
        work: impl FnMut(RetryTx<P::Database>) -> F,
    ) -> Result<T, E>
    where
        P: Pool,
        E: From<sqlx::Error> + From<Error> + Retryable,
        F: Future<Output = Result<T, E>>,
    {
        self.run_then(pool, work, |_, done| std::future::ready(Ok(done)))
            .await
    }

    /// [`run`](Self::run) for a layer that ends the transaction of a caller's `work`: it runs `then` in the same
    /// transaction, with what `work` returned, before the commit.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run); the last error of `then`, after a rollback.
    ///
    /// # Cancel safety
    ///
    /// As for [`run`](Self::run).
    pub async fn run_then<P, T, U, E, F, G>(
        &self,
        pool: &P,
        mut work: impl FnMut(RetryTx<P::Database>) -> F,
        then: impl Fn(RetryTx<P::Database>, T) -> G,
    ) -> Result<U, E>
    where
        P: Pool,
        E: From<sqlx::Error> + From<Error> + Retryable,
        F: Future<Output = Result<T, E>>,
        G: Future<Output = Result<U, E>>,
    {
        let mut attempts = self.attempts_of_one()?;
        loop {
            match Self::once(pool, &attempts.run, &mut work, &then).await {
                Ok(done) => return Ok(done),
                Err(error) => attempts.again(error).await?,
            }
        }
    }

    async fn once<P, T, U, E, F, G>(
        pool: &P,
        run: &Arc<Run>,
        work: &mut impl FnMut(RetryTx<P::Database>) -> F,
        then: &impl Fn(RetryTx<P::Database>, T) -> G,
    ) -> Result<U, E>
    where
        P: Pool,
        E: From<sqlx::Error> + From<Error> + Retryable,
        F: Future<Output = Result<T, E>>,
        G: Future<Output = Result<U, E>>,
    {
        let open = Open::begin(pool, run).await;
        let open = open.map_err(CommitFailure::into_error::<E>)?;
        let (result, lent) = open.lend(work).await;
        let mut open = lent.back()?;
        let result = match result {
            Ok(done) => {
                let (result, lent) = open.lend(|tx| then(tx, done)).await;
                open = lent.back()?;
                result
            }
            Err(error) => Err(error),
        };
        match result {
            Ok(done) => match open.done().await {
                Ok(()) => Ok(done),
                Err(uncommitted) => Err(uncommitted.into_error()),
            },
            Err(error) => {
                open.undo().await;
                Err(error)
            }
        }
    }

    /// Makes a client wait for the tasks that finish dropped transactions.
    pub(crate) fn owned_by(mut self, tasks: &Tasks) -> Self {
        self.tasks = Some(tasks.clone());
        self
    }

    /// The attempts of one run.
    pub(crate) fn attempts_of_one(&self) -> Result<Attempts, Error> {
        self.check()?;
        Ok(Attempts {
            left: (self.attempts != u32::MAX).then_some(self.attempts),
            pauses: Box::new(backoff::full_jitter(self.shortest, self.longest)),
            run: Run::new(self.tasks.clone().unwrap_or_default()),
        })
    }

    fn check(&self) -> Result<(), Error> {
        if self.attempts == 0 {
            return Err(Error::Invalid(InvalidError::Setting {
                setting: "attempts",
                reason: "at least one attempt is needed",
            }));
        }
        if self.longest > Duration::from_hours(1) || self.shortest > self.longest {
            return Err(Error::Invalid(InvalidError::Duration {
                setting: "backoff",
                given: self.longest,
                bounds: "the longest pause is at most an hour, and not shorter than the shortest",
            }));
        }
        Ok(())
    }
}

/// The attempts that are left, and the pauses before them.
pub(crate) struct Attempts {
    /// `None`: no limit.
    left: Option<u32>,
    pauses: Box<dyn Iterator<Item = Duration> + Send>,
    pub(crate) run: Arc<Run>,
}

impl Attempts {
    /// Waits for the next attempt. Returns the error when no attempt is left, or when another attempt would not help.
    pub(crate) async fn again<E: Retryable>(&mut self, error: E) -> Result<(), E> {
        if let Some(left) = &mut self.left {
            *left -= 1;
        }
        if self.left == Some(0) || !error.is_retryable() {
            return Err(error);
        }
        let missing = std::mem::take(&mut *self.run.missing.lock());
        if !missing.is_empty() {
            // The transaction has given its connection back. If a row cannot be made, the next attempt fails as this
            // one did.
            make_rows(missing).await;
        }
        sleep_until(Moment::now() + self.pauses.next().unwrap_or_default()).await;
        Ok(())
    }
}
