//! Form tokens: a form that is submitted twice does its work once.
//!
//! # Overview
//!
//! The application issues a token with the form. One DELETE inside the business transaction uses the token up. The
//! outcome of the submission is stored under the token, so that a second click gets the outcome of the first.
//!
//! # State model
//!
//! ```text
//!            issue              submit, commit                    retention over
//!  (nothing) ─────► issued ───────────────────► used, with outcome ────────────► gone
//!                     └── its TTL is over ──────────────────────────────────────► gone
//! ```
//!
//! # Failure
//!
//! After a rollback or a crash the token still exists, and the form can be submitted again.

use std::sync::Arc;
use std::time::Duration;

use super::begun::Begun;
use super::request::Idempotency;
use super::run_in_tx::Ran;
use super::waiting::{KeyWait, WaitOutcome};
use crate::model::bounds::within;
use crate::model::{Error, Fingerprint, FormToken, Key, Outcome, RecordKey, Subject, check_scope};
use crate::runtime::Core;
use crate::runtime::requests::form_token::NewToken;
use crate::runtime::wait::single_flight::Flight;
use crate::store::verbs::Store;
use crate::store::verbs::form_token::TokenParams;
use crate::transaction::{Context, Pool, RetryTx, Retryable, Transaction};

const DEFAULT_TTL: Duration = Duration::from_hours(1);
const DEFAULT_WAIT: Duration = Duration::from_secs(30);
const LONGEST: Duration = Duration::from_hours(366 * 24);
/// The longest token to look up. A longer one cannot be rowlock's.
const MAX_TOKEN: usize = 255;

/// Tokens for forms whose submission must happen once: made by [`Rowlock::form_tokens`](crate::Rowlock::form_tokens).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/shop.db?mode=rwc", dir.path().display());
/// # let pool = sqlx::SqlitePool::connect(&url).await?;
/// # sqlx::raw_sql("CREATE TABLE orders (sku TEXT)").execute(&pool).await?;
/// # let rowlock = rowlock::Rowlock::from_pool(&pool).await?;
/// use rowlock::{Fingerprint, Scope, Outcome, Submitted};
///
/// let tokens = rowlock.form_tokens();
/// let token = tokens.issue("session:7").await?; // into a hidden field of the form
///
/// let form = Fingerprint::of("sku=chair");
/// for click in 1..=2 {
///     let of = Scope("session:7").key(token.as_str());
///     let submitted = tokens
///         .submit(&pool, of, &form, async |mut tx| {
///             sqlx::query("INSERT INTO orders VALUES ('chair')").execute(&mut *tx).await?;
///             Outcome::json(&"ordered")
///         })
///         .await?;
///     match submitted {
///         Submitted::New(outcome) => assert_eq!((click, outcome.bytes()), (1, &b"\"ordered\""[..])),
///         Submitted::Replay(outcome) => assert_eq!((click, outcome.bytes()), (2, &b"\"ordered\""[..])),
///         refused => panic!("{refused:?}"),
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "it does nothing by itself"]
pub struct FormTokens {
    core: Arc<Core>,
    ttl: Duration,
    pub(super) outcomes: Idempotency,
}

impl FormTokens {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        Self {
            core: Arc::clone(core),
            ttl: DEFAULT_TTL,
            outcomes: Idempotency::new(core)
                .remember_expired(Duration::ZERO)
                .wait(DEFAULT_WAIT),
        }
    }

    /// How long a token may be used: 1 s to 366 days, an hour when not set.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long the outcome of a submitted form is kept for the second click: 1 s to 10 years, 24 h when not set.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.outcomes = self.outcomes.retention(retention);
        self
    }

    /// The longest time that the second click waits for the first, before it gets [`Submitted::InFlight`]: at most 366
    /// days, 30 s when not set.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.outcomes = self.outcomes.wait(wait);
        self
    }

    /// Issues a token for `scope`, which says whose form it is (a session, a user): 1 to 255 bytes.
    ///
    /// # Errors
    ///
    /// An invalid scope or setting, a database out of reach.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, its token is removed when its TTL is over.
    pub async fn issue(&self, scope: impl AsRef<[u8]>) -> Result<FormToken, Error> {
        let new = self.fresh(scope.as_ref())?;
        // Each sending makes its own token, so that a late statement cannot issue one that a form has.
        let issue = async move |store: &mut dyn Store| {
            let (token, params) = new.make();
            store.token_issue(&params).await.map(|()| token)
        };
        let head = self.core.lanes.wish(None, "issue a form token");
        self.core.lanes.run(head, issue).await
    }

    /// Issues a token that exists when the transaction commits: for the page that answers the submission.
    ///
    /// # Errors
    ///
    /// An invalid scope or setting; a transaction that belongs to another database, is over, is read only or must
    /// begin again; a database out of reach.
    pub async fn issue_in<T: Transaction>(
        &self,
        tx: &mut T,
        scope: impl AsRef<[u8]>,
    ) -> Result<FormToken, Error> {
        let (token, params) = self.fresh(scope.as_ref())?.make();
        let on = Subject::Record(record(&params)?);
        let context = Context::in_tx(&self.outcomes.core, on, "issue a form token for", tx)?;
        let told = tx.connection().tx_token_issue(&params).await;
        context.told(told)?;
        Ok(token)
    }

    /// Uses a token up in the caller's transaction, by one DELETE. Returns whether the token existed. A rollback gives
    /// it back. If an open transaction has used it up, this waits for that transaction's end.
    ///
    /// This keeps no outcome for a second click: [`submit`](Self::submit) does.
    ///
    /// # Errors
    ///
    /// The errors of [`issue_in`](Self::issue_in).
    pub async fn consume_in<T: Transaction>(
        &self,
        tx: &mut T,
        token: Key<impl AsRef<[u8]>, impl AsRef<[u8]>>,
    ) -> Result<bool, Error> {
        let Some(params) = self.ask(&token)? else {
            return Ok(false);
        };
        let on = Subject::Record(record(&params)?);
        let context = Context::in_tx(&self.outcomes.core, on, "use a form token of", tx)?;
        let told = tx.connection().tx_token_consume(&params).await;
        context.told(told)
    }

    /// Uses the token up, runs `work` and keeps its outcome, in one transaction of `pool`. The second click
    /// [waits](Self::wait) for the end of that transaction, without a connection of the pool, and gets the same
    /// outcome.
    ///
    /// The key is the token that came with the form, and the scope the one that it was issued for. `form` is the
    /// fingerprint of the submitted form. `work` is as in [`run_in_tx`](Idempotency::run_in_tx); it may
    /// [issue the next token](Self::issue_in) and make it part of the outcome.
    ///
    /// # Errors
    ///
    /// The errors of [`run_in_tx`](Idempotency::run_in_tx).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`run_in_tx`](Idempotency::run_in_tx).
    pub async fn submit<P, E, F>(
        &self,
        pool: &P,
        token: Key<impl AsRef<[u8]>, impl AsRef<[u8]>>,
        form: impl Into<Fingerprint>,
        work: impl FnMut(RetryTx<P::Database>) -> F,
    ) -> Result<Submitted, E>
    where
        P: Pool,
        E: From<sqlx::Error> + From<Error> + Retryable,
        F: Future<Output = Result<Outcome, E>>,
    {
        self.outcomes.check()?;
        let Some(params) = self.ask(&token)? else {
            return Ok(Submitted::Gone);
        };
        let submitted = self.submit_in(pool, &params, &form.into(), work).await?;
        if !matches!(submitted, Submitted::New(_) | Submitted::InFlight) {
            self.outcomes
                .is_for::<P, E>(pool, &record(&params)?)
                .await?;
        }
        Ok(submitted)
    }

    async fn submit_in<P, E, F>(
        &self,
        pool: &P,
        params: &TokenParams,
        form: &Fingerprint,
        mut work: impl FnMut(RetryTx<P::Database>) -> F,
    ) -> Result<Submitted, E>
    where
        P: Pool,
        E: From<sqlx::Error> + From<Error> + Retryable,
        F: Future<Output = Result<Outcome, E>>,
    {
        let (key, mut attempts) = (record(params)?, self.outcomes.retry.attempts_of_one()?);
        let mut waiting = self.outcomes.waiting();
        let (mut flight, of) = (None, (&key, form));
        loop {
            if flight.is_none() {
                match self.core.flights.take(&key, form, None) {
                    Ok(mine) => flight = Some(mine),
                    Err(other) => match self.outcomes.wait_out(&mut waiting, of, other).await {
                        WaitOutcome::Kept(outcome) => return Ok(Submitted::Replay(outcome)),
                        WaitOutcome::LookAgain => {}
                        WaitOutcome::TooLong => return Ok(Submitted::InFlight),
                    },
                }
            }
            // Without a flight, the wait ended because another click ended. Its outcome may be there.
            if flight.is_some() {
                self.outcomes.core.lanes.check_open()?;
                match self
                    .once(pool, &attempts.run, params, form, &mut work)
                    .await
                {
                    Ok(Ran::Done(outcome)) => {
                        flight.inspect(|flight| flight.kept(&outcome));
                        return Ok(Submitted::New(outcome));
                    }
                    Ok(Ran::Missed) => {
                        let seen = self.seen(&key, form, &mut waiting, flight.as_ref()).await?;
                        return Ok(seen.unwrap_or(Submitted::Gone));
                    }
                    Ok(Ran::Locked) => {}
                    Err(error) => {
                        attempts.again(error).await?;
                        continue;
                    }
                }
            }
            if let Some(seen) = self.seen(&key, form, &mut waiting, flight.as_ref()).await? {
                return Ok(seen);
            }
            if flight.is_some()
                && !(self.outcomes.ended(&key, &mut waiting).await? && waiting.missed().await)
            {
                return Ok(Submitted::InFlight);
            }
        }
    }

    /// The result of an earlier submission. `None` when the token may be used.
    async fn seen(
        &self,
        key: &RecordKey,
        form: &Fingerprint,
        waiting: &mut KeyWait,
        flight: Option<&Flight>,
    ) -> Result<Option<Submitted>, Error> {
        Ok(
            match self.outcomes.look(key, form, waiting, flight).await? {
                Begun::Replay(outcome) => Some(Submitted::Replay(outcome)),
                Begun::Mismatch => Some(Submitted::Mismatch),
                Begun::New(_) => None,
                _ => Some(Submitted::Gone),
            },
        )
    }

    fn fresh(&self, scope: &[u8]) -> Result<NewToken, Error> {
        let bounds = "1 s to 366 days are allowed";
        within("ttl", self.ttl, Duration::from_secs(1)..=LONGEST, bounds)?;
        let new = NewToken {
            scope: scope.into(),
            ttl: self.ttl,
        };
        check_scope(scope)?;
        record(&new.make().1)?;
        Ok(new)
    }

    /// `None`: rowlock cannot have issued such a token.
    fn ask(
        &self,
        token: &Key<impl AsRef<[u8]>, impl AsRef<[u8]>>,
    ) -> Result<Option<TokenParams>, Error> {
        let params = TokenParams {
            scope: token.scope.as_ref().into(),
            digest: Fingerprint::of(&token.key),
            ttl: self.ttl,
        };
        record(&params)?;
        Ok((1..=MAX_TOKEN)
            .contains(&token.key.as_ref().len())
            .then_some(params))
    }
}

/// The record that keeps the outcome of a submission. (An application's own key in the same scope cannot be equal:
/// this key contains the token's digest.)
pub(super) fn record(params: &TokenParams) -> Result<RecordKey, Error> {
    let key = format!("form-token {}", hex::encode(params.digest.as_bytes()));
    Ok(RecordKey::new(&params.scope, key)?)
}

/// The result of a submission.
#[derive(Debug)]
#[must_use = "it tells whether the form was submitted"]
pub enum Submitted {
    /// This call did the work, with this outcome.
    New(Outcome),
    /// An earlier submission with this token did the work, with this outcome.
    Replay(Outcome),
    /// Another submission is running, and did not end within the [`wait`](crate::FormTokens::wait).
    InFlight,
    /// The token was used for another form.
    Mismatch,
    /// The token does not exist: it was never issued, its TTL is over, or it was used and the outcome has been
    /// deleted since.
    Gone,
}
