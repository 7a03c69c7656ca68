//! The transaction in which a token is used up, and the work is done.

use std::sync::Arc;

use super::form_token::{FormTokens, record};
use super::run_in_tx::Ran;
use crate::model::{Error, Fingerprint, Outcome, Subject};
use crate::store::driver::engines::SupportedDatabase;
use crate::store::verbs::form_token::{FormTokenStore, TokenParams};
use crate::store::verbs::record::{ClaimOutcome, ClaimParams};
use crate::transaction::{CommitFailure, Context, Open, Pool, RetryTx, Retryable, Run};

impl FormTokens {
    /// Runs one transaction. `Missed`: the token does not exist.
    pub(super) async fn once<P, E, F>(
        &self,
        pool: &P,
        run: &Arc<Run>,
        params: &TokenParams,
        form: &Fingerprint,
        work: &mut impl FnMut(RetryTx<P::Database>) -> F,
    ) -> Result<Ran, E>
    where
        P: Pool,
        E: From<sqlx::Error> + From<Error> + Retryable,
        F: Future<Output = Result<Outcome, E>>,
    {
        let claim = self.outcomes.ask(&record(params)?, form, None);
        let open = Open::begin(pool, run).await;
        let open = open.map_err(CommitFailure::into_error::<E>)?;
        // It may have waited for long.
        if let Err(ended) = self.outcomes.core.lanes.check_open() {
            open.undo().await;
            return Err(ended.into());
        }
        let (it, token, key) = (self.clone(), params.clone(), claim.clone());
        // A task finishes the statements, as in `run_in_tx`: no statement is cut off.
        let tasks = &self.outcomes.core.lanes.tasks;
        let claimed = tasks.finish("the claim of a key", async move {
            let mut open = open;
            let refused = match it.consume_on::<P>(&mut open.tx, &token, &key).await {
                Ok(ClaimOutcome::Mine { .. }) => return Ok(Ok(open)),
                Ok(ClaimOutcome::Missed) => Ok(Err(Ran::Missed)),
                Ok(ClaimOutcome::Locked) => Ok(Err(Ran::Locked)),
                Err(error) => Err(error),
            };
            open.roll_back().await;
            refused
        });
        let claimed: Result<_, Error> = claimed.await;
        match claimed? {
            Ok(open) => {
                let outcomes = &self.outcomes;
                outcomes.work_in::<P, E, F>(open, &claim, work).await
            }
            Err(refused) => Ok(refused),
        }
    }

    /// Claims the key of the outcome first, so that the second click finds the claim and does not wait for the token's
    /// row.
    async fn consume_on<P: Pool>(
        &self,
        tx: &mut sqlx::Transaction<'static, P::Database>,
        params: &TokenParams,
        claim: &ClaimParams,
    ) -> Result<ClaimOutcome, Error> {
        let claimed = self.outcomes.claim_on::<P>(tx, claim).await?;
        if !matches!(claimed, ClaimOutcome::Mine { .. }) {
            return Ok(claimed);
        }
        let on = Subject::Record(record(params)?);
        let of = P::Database::DRIVER;
        let context = Context::new(&self.outcomes.core, on, "use a form token of", of)?;
        let told = tx.tx_token_consume(params).await;
        Ok(if context.told(told)? {
            claimed
        } else {
            ClaimOutcome::Missed
        })
    }
}
