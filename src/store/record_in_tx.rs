//! Idempotency records in the caller's transaction.

use super::fault::Fault;
use super::in_tx::Told;
use super::record::{ClaimAsk, Claimed, FinishAsk, Finished};
use crate::model::Outcome;

/// The verbs for records in the caller's transaction.
pub(crate) trait RecordInTxStore {
    /// In the caller's transaction, which was begun for this: claims a key as
    /// [`record_claim`](super::record::RecordStore::record_claim) does, until the transaction ends. It does not wait for
    /// other transactions that have claimed it (on MySQL a second at most, which is the shortest wait there is). What was
    /// not claimed leaves a transaction that has to be rolled back. (The number of the attempt is told where it costs
    /// nothing.)
    fn tx_claim(
        &mut self,
        ask: &ClaimAsk,
    ) -> impl Future<Output = Result<Told<Claimed>, Fault>> + Send;

    /// In the caller's transaction: keeps the outcome of what it has claimed. Superseded: somebody else was faster.
    fn tx_keep(
        &mut self,
        ask: &ClaimAsk,
        outcome: &Outcome,
    ) -> impl Future<Output = Result<Finished, Fault>> + Send;

    /// In the caller's transaction: ends an attempt that runs with its outcome. A transaction that is over is a
    /// fault, on every brand.
    fn tx_complete(
        &mut self,
        ask: &FinishAsk,
    ) -> impl Future<Output = Result<Told<Finished>, Fault>> + Send;
}
