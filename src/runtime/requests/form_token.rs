//! Making a form token: each try makes another one.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{Fingerprint, FormToken};
use crate::store::verbs::form_token::TokenParams;

/// The parameters of a new token.
#[derive(Debug)]
pub(crate) struct NewToken {
    pub(crate) scope: Arc<[u8]>,
    pub(crate) ttl: Duration,
}

impl NewToken {
    /// Makes another token with each call.
    pub(crate) fn make(&self) -> (FormToken, TokenParams) {
        let token = FormToken::random();
        let params = TokenParams {
            scope: Arc::clone(&self.scope),
            digest: Fingerprint::of(token.as_str()),
            ttl: self.ttl,
        };
        (token, params)
    }
}
