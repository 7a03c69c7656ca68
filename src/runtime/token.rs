//! Form tokens that can be made: another one each time it is tried.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{Fingerprint, FormToken};
use crate::store::form_token::TokenAsk;

/// Tokens that can be made.
#[derive(Debug)]
pub(crate) struct NewToken {
    pub(crate) scope: Arc<[u8]>,
    pub(crate) ttl: Duration,
}

impl NewToken {
    /// Another one each time.
    pub(crate) fn make(&self) -> (FormToken, TokenAsk) {
        let token = FormToken::random();
        let ask = TokenAsk {
            scope: Arc::clone(&self.scope),
            digest: Fingerprint::of(token.as_str()),
            ttl: self.ttl,
        };
        (token, ask)
    }
}
