//! What a layer for HTTP asks of [`Idempotency`], besides what applications ask.

use tokio::task::JoinHandle;

use super::begun::Begun;
use super::guard::IdempotencyGuard;
use super::request::Idempotency;
use super::sealed;
use crate::model::{Error, Fingerprint, RecordKey};
use crate::transaction::Retry;

/// Keys that HTTP clients choose, for a layer that maps requests to records: methods of [`Idempotency`]. (Sealed.)
pub trait LayerKeys: sealed::Sealed {
    /// [`begin`](Idempotency::begin) for a key that an HTTP client has chosen: for a layer that maps requests to
    /// records.
    ///
    /// The scope of the record is [`HTTP_SCOPES`](crate::layer::HTTP_SCOPES) and `principal`, 1 to 250 bytes that say
    /// whose request it is. [`begin`](Idempotency::begin) refuses such scopes: a client cannot choose a key that the
    /// application's own code uses.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/shop.db?mode=rwc", dir.path().display());
    /// # let rowlock = rowlock::Rowlock::connect(&url).await?;
    /// use rowlock::layer::LayerKeys as _;
    /// use rowlock::{Begun, Fingerprint, Outcome};
    ///
    /// let idempotency = rowlock.idempotency();
    /// let request = Fingerprint::builder().part("POST").part("/payments").part("500").finish();
    /// if let Begun::New(guard) = idempotency.begin_http("alice", "order-17", request).await? {
    ///     guard.complete(&Outcome::new("text/plain", "paid")?).await?;
    /// }
    /// assert!(idempotency.inspect(rowlock::Scope("http:alice").key("order-17")).await?.is_some());
    /// assert!(idempotency.begin(rowlock::Scope("http:alice").key("order-17"), request).await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`begin`](Idempotency::begin).
    ///
    /// # Panics
    ///
    /// The same as for [`begin`](Idempotency::begin).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`begin`](Idempotency::begin).
    fn begin_http(
        &self,
        principal: impl AsRef<[u8]> + Send,
        key: impl AsRef<[u8]> + Send,
        fingerprint: impl Into<Fingerprint> + Send,
    ) -> impl Future<Output = Result<Begun<IdempotencyGuard>, Error>> + Send;

    /// [`begin_http`](Self::begin_http) for a layer that bounds how many attempts run: it calls `room` before it
    /// claims a free key, and the room comes with the guard. `Ok(None)`: the key is free, and there is no room.
    ///
    /// A caller that waits for the attempt of another caller has no room meanwhile.
    ///
    /// # Errors
    ///
    /// The errors of [`begin`](Idempotency::begin).
    ///
    /// # Panics
    ///
    /// The same as for [`begin`](Idempotency::begin).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`begin`](Idempotency::begin).
    fn begin_http_if<R: Send>(
        &self,
        principal: impl AsRef<[u8]> + Send,
        key: impl AsRef<[u8]> + Send,
        fingerprint: impl Into<Fingerprint> + Send,
        room: impl FnMut() -> Option<R> + Send,
    ) -> impl Future<Output = Result<Option<Begun<(IdempotencyGuard, R)>>, Error>> + Send;

    /// The largest outcome, in bytes: [`max_outcome`](Idempotency::max_outcome), or less if the server's limit was
    /// smaller when this client connected.
    #[must_use]
    fn largest_outcome(&self) -> usize;

    /// Whether a call waits for the attempt of another caller: [`wait`](Idempotency::wait) is set.
    #[must_use]
    fn waits(&self) -> bool;

    /// The policy that [`retry`](Idempotency::retry) has set, for transactions that the layer begins for its handlers.
    fn retry_policy(&self) -> &Retry;

    /// Runs `work` as a task that the client waits for. The same as
    /// [`Rowlock::spawn`](crate::Rowlock::spawn).
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    fn spawn<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T>;
}

impl LayerKeys for Idempotency {
    async fn begin_http(
        &self,
        principal: impl AsRef<[u8]> + Send,
        key: impl AsRef<[u8]> + Send,
        fingerprint: impl Into<Fingerprint> + Send,
    ) -> Result<Begun<IdempotencyGuard>, Error> {
        self.check()?;
        let key = RecordKey::http(principal, key)?;
        self.attempt(key, &fingerprint.into()).await
    }

    async fn begin_http_if<R: Send>(
        &self,
        principal: impl AsRef<[u8]> + Send,
        key: impl AsRef<[u8]> + Send,
        fingerprint: impl Into<Fingerprint> + Send,
        room: impl FnMut() -> Option<R> + Send,
    ) -> Result<Option<Begun<(IdempotencyGuard, R)>>, Error> {
        self.check()?;
        let key = RecordKey::http(principal, key)?;
        self.attempt_if(key, &fingerprint.into(), room).await
    }

    fn largest_outcome(&self) -> usize {
        self.bounds().max_outcome
    }

    fn waits(&self) -> bool {
        !self.wait.is_zero()
    }

    fn retry_policy(&self) -> &Retry {
        &self.retry
    }

    fn spawn<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.core.lanes.tasks.spawn(name, work)
    }
}
