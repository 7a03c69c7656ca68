//! The callback form: campaign, work while leading, campaign again.

use std::fmt::Display;
use std::ops::ControlFlow;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use tokio::time::sleep;

use super::{Election, Leadership, in_words_of_elections};
use rowlock::Error;

impl Election {
    /// Campaigns again and again, and runs `work` in each term that this candidate wins. When the term ends, `work` is
    /// dropped at its next await point, and this candidate campaigns again.
    ///
    /// What `work` returns decides:
    ///
    /// - `Ok(ControlFlow::Break(value))`: this candidate resigns, and `lead` returns `value`.
    /// - `Ok(ControlFlow::Continue(()))`: it resigns and campaigns again, at the end of the queue.
    /// - `Err` after the term was lost: the loss may have caused the error (a [`pin`](Leadership::pin) fails, for
    ///   example). The error is logged, and this candidate campaigns again.
    /// - `Err` while it still leads: it resigns, and `lead` returns the error. To go on after a failure, handle the
    ///   failure in `work`, or return `Continue` to let another candidate try.
    ///
    /// `work` may run many times, and one run may be cut off at any await point. So put writes that belong together
    /// into one transaction that [pins](Leadership::pin) the leadership. [`Rowlock::retry`](rowlock::Rowlock::retry)
    /// rolls such a transaction back when `work` is dropped. Code without an await is not interrupted. `work` gets the
    /// leadership by value, and may drop it: this candidate leads until `work` is done. If `work` resigns itself, it
    /// is not cut off.
    ///
    /// While the database is out of reach or the queue is full, the candidate tries again for ever, with pauses of up
    /// to five seconds. The [`wait`](Self::wait) does not count here. To stop, drop the future.
    ///
    /// # Errors
    ///
    /// The error of `work`, as above; and the errors of [`campaign`](Self::campaign) that do not pass by themselves
    /// ([`Error::is_transient`] is false): invalid settings, a refused login, a client that was shut down.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`, and resigns or leaves the queue in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/shop.db?mode=rwc", dir.path().display());
    /// # let pool = sqlx::SqlitePool::connect(&url).await?;
    /// # sqlx::raw_sql("CREATE TABLE tick (n INTEGER, term BIGINT)").execute(&pool).await?;
    /// # let rowlock = rowlock::Rowlock::from_pool(&pool).await?;
    /// use std::ops::ControlFlow;
    /// use rowlock_recipes::leader::Election;
    ///
    /// let (election, pool) = (Election::new(&rowlock, "scheduler"), &pool);
    /// let ticks = election
    ///     .lead(|leadership| async move {
    ///         for n in 0..3 {
    ///             let mut tx = pool.begin().await?;
    ///             let tick = sqlx::query("INSERT INTO tick VALUES (?, ?)").bind(n).bind(leadership.term());
    ///             tick.execute(&mut *tx).await?;
    ///             leadership.pin(&mut tx).await?; // if the term has ended, this candidate campaigns again
    ///             tx.commit().await?;
    ///         }
    ///         Ok::<_, Box<dyn std::error::Error>>(ControlFlow::Break(3))
    ///     })
    ///     .await?;
    /// # assert_eq!(ticks, 3);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lead<T, E, F>(&self, mut work: impl FnMut(Leadership) -> F) -> Result<T, E>
    where
        E: From<Error> + Display,
        F: Future<Output = Result<ControlFlow<T>, E>>,
    {
        loop {
            let leadership = self.win().await?;
            let (name, term) = (leadership.name(), leadership.term());
            tracing::debug!(%name, term, "leads");
            // On the heap, so that this future stays small.
            let run = Box::pin(work(leadership.shared()));
            let ended = match leadership.with(async move || run.await).await {
                Ok(Ok(ControlFlow::Break(value))) => Some(Ok(value)),
                Ok(Ok(ControlFlow::Continue(()))) => None,
                Ok(Err(error)) if leadership.loss().is_some() => {
                    tracing::warn!(%name, term, %error, "the work failed after its term had ended");
                    None
                }
                Ok(Err(error)) => Some(Err(error)),
                Err(error) => {
                    tracing::debug!(%name, term, %error, "the work was cut off");
                    None
                }
            };
            if let Err(error) = leadership.resign().await {
                tracing::debug!(%name, term, %error, "the next candidate has to wait for the TTL");
            }
            if let Some(ended) = ended {
                return ended;
            }
        }
    }

    /// Campaigns until this candidate leads, or an error does not pass by itself.
    async fn win(&self) -> Result<Leadership, Error> {
        let lock = self.lock()?;
        let mut pauses = ExponentialBuilder::new()
            .with_min_delay(Duration::from_millis(50))
            .with_max_delay(Duration::from_millis(2_500))
            .without_max_times()
            // Up to as much again: candidates that failed together must not return together.
            .with_jitter()
            .build();
        loop {
            match lock.acquire().await {
                Ok(won) => return Ok(Leadership::new(won)),
                Err(error) if error.is_transient() => {
                    tracing::debug!(%error, "campaigns again");
                    sleep(pauses.next().unwrap_or_default()).await;
                }
                Err(error) => return Err(in_words_of_elections(error)),
            }
        }
    }
}
