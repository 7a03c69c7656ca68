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

use std::sync::Arc;
use std::time::Duration;

use super::open::{Open, RetryTx, Run, lock};
use super::{Pool, Retryable};
use crate::model::{Error, Moment};
use crate::runtime::tasks::Tasks;
use crate::runtime::timer::sleep_until;
use crate::runtime::{self, backoff};

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
/// let rowlock = &rowlock;
/// let left = rowlock
///     .retry()
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
    /// Where what is cut off comes to its end, if it belongs to a client.
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
    /// A transaction that is cut off is finished by a task of the runtime. No client waits for that task; of a policy that
    /// [`Rowlock::retry`](crate::Rowlock::retry) makes, the client does.
    pub const fn new() -> Self {
        Self {
            tasks: None,
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
            match Self::once(pool, &attempts.run, &mut work).await {
                Ok(done) => return Ok(done),
                Err(error) => attempts.again(error).await?,
            }
        }
    }

    async fn once<P, T, E, F>(
        pool: &P,
        run: &Arc<Run>,
        work: &mut impl FnMut(RetryTx<sqlx::Transaction<'static, P::Brand>>) -> F,
    ) -> Result<T, E>
    where
        P: Pool,
        E: From<sqlx::Error> + From<Error> + Retryable,
        F: Future<Output = Result<T, E>>,
    {
        let (tx, lent) = Open::begin(pool, run).await?.lend();
        let result = work(tx).await;
        let open = lent.back()?;
        match result {
            Ok(done) => open.commit::<E>().await.map(|()| done),
            Err(error) => {
                open.undo().await;
                Err(error)
            }
        }
    }

    /// What it has to finish belongs to a client from now on.
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
    pub(crate) run: Arc<Run>,
}

impl Attempts {
    /// Waits for the next attempt. The error comes back when there is none, or none would help.
    pub(crate) async fn again<E: Retryable>(&mut self, error: E) -> Result<(), E> {
        if let Some(left) = &mut self.left {
            *left -= 1;
        }
        if self.left == Some(0) || !error.is_retryable() {
            return Err(error);
        }
        let missing = std::mem::take(&mut *lock(&self.run.missing));
        if !missing.is_empty() {
            // Now that the connection is free. What fails here, fails again in the next attempt.
            runtime::make_rows(missing).await;
        }
        sleep_until(Moment::now() + self.pauses.next().unwrap_or_default()).await;
        Ok(())
    }
}
