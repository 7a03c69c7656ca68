//! Idempotency records in transactions: the statements.
//!
//! A transaction that may write has the whole file to itself: no other transaction can have claimed anything.

use async_trait::async_trait;
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::in_tx::{database, in_transaction};
use super::record::claim_in_tx;
use crate::model::{FaultKind, Outcome};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::in_tx::TxReply;
use crate::store::verbs::record::{
    ClaimOutcome, ClaimParams, EndColumns, FinishOutcome, FinishParams,
};
use crate::store::verbs::record_in_tx::RecordInTxStore;
use crate::store::verbs::time::to_micros;

const COMPLETE: &str = "
UPDATE rowlock_idempotency
SET state = 'done', open_step = NULL, abandoned = 0, content_type = ?5, outcome = ?6, done_at = now.us,
    retain_until = now.us + ?7, clean_at = now.us + ?7, forget_at = now.us + ?8
FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now
WHERE scope = ?1 AND idempotency_key = ?2 AND attempt_id = ?3 AND attempt = ?4 AND state = 'running'";

const KEEP: &str = "
UPDATE rowlock_idempotency
SET state = 'done', open_step = NULL, abandoned = 0, content_type = ?4, outcome = ?5, done_at = now.us,
    retain_until = now.us + ?6, clean_at = now.us + ?6, forget_at = now.us + ?7
FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now
WHERE scope = ?1 AND idempotency_key = ?2 AND attempt_id = ?3 AND state = 'running'";

#[async_trait]
impl RecordInTxStore for SqliteConnection {
    async fn tx_claim(&mut self, params: &ClaimParams) -> Result<TxReply<ClaimOutcome>, Fault> {
        // This savepoint identifies the transaction when the outcome is kept.
        sqlx::raw_sql("SAVEPOINT rowlock_claim")
            .execute(&mut *self)
            .await?;
        let claimed = claim_in_tx(self, params).await?;
        let attempt = claimed.first().map(|claimed| claimed.2);
        let database: Option<Uuid> = database(self).await?;
        let mine = |attempt| ClaimOutcome::Mine { attempt };
        let found = attempt.map_or(ClaimOutcome::Missed, mine);
        Ok(TxReply::of(database, found))
    }

    async fn tx_keep(
        &mut self,
        params: &ClaimParams,
        outcome: &Outcome,
    ) -> Result<TxReply<FinishOutcome>, Fault> {
        let known = sqlx::raw_sql("RELEASE SAVEPOINT rowlock_claim");
        if let Err(error) = known.execute(&mut *self).await {
            // SQLITE_ERROR: "no such savepoint". The transaction of the claim has ended, even if another one has begun
            // since.
            let fault = Fault::from(error);
            return Err(match fault.kind {
                FaultKind::Other => Fault::transaction_over(),
                _ => fault,
            });
        }
        let done = sqlx::query(KEEP)
            .bind(params.key.scope())
            .bind(params.key.key())
            .bind(params.attempt_id)
            .bind(outcome.content_type())
            .bind(outcome.bytes())
            .bind(to_micros(params.retain))
            .bind(to_micros(params.remember))
            .execute(self)
            .await?;
        match done.rows_affected() {
            // The claim was made in this transaction, which has been rolled back since.
            0 => Err(Fault::transaction_over()),
            _ => Ok(TxReply::of(Some(params.database), FinishOutcome::Ended)),
        }
    }

    async fn tx_complete(
        &mut self,
        params: &FinishParams,
    ) -> Result<TxReply<FinishOutcome>, Fault> {
        in_transaction(self).await?;
        let database: Option<Uuid> = database(self).await?;
        let end = EndColumns::from(&params.end);
        let done = sqlx::query(COMPLETE)
            .bind(params.key.scope())
            .bind(params.key.key())
            .bind(params.attempt_id)
            .bind(params.attempt)
            .bind(end.outcome.map(Outcome::content_type))
            .bind(end.outcome.map(Outcome::bytes))
            .bind(end.retain)
            .bind(end.remember)
            .execute(self)
            .await?;
        let found = FinishOutcome::of(done.rows_affected() > 0);
        Ok(TxReply::of(database, found))
    }
}
