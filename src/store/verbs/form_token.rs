//! Form tokens.

use std::sync::Arc;
use std::time::Duration;

use super::fault::Fault;
use super::in_tx::TxReply;
use crate::model::Fingerprint;
use async_trait::async_trait;

/// The verbs for form tokens.
#[async_trait]
pub(crate) trait FormTokenStore {
    /// Makes a form token. Never sent twice with one digest: a late sending would make a used token valid again.
    async fn token_issue(&mut self, params: &TokenParams) -> Result<(), Fault>;

    /// In the caller's transaction: makes a form token. A transaction that is over is a fault.
    async fn tx_token_issue(&mut self, params: &TokenParams) -> Result<TxReply<()>, Fault>;

    /// In the caller's transaction: uses up a form token with one DELETE, and returns whether it existed. A
    /// transaction that is over is a fault.
    async fn tx_token_consume(&mut self, params: &TokenParams) -> Result<TxReply<bool>, Fault>;
}

#[derive(Debug, Clone)]
pub(crate) struct TokenParams {
    pub(crate) scope: Arc<[u8]>,
    pub(crate) digest: Fingerprint,
    pub(crate) ttl: Duration,
}
