//! Claim, work and outcome in one transaction and one commit.

use super::key::{Fingerprint, RecordKey};
use super::outcome::Outcome;
use super::request::{Begun, Idempotency, InFlight};
use crate::hold;
use crate::lock::context::Context;
use crate::lock::retry::Open;
use crate::lock::{RetryTx, Retryable};
use crate::pool::Pool;
use crate::store::record::{ClaimAsk, Claimed, Finished, Records};
use crate::{Engine, Error};

/// How often a key is tried to be had that changes whenever it is asked for.
const MAX_MISSES: u32 = 100;

impl Idempotency {
    /// Runs `work` in a transaction of `pool`, once for `key` in `scope`: the claim of the key, what `work` writes
    /// and the outcome that it returns are committed together, or not at all.
    ///
    /// Who comes meanwhile with the same key waits in the database for that transaction, and then gets its outcome as
    /// a replay. (A replay is one statement, where this client has met the key before; where it has not, a transaction is
    /// begun first, in vain.) A crash leaves nothing behind, so that there are no attempts to count.
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
    /// Dropping the future while `work` runs rolls the transaction back. Behind that, keeping the outcome and the commit go on
    /// in the background.
    pub async fn run_in_tx<P, E, F>(
        &self,
        pool: &P,
        scope: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
        fingerprint: impl Into<Fingerprint>,
        mut work: impl FnMut(RetryTx<sqlx::Transaction<'static, P::Brand>>) -> F,
    ) -> Result<Begun<Outcome>, E>
    where
        P: Pool,
        E: From<sqlx::Error> + From<Error> + Retryable,
        F: Future<Output = Result<Outcome, E>>,
    {
        self.check()?;
        let fingerprint = &fingerprint.into();
        let key = RecordKey::new(scope, key)?;
        let mut waiting = self.waiting();
        let mut attempts = self.retry.attempts_of_one()?;
        let mut misses = 0;
        // Who is likely to get a replay looks for it, which needs no transaction. On SQLite beginning one is to wait for
        // all who write.
        let mut looks = self.core.engine == Engine::Sqlite || self.core.met.has(&key);
        self.core.met.remember(&key);
        loop {
            let before = if looks {
                match self.look(&key, fingerprint, &mut waiting).await?.refusal() {
                    Ok(before) => before,
                    Err(refusal) => return Ok(refusal),
                }
            } else {
                None
            };
            looks = true;
            let ask = self.ask(&key, fingerprint, before);
            match self.once(pool, &ask, &mut work).await {
                Ok(Some(outcome)) => return Ok(Begun::New(outcome)),
                // Somebody was faster: what has he made of it?
                Ok(None) if misses < MAX_MISSES => misses += 1,
                Ok(None) => return Ok(Begun::InFlight(InFlight::unseen())),
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
        let open = Open::begin(pool).await?;
        match self.claim_in::<P>(open, ask).await? {
            Some(open) => self.work_in::<P, E, F>(open, ask, work).await,
            None => Ok(None),
        }
    }

    /// The transaction, in which the key is claimed now. `None`: it could not be.
    ///
    /// A statement that is cut off can lose a connection of the pool: dropping this finishes it first.
    async fn claim_in<P: Pool>(
        &self,
        open: Open<sqlx::Transaction<'static, P::Brand>>,
        ask: &ClaimAsk,
    ) -> Result<Option<Open<sqlx::Transaction<'static, P::Brand>>>, Error> {
        let (it, ask) = (self.clone(), ask.clone());
        let claimed = hold::finished(async move {
            let mut open = open;
            match it.claim_on::<P>(&mut open.tx, &ask).await {
                Ok(true) => Ok(Some(open)),
                refused => {
                    open.roll_back().await;
                    refused.map(|_| None)
                }
            }
        });
        claimed.await
    }

    /// Whether the key could be claimed.
    pub(super) async fn claim_on<P: Pool>(
        &self,
        tx: &mut sqlx::Transaction<'static, P::Brand>,
        ask: &ClaimAsk,
    ) -> Result<bool, Error> {
        let context = Context::new(&self.core, ask.key.subject(), "begin", P::ENGINE)?;
        let told = P::connection(tx).tx_claim(ask).await;
        let told = told.map_err(|fault| context.error(fault))?;
        if told.database.is_some() {
            context.check(told.database)?;
        }
        Ok(matches!(told.found, Claimed::Mine { .. }))
    }

    /// The work behind a claim, its outcome, and the commit. `None`: somebody else was faster.
    pub(super) async fn work_in<P, E, F>(
        &self,
        open: Open<sqlx::Transaction<'static, P::Brand>>,
        ask: &ClaimAsk,
        work: &mut impl FnMut(RetryTx<sqlx::Transaction<'static, P::Brand>>) -> F,
    ) -> Result<Option<Outcome>, E>
    where
        P: Pool,
        E: From<sqlx::Error> + From<Error>,
        F: Future<Output = Result<Outcome, E>>,
    {
        let (tx, lent) = open.lend();
        let result = work(tx).await;
        let open = lent.back()?;
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(error) => {
                hold::finished(open.roll_back()).await;
                return Err(error);
            }
        };
        let (it, ask) = (self.clone(), ask.clone());
        let kept = hold::finished(async move {
            let mut open = open;
            match it.keep_on::<P>(&mut open.tx, &ask, &outcome).await {
                Ok(true) => open.commit::<Failed>().await.map(|()| Some(outcome)),
                refused => {
                    open.roll_back().await;
                    refused.map(|_| None).map_err(Failed::Ours)
                }
            }
        });
        kept.await.map_err(|failed| match failed {
            Failed::Ours(error) => error.into(),
            Failed::Driver(error) => error.into(),
        })
    }

    async fn keep_on<P: Pool>(
        &self,
        tx: &mut sqlx::Transaction<'static, P::Brand>,
        ask: &ClaimAsk,
        outcome: &Outcome,
    ) -> Result<bool, Error> {
        let context = Context::new(&self.core, ask.key.subject(), "complete", P::ENGINE)?;
        self.bounds().check("the outcome", outcome.bytes().len())?;
        let kept = P::connection(tx).tx_keep(ask, outcome).await;
        match kept.map_err(|fault| context.error(fault))? {
            Finished::Ended => Ok(true),
            Finished::Superseded | Finished::Locked => Ok(false),
        }
    }
}

/// Why an outcome was not kept, whatever the caller's own error is.
enum Failed {
    Ours(Error),
    Driver(sqlx::Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

impl From<sqlx::Error> for Failed {
    fn from(error: sqlx::Error) -> Self {
        Self::Driver(error)
    }
}
