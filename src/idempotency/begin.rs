//! Requests for a key: `begin`.

use std::time::Duration;

use super::begun::{Begun, InFlight};
use super::events;
use super::guard::IdempotencyGuard;
use super::request::Idempotency;
use super::waiting::WaitOutcome;
use crate::model::{Error, Fingerprint, Key, RecordKey, Subject};
use crate::runtime::batch::head::Manner;
use crate::runtime::requests::claim::{Claim, ClaimAnswer};

impl Idempotency {
    /// Asks for `key` in `scope`: begins an attempt if the key is free, or else reports the state of its record.
    ///
    /// `scope` says whose key it is (it must not begin with `http:`, the prefix of [HTTP
    /// clients](crate::layer::HTTP_SCOPES)). `fingerprint` is the digest of the request. A new attempt takes one
    /// statement, and so does a replay if this client has seen the key before; otherwise it takes two, or three on
    /// MySQL and MariaDB. (On SQLite a new attempt takes two, and a replay one.) Concurrent calls share these
    /// statements.
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
        key: Key<impl AsRef<[u8]>, impl AsRef<[u8]>>,
        fingerprint: impl Into<Fingerprint>,
    ) -> Result<Begun<IdempotencyGuard>, Error> {
        self.check()?;
        let key = key.own_record()?;
        self.attempt(key, &fingerprint.into()).await
    }

    pub(super) async fn quarantine(&self, key: &RecordKey) -> Result<Option<Duration>, Error> {
        self.core
            .rows
            .quarantine(Subject::Record(key.clone()))
            .await
    }

    pub(super) async fn attempt(
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

    pub(super) async fn attempt_if<R>(
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
        let mut may_be_there = self.may_be_there(key);
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
            let before = if may_be_there {
                let look = self.look(key, fingerprint, &mut waiting, None).await?;
                match look.refusal() {
                    Ok(before) => before,
                    Err(refusal) => return Ok(Some(refusal)),
                }
            } else {
                None
            };
            let has_looked = std::mem::replace(&mut may_be_there, true);
            let over = claimed.filter(|_| has_looked);
            let flight = match self.core.flights.take(key, fingerprint, over) {
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
                if has_looked {
                    return Ok(None);
                }
                // A replay needs none.
                continue;
            };
            looks += u32::from(has_looked);
            let params = self.ask(key, fingerprint, before);
            let claim = |reply| {
                let mut task = Claim::task(&self.core.holdings, params, reply);
                if !has_looked {
                    task.head.manner = Manner::Acquire;
                }
                task
            };
            let answer = match self.core.lanes.answer(claim).await {
                // The server takes no writes. There may be an outcome to replay.
                Err(Error::ReadOnly { .. }) if !has_looked => continue,
                answer => answer?,
            };
            match answer {
                ClaimAnswer::Mine(guard) => {
                    guard.receive();
                    guard.begin_span();
                    flight.note_claim();
                    let request = (*fingerprint, before.is_some());
                    let guard =
                        IdempotencyGuard::new((guard, &self.core), self.bounds(), request, flight);
                    return Ok(Some(Begun::New((guard, room))));
                }
                // Another caller was faster: look at the record again.
                ClaimAnswer::Missed | ClaimAnswer::Locked if looks <= 1 => {}
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
