//! Idempotency records in the caller's transaction.

use super::fault::Fault;
use super::in_tx::TxReply;
use super::record::{ClaimOutcome, ClaimParams, FinishOutcome, FinishParams};
use crate::model::Outcome;
use async_trait::async_trait;

/// The verbs for records in the caller's transaction.
#[async_trait]
pub(crate) trait RecordInTxStore {
    /// In the caller's transaction, which was begun for this: claims a key as
    /// [`record_claim`](super::record::RecordStore::record_claim) does, until the transaction ends. Does not wait for
    /// other transactions that have claimed the key (on MySQL at most a second, its shortest wait). A failed claim
    /// leaves a transaction that has to be rolled back. (Returns the number of the attempt only where that costs
    /// nothing.)
    async fn tx_claim(&mut self, params: &ClaimParams) -> Result<TxReply<ClaimOutcome>, Fault>;

    /// In the caller's transaction: keeps the outcome of its claim. Superseded: another attempt was faster, or the
    /// tables that the transaction finds by now are those of another database (the work has changed the search path).
    async fn tx_keep(
        &mut self,
        params: &ClaimParams,
        outcome: &Outcome,
    ) -> Result<TxReply<FinishOutcome>, Fault>;

    /// In the caller's transaction: ends a running attempt with its outcome. A transaction that is over is a fault, on
    /// every engine.
    async fn tx_complete(&mut self, params: &FinishParams)
    -> Result<TxReply<FinishOutcome>, Fault>;
}
