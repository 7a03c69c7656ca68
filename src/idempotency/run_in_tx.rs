//! Claim, work and outcome in one transaction and one commit.

use std::sync::Arc;

use super::begun::{Begun, InFlight};
use super::events;
use super::request::Idempotency;
use super::waiting::{KeyWait, WaitOutcome};
use crate::model::{Error, Fingerprint, Key, Outcome, RecordKey, Subject};
use crate::store::driver::engines::SupportedDatabase;
use crate::store::verbs::Store;
use crate::store::verbs::record::{ClaimOutcome, ClaimParams, FinishOutcome};
use crate::store::verbs::record_in_tx::RecordInTxStore;
use crate::transaction::{CommitFailure, Context, Open, Pool, RetryTx, Retryable, Run};

impl Idempotency {
    /// Runs `work` in a transaction of `pool`, once for `key`. The claim of the key, the writes of `work`
    /// and its outcome commit together, or not at all.
    ///
    /// A duplicate (the same key at the same time) waits for the end of that transaction, for at most
    /// [`wait`](Self::wait), and then gets its outcome as a replay. Without a `wait` it gets [`Begun::InFlight`] at
    /// once. Waiting needs no connection of `pool`: duplicates in this client wait in memory, and for a transaction of
    /// another process one of them asks on a lane. (A replay takes one statement if this client has seen the key
    /// before. If not, it first begins a transaction, which finds the record and rolls back. On MySQL that transaction
    /// waits for up to a second when another process runs the key; on SQLite it waits for the file, as all writers
    /// do.) A crash leaves no record, so there are no abandoned attempts to count.
    ///
    /// `work` gets the transaction as in [`Retry::run`](crate::Retry::run): it may run several times, and its effects
    /// outside of the transaction happen as often. If `work` returns an error, everything is rolled back and the key
    /// is free. To keep a failure (a declined card), return it as an outcome, not as an error.
    ///
    /// A guard of a lock that `work` makes ends before the commit: acquire locks before, [pin](crate::Held::pin) them,
    /// or hand their guards to [`RetryTx::keep`]. On SQLite `work` must not acquire leases: its transaction has the
    /// file, and rowlock's own connections wait for it.
    ///
    /// # Errors
    ///
    /// The last error of `work`; the driver's error, when a transaction could not begin or commit;
    /// [`Error::CommitUnknown`] (call again with the same key to find out);
    /// [`RecordError::OutcomeTooLarge`](crate::RecordError::OutcomeTooLarge);
    /// [`TransactionError::Over`](crate::TransactionError::Over) when SQL of `work` has ended the transaction (or, on
    /// PostgreSQL, has reset its settings with `RESET ALL`); the errors of [`begin`](Self::begin).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future while `work` runs rolls the transaction back. After `work`, the outcome and the commit go
    /// on in the background.
    pub async fn run_in_tx<P, E, F>(
        &self,
        pool: &P,
        key: Key<impl AsRef<[u8]>, impl AsRef<[u8]>>,
        fingerprint: impl Into<Fingerprint>,
        work: impl FnMut(RetryTx<P::Database>) -> F,
    ) -> Result<Begun<Outcome>, E>
    where
        P: Pool,
        E: From<sqlx::Error> + From<Error> + Retryable,
        F: Future<Output = Result<Outcome, E>>,
    {
        self.check()?;
        let fingerprint = &fingerprint.into();
        let key = key.own_record().map_err(Error::from)?;
        let begun = self.run_in(pool, &key, fingerprint, work).await;
        let begun = match begun {
            Ok(Begun::New(_) | Begun::InFlight(_)) | Err(_) => begun,
            // Found on a connection of this client, or told by another caller, who may have had another pool.
            Ok(known) => self.is_for(pool, &key).await.map(|()| known),
        };
        match &begun {
            Ok(begun) => events::tell(&key, Ok(begun), |_| None),
            Err(_) => events::failed(&key),
        }
        begun
    }

    /// Checks that what this client knows of the key is an answer for the database of `pool`.
    pub(super) async fn is_for<P: Pool, E: From<sqlx::Error> + From<Error>>(
        &self,
        pool: &P,
        key: &RecordKey,
    ) -> Result<(), E> {
        let context = Context::new(&self.core, key.subject(), "begin", P::Database::DRIVER)?;
        let checked = context.check_pool(pool.pool()).await;
        checked.map_err(CommitFailure::into_error)
    }

    async fn run_in<P, E, F>(
        &self,
        pool: &P,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        mut work: impl FnMut(RetryTx<P::Database>) -> F,
    ) -> Result<Begun<Outcome>, E>
    where
        P: Pool,
        E: From<sqlx::Error> + From<Error> + Retryable,
        F: Future<Output = Result<Outcome, E>>,
    {
        let mut waiting = self.waiting();
        let mut attempts = self.retry.attempts_of_one()?;
        let mut looks = self.may_be_there(key);
        let mut flight = None;
        let of = (key, fingerprint);
        loop {
            let claimed = self.core.flights.claimed(key);
            let before = if looks {
                let look = self.look(key, fingerprint, &mut waiting, flight.as_ref());
                match look.await?.refusal() {
                    Ok(before) => before,
                    Err(refusal) => return Ok(refusal),
                }
            } else {
                None
            };
            if flight.is_none() {
                let over = claimed.filter(|_| looks);
                looks = true;
                match self.core.flights.take(key, fingerprint, over) {
                    Ok(mine) => flight = Some(mine),
                    Err(other) => match self.wait_out(&mut waiting, of, other).await {
                        WaitOutcome::Kept(outcome) => return Ok(Begun::Replay(outcome)),
                        WaitOutcome::LookAgain => continue,
                        WaitOutcome::TooLong => return Ok(Begun::InFlight(InFlight::unseen())),
                    },
                }
            }
            self.core.lanes.check_open()?;
            // The database may have forgotten that the attempt before goes on.
            if before.is_some()
                && let Some(left) = self.quarantine(key).await?
            {
                if waiting.again(Some(left)).await {
                    continue;
                }
                return Ok(Begun::InFlight(InFlight::in_quarantine(left)));
            }
            let params = self.ask(key, fingerprint, before);
            match self.once(pool, &attempts.run, &params, &mut work).await {
                Ok(Ran::Done(outcome)) => {
                    flight.inspect(|flight| flight.kept(&outcome));
                    return Ok(Begun::New(outcome));
                }
                // Another caller was faster: look at the record again.
                Ok(Ran::Missed) if waiting.missed().await => {}
                Ok(Ran::Missed) => return Ok(Begun::InFlight(InFlight::unseen())),
                Ok(Ran::Locked) => {
                    let look = self.look(key, fingerprint, &mut waiting, flight.as_ref());
                    let seen = look.await?;
                    match seen.refusal() {
                        Err(refusal) => return Ok(refusal),
                        // The key is free: the record has changed, or its transaction has ended.
                        Ok(now)
                            if (now != before || self.ended(key, &mut waiting).await?)
                                && waiting.missed().await => {}
                        Ok(_) => return Ok(Begun::InFlight(InFlight::unseen())),
                    }
                }
                Err(error) => attempts.again(error).await?,
            }
        }
    }

    /// Waits until no transaction has the key. False: the wait is over first. (The caller may have met a brief lock,
    /// of a lane's look or of `InnoDB` on the gap after another key. Then the first check finds no transaction.)
    pub(super) async fn ended(
        &self,
        key: &RecordKey,
        waiting: &mut KeyWait,
    ) -> Result<bool, Error> {
        loop {
            let head = self
                .core
                .lanes
                .look(Subject::Record(key.clone()), "look up");
            let of = key.clone();
            let is_claimed = async move |store: &mut dyn Store| store.record_is_claimed(&of).await;
            if !self.core.lanes.run(head, is_claimed).await? {
                return Ok(true);
            }
            if !waiting.again(None).await {
                return Ok(false);
            }
        }
    }

    /// Runs one transaction.
    async fn once<P, E, F>(
        &self,
        pool: &P,
        run: &Arc<Run>,
        params: &ClaimParams,
        work: &mut impl FnMut(RetryTx<P::Database>) -> F,
    ) -> Result<Ran, E>
    where
        P: Pool,
        E: From<sqlx::Error> + From<Error> + Retryable,
        F: Future<Output = Result<Outcome, E>>,
    {
        let open = Open::begin(pool, run).await;
        let open = open.map_err(CommitFailure::into_error::<E>)?;
        // It may have waited for long.
        if let Err(ended) = self.core.lanes.check_open() {
            open.undo().await;
            return Err(ended.into());
        }
        match self.claim_in::<P>(open, params).await? {
            Ok(open) => self.work_in::<P, E, F>(open, params, work).await,
            Err(refused) => Ok(refused),
        }
    }

    /// Claims the key in the transaction. Returns the transaction, or the reason why the claim failed.
    ///
    /// A statement that is cut off can cost the pool a connection, so a task finishes it if this future is dropped.
    async fn claim_in<P: Pool>(
        &self,
        open: Open<P::Database>,
        params: &ClaimParams,
    ) -> Result<Result<Open<P::Database>, Ran>, Error> {
        let (it, params) = (self.clone(), params.clone());
        let claimed = self
            .core
            .lanes
            .tasks
            .finish("the claim of a key", async move {
                let mut open = open;
                let refused = match it.claim_on::<P>(&mut open.tx, &params).await {
                    Ok(ClaimOutcome::Mine { .. }) => return Ok(Ok(open)),
                    Ok(ClaimOutcome::Missed) => Ok(Err(Ran::Missed)),
                    Ok(ClaimOutcome::Locked) => Ok(Err(Ran::Locked)),
                    Err(error) => Err(error),
                };
                open.roll_back().await;
                refused
            });
        claimed.await
    }

    /// Sends the claim of the key.
    pub(super) async fn claim_on<P: Pool>(
        &self,
        tx: &mut sqlx::Transaction<'static, P::Database>,
        params: &ClaimParams,
    ) -> Result<ClaimOutcome, Error> {
        let context = Context::new(
            &self.core,
            params.key.subject(),
            "begin",
            P::Database::DRIVER,
        )?;
        let told = tx.tx_claim(params).await;
        context.told(told)
    }

    /// Runs the work after a claim, keeps its outcome, and commits.
    pub(super) async fn work_in<P, E, F>(
        &self,
        open: Open<P::Database>,
        params: &ClaimParams,
        work: &mut impl FnMut(RetryTx<P::Database>) -> F,
    ) -> Result<Ran, E>
    where
        P: Pool,
        E: From<sqlx::Error> + From<Error>,
        F: Future<Output = Result<Outcome, E>>,
    {
        let (result, lent) = open.lend(work).await;
        let open = lent.back()?;
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(error) => {
                open.undo().await;
                return Err(error);
            }
        };
        let (it, params) = (self.clone(), params.clone());
        let kept = self
            .core
            .lanes
            .tasks
            .finish("the commit of an outcome", async move {
                let mut open = open;
                match it.keep_on::<P>(&mut open.tx, &params, &outcome).await {
                    Ok(true) => match open.commit().await {
                        Ok(()) => Ok(Ran::Done(outcome)),
                        Err(uncommitted) => Err(uncommitted),
                    },
                    refused => {
                        open.roll_back().await;
                        refused.map(|_| Ran::Missed).map_err(CommitFailure::Ours)
                    }
                }
            });
        kept.await.map_err(CommitFailure::into_error)
    }

    async fn keep_on<P: Pool>(
        &self,
        tx: &mut sqlx::Transaction<'static, P::Database>,
        params: &ClaimParams,
        outcome: &Outcome,
    ) -> Result<bool, Error> {
        let context = Context::new(
            &self.core,
            params.key.subject(),
            "complete",
            P::Database::DRIVER,
        )?;
        self.bounds().check("the outcome", outcome.bytes().len())?;
        let kept = tx.tx_keep(params, outcome).await;
        match context.told(kept)? {
            FinishOutcome::Ended => Ok(true),
            FinishOutcome::Superseded | FinishOutcome::Locked => Ok(false),
        }
    }
}

/// The result of one transaction.
pub(super) enum Ran {
    Done(Outcome),
    /// The record has changed since the look.
    Missed,
    /// An open transaction has the key.
    Locked,
}

#[cfg(all(test, feature = "sqlite"))]
#[path = "run_tests.rs"]
mod tests;
