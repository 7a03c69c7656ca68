//! Claim, work and outcome in one transaction and one commit.

use super::guard::superseded;
use super::judge::corrupt;
use super::key::{Fingerprint, RecordKey};
use super::outcome::Outcome;
use super::request::{Begun, Idempotency};
use crate::Error;
use crate::client::Pool;
use crate::lock::context::Context;
use crate::lock::retry::Open;
use crate::lock::{RetryTx, Retryable};
use crate::store::record::{ClaimAsk, Claimed, FinishAsk, Finished, Records};

/// How often a key is tried to be had that changes whenever it is asked for.
const MAX_MISSES: u32 = 100;

impl Idempotency {
    /// Runs `work` in a transaction of `pool`, once for `key` in `scope`: the claim of the key, what `work` writes
    /// and the outcome that it returns are committed together, or not at all.
    ///
    /// Who comes meanwhile with the same key waits in the database for that transaction, and then gets its outcome as
    /// a replay (without a transaction of its own). A crash leaves nothing behind, so that there are no attempts to count.
    ///
    /// `work` gets the transaction as in [`Retry::run`](crate::Retry::run): it may run several times, and what it does
    /// outside of the transaction happens as often. An error of its rolls everything back, and the key is free; a failure
    /// that is to be kept (a declined card) is an outcome, not an error.
    ///
    /// # Errors
    ///
    /// The last error of `work`; the driver's, when a transaction could not be begun or committed;
    /// [`Error::CommitUnknown`] (ask again with the same key: it tells); [`Error::OutcomeTooLarge`]; those of
    /// [`begin`](Self::begin). Whatever [`Begun`] says is not an error.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future rolls the transaction back, unless its commit was under way.
    pub async fn run_in_tx<P, E, F>(
        &self,
        pool: &P,
        scope: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
        fingerprint: &Fingerprint,
        mut work: impl FnMut(RetryTx<sqlx::Transaction<'static, P::Brand>>) -> F,
    ) -> Result<Begun<Outcome>, E>
    where
        P: Pool,
        E: From<sqlx::Error> + From<Error> + Retryable,
        F: Future<Output = Result<Outcome, E>>,
    {
        self.check()?;
        let key = RecordKey::new(scope, key)?;
        let mut waiting = self.waiting();
        let mut attempts = self.retry.attempts_of_one()?;
        let mut misses = 0;
        loop {
            // Replays and refusals need no transaction.
            let before = match self.look(&key, fingerprint, &mut waiting).await?.refusal() {
                Ok(before) => before,
                Err(refusal) => return Ok(refusal),
            };
            let ask = self.ask(&key, fingerprint, before);
            match self.once(pool, &ask, &mut work).await {
                Ok(Some(outcome)) => return Ok(Begun::New(outcome)),
                // Somebody was faster: what has he made of it?
                Ok(None) if misses < MAX_MISSES => misses += 1,
                Ok(None) => {
                    let what = "it changes whenever it is asked for";
                    return Err(corrupt(key.scope(), key.key(), what).into());
                }
                Err(error) => attempts.again(error).await?,
            }
        }
    }

    /// One transaction. `None`: the record is not as it was seen.
    async fn once<P, E, F>(
        &self,
        pool: &P,
        ask: &ClaimAsk,
        work: &mut impl FnMut(RetryTx<sqlx::Transaction<'static, P::Brand>>) -> F,
    ) -> Result<Option<Outcome>, E>
    where
        P: Pool,
        E: From<sqlx::Error> + From<Error> + Retryable,
        F: Future<Output = Result<Outcome, E>>,
    {
        let mut open = Open::begin(pool).await?;
        match self.claim_in::<P>(&mut open.tx, ask).await {
            Ok(Some(attempt)) => self.work_in(pool, open, ask, attempt, work).await.map(Some),
            Ok(None) => {
                open.roll_back().await;
                Ok(None)
            }
            Err(error) => {
                open.roll_back().await;
                Err(error.into())
            }
        }
    }

    /// The number of the attempt, if it could be claimed.
    pub(super) async fn claim_in<P: Pool>(
        &self,
        tx: &mut sqlx::Transaction<'static, P::Brand>,
        ask: &ClaimAsk,
    ) -> Result<Option<i64>, Error> {
        let context = Context::new(&self.core, ask.key.subject(), "begin", P::ENGINE)?;
        let told = P::connection(tx).tx_claim(ask).await;
        let told = told.map_err(|fault| context.error(fault))?;
        let Claimed::Mine { attempt } = told.found else {
            return Ok(None);
        };
        context.check(told.database)?;
        Ok(Some(attempt))
    }

    /// The work of a claimed attempt, its outcome, and the commit.
    pub(super) async fn work_in<P, E, F>(
        &self,
        _pool: &P,
        open: Open<sqlx::Transaction<'static, P::Brand>>,
        ask: &ClaimAsk,
        attempt: i64,
        work: &mut impl FnMut(RetryTx<sqlx::Transaction<'static, P::Brand>>) -> F,
    ) -> Result<Outcome, E>
    where
        P: Pool,
        E: From<sqlx::Error> + From<Error>,
        F: Future<Output = Result<Outcome, E>>,
    {
        let (tx, lent) = open.lend();
        let result = work(tx).await;
        let mut open = lent.back()?;
        let done = match result {
            Ok(outcome) => {
                let tx = &mut open.tx;
                let kept = self.keep_in::<P>(tx, ask, attempt, &outcome).await;
                kept.map(|()| outcome).map_err(E::from)
            }
            Err(error) => Err(error),
        };
        match done {
            Ok(outcome) => open.commit::<E>().await.map(|()| outcome),
            Err(error) => {
                open.roll_back().await;
                Err(error)
            }
        }
    }

    async fn keep_in<P: Pool>(
        &self,
        tx: &mut sqlx::Transaction<'static, P::Brand>,
        ask: &ClaimAsk,
        attempt: i64,
        outcome: &Outcome,
    ) -> Result<(), Error> {
        let context = Context::new(&self.core, ask.key.subject(), "complete", P::ENGINE)?;
        let finish = FinishAsk {
            key: ask.key.clone(),
            owner: ask.owner,
            attempt,
            end: self.bounds().done(outcome)?,
        };
        let told = P::connection(tx).tx_complete(&finish).await;
        match context.told(told)? {
            Finished::Ended => Ok(()),
            Finished::Superseded | Finished::Locked => Err(superseded("complete", &ask.key)),
        }
    }
}
