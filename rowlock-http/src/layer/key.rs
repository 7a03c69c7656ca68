//! Where the key is, and which keys the layer accepts.

use std::fmt;
use std::sync::Arc;

use super::IdempotencyLayer;
use crate::fingerprint::json::Choice;
use crate::received::{self, Received};

impl IdempotencyLayer {
    /// Whether the layer refuses a request without a key, with 400 (default: `true`). With `false` such a request passes
    /// untouched.
    pub fn required(self, required: bool) -> Self {
        self.with(|settings| settings.required = required)
    }

    /// Whether the layer also accepts a key without its quotes: visible ASCII without quotes, commas, semicolons and
    /// backslashes (default: `false`). The key names the same record with and without quotes.
    pub fn lenient(self, lenient: bool) -> Self {
        self.with(|settings| settings.lenient = lenient)
    }

    /// The longest key that the layer accepts, in characters: 1 to 255 (default: 255). It answers a longer key with 400, without
    /// asking the database.
    pub fn max_key(self, characters: usize) -> Self {
        self.with(|settings| settings.max_key = characters)
    }

    /// Decides which keys the layer accepts (only UUIDs, for example). It answers another key with 400, without asking the
    /// database.
    pub fn key_format(self, accept: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.key_format = Arc::new(accept))
    }

    /// Finds the key of a request, instead of in the header field Idempotency-Key. `None`: the request has no key, which is an error if a key is
    /// [required](Self::required).
    ///
    /// The hook may wait. It gets the whole request: so also a request without a key is read into memory first. If the hook returns an error, the client gets
    /// [bad-key](crate#bad-key) with the first 300 characters of the error's text. [`max_key`](Self::max_key) (here in bytes) and
    /// [`key_format`](Self::key_format) check what it finds. For a field of a JSON body there is [`key_in_json`](Self::key_in_json).
    pub fn key_from<F, E>(self, hook: impl Fn(Received) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Option<String>, E>> + Send + 'static,
        E: fmt::Display,
    {
        let hook = received::hook(hook);
        self.with(|settings| settings.key_from = Ok(Some(hook)))
    }

    /// Takes the key from a JSON body, where the path (RFC 9535) selects a text or a whole number: a webhook's event id, for example.
    ///
    /// ```
    /// # async fn f(rowlock: rowlock::Rowlock) -> Result<(), rowlock::Error> {
    /// let sender = |_: &axum::http::request::Parts| Some("stripe");
    /// let layer = rowlock_http::IdempotencyLayer::new(rowlock.idempotency(), sender).key_in_json("$.id");
    /// layer.check()?; // refuses what is not such a path
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Verify the signature of a webhook in front of this layer: a stranger could use up the ids of events. And let only the event count
    /// ([`json_only`](Self::json_only)), if a sender sends it again in another body.
    ///
    /// A body that is not JSON, a value of another type, and a field that stands twice in an object on the way to it, are [bad-key](crate#bad-key): parsers differ in which of two fields they take. A missing value, or `null`, is a missing key.
    pub fn key_in_json(self, path: &str) -> Self {
        match Choice::at(path) {
            Ok(at) => self.key_from(move |request| {
                let at = at.clone();
                async move {
                    let read = move |json: &[u8]| received::text_at(json, &at);
                    let text = received::read(request.body(), read).await;
                    text.unwrap_or_else(|| Err("The body cannot be read.".into()))
                }
            }),
            Err(error) => self.with(|settings| settings.key_from = Err(error)),
        }
    }
}
