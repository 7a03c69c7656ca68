//! A handler whose work and response are one transaction.

use axum::response::{IntoResponse, Response};
use rowlock::layer::{LayerAttempt as _, LayerKeys as _};
use rowlock::{Error, Pool, RetryTx, Retryable};

use crate::handle::Idempotent;

impl Idempotent {
    /// Begins a transaction of `pool`, runs `work` in it, records the response that `work` returns, and commits: the
    /// response and the writes of `work` are kept together, or not at all. After a conflict, a deadlock or another
    /// failure that may pass, it runs `work` again in a fresh transaction, by the policy of
    /// [`Idempotency::retry`](rowlock::Idempotency::retry). Returns the response that was kept. (Layers between this
    /// handler and the [`IdempotencyLayer`](crate::IdempotencyLayer) do not change what is kept; see
    /// [`complete_in`](Self::complete_in).)
    ///
    /// ```
    /// use axum::http::StatusCode;
    /// use axum::response::{IntoResponse, Response};
    /// use rowlock_http::Idempotent;
    ///
    /// # struct Failed(rowlock::Error);
    /// # impl From<rowlock::Error> for Failed { fn from(error: rowlock::Error) -> Self { Self(error) } }
    /// # impl IntoResponse for Failed { fn into_response(self) -> Response { StatusCode::INTERNAL_SERVER_ERROR.into_response() } }
    /// async fn pay(pool: axum::extract::State<sqlx::SqlitePool>, once: Idempotent, body: String) -> Result<Response, Failed> {
    ///     let paid = once.in_tx(&*pool, async |mut tx| -> Result<_, rowlock::Error> {
    ///         sqlx::query("INSERT INTO payment VALUES (?)").bind(&body).execute(&mut *tx).await?;
    ///         Ok((StatusCode::CREATED, "paid"))
    ///     });
    ///     Ok(paid.await?)
    /// }
    /// # let _: axum::Router<sqlx::SqlitePool> = axum::Router::new().route("/payments", axum::routing::post(pay));
    /// ```
    ///
    /// `work` gets the transaction as in [`Retry::run`](rowlock::Retry::run): it may run several times, and its
    /// effects outside of the transaction happen as often. Do those in [steps](rowlock::IdempotencyGuard::step),
    /// before this.
    ///
    /// `work` must not end the transaction by SQL of its own. If it ends it and begins another one (`COMMIT; BEGIN`),
    /// this method does not notice, and the effect may be without its response.
    /// ([`run_in_tx`](rowlock::Idempotency::run_in_tx) notices.)
    ///
    /// # Errors
    ///
    /// Those of `work`, after a rollback: the attempt goes on, and the handler's response decides. The errors of
    /// [`complete_in`](Self::complete_in) and of [`Retry::run`](rowlock::Retry::run). After [`Error::CommitUnknown`]
    /// the database decides: if the commit happened, a retry gets its response, whatever the handler returns.
    /// Otherwise the handler's response decides, as after any error. So return the error, or another 5xx: then a retry
    /// runs the handler again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future while `work` runs rolls the transaction back. After `work`, the commit goes on in the
    /// background.
    pub async fn in_tx<P, R, E, F>(
        &self,
        pool: &P,
        work: impl FnMut(RetryTx<P::Database>) -> F,
    ) -> Result<Response, E>
    where
        P: Pool,
        R: IntoResponse,
        E: From<sqlx::Error> + From<Error> + Retryable,
        F: Future<Output = Result<R, E>>,
    {
        let retry = self.settings().idempotency.retry_policy();
        let record = async |mut tx: RetryTx<P::Database>, response: R| {
            let response = self.complete_in(&mut tx, response.into_response());
            Ok(response.await?)
        };
        let kept = retry.run_then(pool, work, record).await;
        if kept.is_ok() {
            self.has_committed();
        } else if !self.is_committed() {
            // Nothing is recorded; or it is not known, and then only the database decides whether the handler's
            // response can be.
            self.completion_did_not_commit();
        }
        kept
    }
}
