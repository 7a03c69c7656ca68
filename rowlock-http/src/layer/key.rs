//! Where the key is, and which keys the layer accepts.

use std::fmt;
use std::sync::Arc;

use super::IdempotencyLayer;
use crate::fingerprint::json::Choice;
use crate::received::{self, Received};
use crate::settings::Senders;

impl IdempotencyLayer {
    /// Whether the layer refuses a request without a key, with 400 (default: `true`). With `false` such a request
    /// passes untouched.
    pub fn required(self, required: bool) -> Self {
        self.with(|settings| settings.required = required)
    }

    /// Accepts only keys in quotes, as the draft requires. Without this the layer also takes what most clients send, a
    /// key without quotes (visible ASCII without quotes, commas, semicolons and backslashes). The key names the same
    /// record with and without quotes.
    pub fn strict(self) -> Self {
        self.with(|settings| settings.strict = true)
    }

    /// The longest key that the layer accepts, in bytes: 1 to 255 (default: 255). (In the header field a character is
    /// one byte.) It answers a longer key with 400, without asking the database.
    pub fn max_key(self, bytes: usize) -> Self {
        self.with(|settings| settings.max_key = bytes)
    }

    /// Decides which keys the layer accepts (only UUIDs, for example). It answers another key with 400, without asking
    /// the database.
    pub fn key_format(self, accept: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.key_format = Arc::new(accept))
    }

    /// Finds the key of a request, instead of in the header field Idempotency-Key. `None`: the request has no key,
    /// which is an error if a key is [required](Self::required).
    ///
    /// The hook may wait. It gets the whole request: so also a request without a key is read into memory first. If the
    /// hook returns an error, the client gets [bad-key](crate#bad-key) with the first 300 characters of the error's
    /// text. [`max_key`](Self::max_key) and [`key_format`](Self::key_format) check what it finds. For a field of a
    /// JSON body there is [`key_in_json`](Self::key_in_json). If the key is the sender's id of an event, set
    /// [`events`](Self::events).
    pub fn key_from<F, E>(self, hook: impl Fn(Received) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Option<String>, E>> + Send + 'static,
        E: fmt::Display,
    {
        let hook = received::hook(hook);
        self.with(|settings| settings.key_from = Ok(Some(hook)))
    }

    /// Takes the key from a JSON body, where the path (RFC 9535) selects a text or a whole number: a webhook's event
    /// id, for example.
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
    /// Verify the signature of a webhook in front of this layer: a stranger could use up the ids of events. And let
    /// only the event count ([`json_only`](Self::json_only)), if a sender sends it again in another body.
    ///
    /// The requests are then [events](Self::events), unless you say otherwise after this.
    ///
    /// A body that is not JSON, a value of another type, and a field that stands twice in an object on the way to it
    /// (or, if there is no value, anywhere), are [bad-key](crate#bad-key): parsers differ in which of two fields they
    /// take. A missing value, or `null`, is a missing key.
    pub fn key_in_json(self, path: &str) -> Self {
        self.key_at(path).events(true)
    }

    /// Whether the requests are events, whose senders choose the keys and need no more than the answer that an event
    /// was done: webhooks, for example (default: `false`; [`key_in_json`](Self::key_in_json) sets it).
    ///
    /// If an event was done, and its response is not kept (any more), a redelivery gets the status of that response,
    /// or 200 after the [retention](rowlock::Idempotency::retention), without a body and with `Idempotent-Replayed:
    /// true`, instead of [expired](crate#expired) or [response-not-kept](crate#response-not-kept). (Also if the
    /// handler had refused the event: after the retention that is not known any more.) Many senders stop to send to an
    /// endpoint that answers 410, and all later events would be lost.
    ///
    /// Remember the keys for longer than the sender tries (often three days): after the retention and
    /// [`remember_expired`](rowlock::Idempotency::remember_expired) an event is done again. And let the content of an
    /// event not count if a sender's redeliveries may differ ([`json_only`](Self::json_only) with the path of the id):
    /// otherwise such a redelivery is [refused](crate#key-reused).
    pub fn events(self, events: bool) -> Self {
        let senders = if events {
            Senders::OfEvents
        } else {
            Senders::Clients
        };
        self.with(|settings| settings.senders = senders)
    }

    fn key_at(self, path: &str) -> Self {
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
