//! Requests for a key: `begin` and `begin_http`.

use std::time::Duration;

use super::begun::{Begun, InFlight};
use super::events;
use super::guard::IdempotencyGuard;
use super::request::Idempotency;
use super::waiting::WaitOutcome;
use crate::model::{Error, Fingerprint, HTTP, RecordKey, Subject, check_scope};
use crate::runtime::requests::claim::{Claim, ClaimAnswer};

impl Idempotency {
    /// The prefix of the scopes of [`begin_http`](Self::begin_http): `http:`. All other calls that begin an attempt
    /// refuse such a scope. Calls that look at a record, or decide about it, accept it.
    pub const HTTP_SCOPES: &'static str = HTTP;

    /// Asks for `key` in `scope`: begins an attempt if the key is free, or else reports the state of its record.
    ///
    /// `scope` says whose key it is (it must not begin with `http:`, the prefix of [`begin_http`](Self::begin_http)).
    /// `fingerprint` is the digest of the request. A replay takes one statement, a new attempt two (four on
    /// MySQL and MariaDB). Concurrent calls share these statements.
    ///
    /// # Errors
    ///
    /// An invalid scope, key or setting; a database out of reach; a damaged record. No variant of
    /// [`Begun`] is an error.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`), when it must [wait](Self::wait).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no attempt behind: an attempt that has begun is given up in the background, and does
    /// not count as abandoned. (If the database is out of reach then, the key is free when the lease ends.)
    pub async fn begin(
        &self,
        scope: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
        fingerprint: impl Into<Fingerprint>,
    ) -> Result<Begun<IdempotencyGuard>, Error> {
        check_scope(scope.as_ref())?;
        self.check()?;
        let key = RecordKey::new(scope, key)?;
        self.attempt(key, &fingerprint.into()).await
    }

    /// [`begin`](Self::begin) for a key that an HTTP client has chosen: for a layer that maps requests to records.
    ///
    /// The scope of the record is [`HTTP_SCOPES`](Self::HTTP_SCOPES) and `principal`, 1 to 250 bytes that say whose
    /// request it is. [`begin`](Self::begin) refuses such scopes: a client cannot choose a key that the application's
    /// own code uses.
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
    /// The errors of [`begin`](Self::begin).
    ///
    /// # Panics
    ///
    /// The same as for [`begin`](Self::begin).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`begin`](Self::begin).
    pub async fn begin_http(
        &self,
        principal: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
        fingerprint: impl Into<Fingerprint>,
    ) -> Result<Begun<IdempotencyGuard>, Error> {
        self.check()?;
        let key = RecordKey::http(principal, key)?;
        self.attempt(key, &fingerprint.into()).await
    }

    /// [`begin_http`](Self::begin_http) for a layer that bounds how many attempts run: it calls `room` before it
    /// claims a free key, and the room comes with the guard. `Ok(None)`: the key is free, and there is no room.
    ///
    /// A caller that waits for the attempt of another caller has no room meanwhile.
    ///
    /// # Errors
    ///
    /// The errors of [`begin`](Self::begin).
    ///
    /// # Panics
    ///
    /// The same as for [`begin`](Self::begin).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`begin`](Self::begin).
    pub async fn begin_http_if<R>(
        &self,
        principal: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
        fingerprint: impl Into<Fingerprint>,
        room: impl FnMut() -> Option<R>,
    ) -> Result<Option<Begun<(IdempotencyGuard, R)>>, Error> {
        self.check()?;
        let key = RecordKey::http(principal, key)?;
        self.attempt_if(key, &fingerprint.into(), room).await
    }

    async fn quarantine(&self, key: &RecordKey) -> Result<Option<Duration>, Error> {
        self.core
            .rows
            .quarantine(Subject::Record(key.clone()))
            .await
    }

    async fn attempt(
        &self,
        key: RecordKey,
        fingerprint: &Fingerprint,
    ) -> Result<Begun<IdempotencyGuard>, Error> {
        let begun = self.attempt_if(key, fingerprint, || Some(())).await?;
        Ok(match begun.map(Begun::refusal) {
            Some(Ok((guard, ()))) => Begun::New(guard),
            Some(Err(refusal)) => refusal,
            None => Begun::InFlight(InFlight::unseen()),
        })
    }

    async fn attempt_if<R>(
        &self,
        key: RecordKey,
        fingerprint: &Fingerprint,
        room: impl FnMut() -> Option<R>,
    ) -> Result<Option<Begun<(IdempotencyGuard, R)>>, Error> {
        let begun = self.try_attempt(&key, fingerprint, room).await.transpose();
        if let Some(begun) = &begun {
            events::tell(&key, begun.as_ref(), |(guard, _)| Some(guard.attempt()));
        }
        begun.transpose()
    }

    async fn try_attempt<R>(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        mut room: impl FnMut() -> Option<R>,
    ) -> Result<Option<Begun<(IdempotencyGuard, R)>>, Error> {
        self.core.seen_keys.insert(key);
        let mut waiting = self.waiting();
        let mut looks = 0;
        let of = (key, fingerprint);
        loop {
            // A duplicate of what this client does now waits for its end, and needs no look.
            if let Some(other) = self.core.flights.other(key)
                && other.is_of(fingerprint)
                && let WaitOutcome::Kept(outcome) = self.wait_out(&mut waiting, of, other).await
            {
                return Ok(Some(Begun::Replay(outcome)));
            }
            let claimed = self.core.flights.claimed(key);
            let look = self.look(key, fingerprint, &mut waiting, None).await?;
            let before = match look.refusal() {
                Ok(before) => before,
                Err(refusal) => return Ok(Some(refusal)),
            };
            let flight = match self.core.flights.take(key, fingerprint, claimed) {
                Ok(flight) => flight,
                Err(other) => match self.wait_out(&mut waiting, of, other).await {
                    WaitOutcome::Kept(outcome) => return Ok(Some(Begun::Replay(outcome))),
                    WaitOutcome::LookAgain => continue,
                    // The claim of the other one may be there by now: it tells more.
                    WaitOutcome::TooLong if looks == 0 => {
                        looks += 1;
                        continue;
                    }
                    WaitOutcome::TooLong => return Ok(Some(Begun::InFlight(InFlight::unseen()))),
                },
            };
            let Some(room) = room() else {
                return Ok(None);
            };
            looks += 1;
            let params = self.ask(key, fingerprint, before);
            let claim = |reply| Claim::task(&self.core.holdings, params, reply);
            match self.core.lanes.answer(claim).await? {
                ClaimAnswer::Mine(guard) => {
                    guard.receive();
                    flight.note_claim();
                    let request = (*fingerprint, before.is_some());
                    let guard =
                        IdempotencyGuard::new((guard, &self.core), self.bounds(), request, flight);
                    return Ok(Some(Begun::New((guard, room))));
                }
                // Another caller was faster: look at the record again.
                ClaimAnswer::Missed | ClaimAnswer::Locked if looks == 1 => {}
                missed => {
                    drop((room, flight));
                    if looks == 2
                        && let Some(left) = self.quarantine(key).await?
                    {
                        if waiting.again(Some(left)).await {
                            looks = 0;
                            continue;
                        }
                        return Ok(Some(Begun::InFlight(InFlight::in_quarantine(left))));
                    }
                    let goes_on = match missed {
                        ClaimAnswer::Missed => waiting.missed().await,
                        _ => waiting.again(None).await,
                    };
                    if !goes_on {
                        return Ok(Some(Begun::InFlight(InFlight::unseen())));
                    }
                }
            }
        }
    }
}
