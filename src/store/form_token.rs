//! Form tokens.

use std::sync::Arc;
use std::time::Duration;

use super::fault::Fault;
use super::in_tx::Told;
use crate::model::Fingerprint;

/// The verbs for form tokens.
pub(crate) trait FormTokenStore {
    /// Makes a form token. Never sent twice with one digest: a late sending would make a token that was used good again.
    fn token_issue(&mut self, ask: &TokenAsk) -> impl Future<Output = Result<(), Fault>> + Send;

    /// In the caller's transaction: makes a form token. A transaction that is over is a fault.
    fn tx_token_issue(
        &mut self,
        ask: &TokenAsk,
    ) -> impl Future<Output = Result<Told<()>, Fault>> + Send;

    /// In the caller's transaction: uses a form token up, by one DELETE; whether there was one. A transaction that
    /// is over is a fault.
    fn tx_token_consume(
        &mut self,
        ask: &TokenAsk,
    ) -> impl Future<Output = Result<Told<bool>, Fault>> + Send;
}

#[derive(Debug, Clone)]
pub(crate) struct TokenAsk {
    pub(crate) scope: Arc<[u8]>,
    pub(crate) digest: Fingerprint,
    pub(crate) ttl: Duration,
}
