//! Asking for a key, and what the answer can be.

use super::begun::{Begun, InFlight};
use super::guard::IdempotencyGuard;
use super::request::Idempotency;
use super::waiting::Waiting;
use crate::model::{Error, Fingerprint, HTTP, RecordKey, check_scope};
use crate::runtime::verbs::claim::{Claim, Claiming};

/// How often a key is looked at that changes whenever it is asked for.
const MAX_LOOKS: u32 = 100;

impl Idempotency {
    /// How the scopes of [`begin_http`](Self::begin_http) begin: `http:`. Every other attempt in such a scope is refused.
    /// Looking at a record, and deciding about it, is not.
    pub const HTTP_SCOPES: &'static str = HTTP;

    /// Asks for `key` in `scope`: runs an attempt when nobody has, and tells what has become of it otherwise.
    ///
    /// `scope` is whose key it is (it does not begin with `http:`, as those of [`begin_http`](Self::begin_http) do), `fingerprint`
    /// what is asked for. A replay is one statement; a new attempt two (four on
    /// MySQL and MariaDB). Those of others that come meanwhile share them.
    ///
    /// # Errors
    ///
    /// A refused scope, key or setting; a database out of reach; a damaged record. Whatever
    /// [`Begun`] says is not an error.
    ///
    /// # Panics
    ///
    /// Outside of a runtime of tokio's with timers (`enable_time`), when it has to [wait](Self::wait).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no attempt behind: one that was begun is given up in the background, and does not
    /// count. (When the database cannot be reached just then, its lease has to end first.)
    pub async fn begin(
        &self,
        scope: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
        fingerprint: impl Into<Fingerprint>,
    ) -> Result<Begun<IdempotencyGuard>, Error> {
        check_scope(scope.as_ref())?;
        self.check()?;
        self.attempt(RecordKey::new(scope, key)?, &fingerprint.into())
            .await
    }

    /// [`begin`](Self::begin) for a key that an HTTP client has chosen: for code that maps requests to records, as a layer does.
    ///
    /// The scope of the record is [`HTTP_SCOPES`](Self::HTTP_SCOPES) and `principal`, 1 to 250 bytes that say whose request it
    /// is. [`begin`](Self::begin) refuses such scopes: a client cannot choose a key that the application's own code uses.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/shop.db?mode=rwc", dir.path().display());
    /// # let rowlock = rowlock::Rowlock::connect(&url).await?;
    /// use rowlock::{Begun, Fingerprint, Outcome};
    ///
    /// let idempotency = rowlock.idempotency();
    /// let request = Fingerprint::builder().part("POST").part("/payments").part("500").finish();
    /// if let Begun::New(guard) = idempotency.begin_http("alice", "order-17", request).await? {
    ///     guard.complete(&Outcome::new("text/plain", "paid")?).await?;
    /// }
    /// assert!(idempotency.inspect("http:alice", "order-17").await?.is_some());
    /// assert!(idempotency.begin("http:alice", "order-17", request).await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`begin`](Self::begin).
    ///
    /// # Panics
    ///
    /// As [`begin`](Self::begin).
    ///
    /// # Cancel safety
    ///
    /// That of [`begin`](Self::begin).
    pub async fn begin_http(
        &self,
        principal: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
        fingerprint: impl Into<Fingerprint>,
    ) -> Result<Begun<IdempotencyGuard>, Error> {
        self.check()?;
        self.attempt(RecordKey::http(principal, key)?, &fingerprint.into())
            .await
    }

    async fn attempt(
        &self,
        key: RecordKey,
        fingerprint: &Fingerprint,
    ) -> Result<Begun<IdempotencyGuard>, Error> {
        self.core.seen_keys.insert(&key);
        let mut waiting = Waiting::new(self.wait);
        let mut looks = 0;
        loop {
            let before = match self.look(&key, fingerprint, &mut waiting).await?.refusal() {
                Ok(before) => before,
                Err(refusal) => return Ok(refusal),
            };
            looks += 1;
            let ask = self.ask(&key, fingerprint, before);
            let claim = |reply| Claim::task(&self.core, ask, reply);
            match self.core.answer(claim).await? {
                Claiming::Mine(guard) => {
                    guard.receive();
                    let guard = IdempotencyGuard::new(guard, self.bounds(), *fingerprint);
                    return Ok(Begun::New(guard));
                }
                // Somebody was faster: what has he made of it?
                Claiming::Missed if looks < MAX_LOOKS => {}
                Claiming::Locked if looks == 1 || waiting.again(None).await => {}
                Claiming::Missed | Claiming::Locked => {
                    return Ok(Begun::InFlight(InFlight::unseen()));
                }
            }
        }
    }
}
