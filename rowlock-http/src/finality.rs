//! What a response means for the key of its request.

use http::StatusCode;
use http::response::Parts;

/// What a response means for the key of its request; see
/// [`IdempotencyLayer::finality`](crate::IdempotencyLayer::finality).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finality {
    /// The request is done. The layer keeps the response, and replays it.
    Keep,
    /// The request is done. The layer does not keep the response: a retry gets
    /// [response-not-kept](crate#response-not-kept).
    DoNotKeep,
    /// The handler has failed, and a retry may run it again: the key is free. If a [step that must not be
    /// repeated](rowlock::IdempotencyGuard::step_once) has begun, the record is unknown instead; with
    /// [`ServerError::Unknown`](crate::ServerError::Unknown) the handler itself is such a step.
    Retry,
    /// The work may have happened: the record is unknown until the [reconcile hook](rowlock::Idempotency::reconcile)
    /// or an operator decides.
    Unknown,
    /// Nothing has happened: the key is free, with [`ServerError::Unknown`](crate::ServerError::Unknown), too. (If the
    /// handler has begun a step that must not be repeated, the record is unknown all the same.)
    NothingHappened,
}

/// Decides by the head, and by the body if it has arrived wholly.
pub(crate) type Hook = dyn Fn(&Parts, Option<&[u8]>) -> Finality + Send + Sync;

impl Finality {
    /// What the layer decides without a hook: a status below 500 is final ([`Keep`](Self::Keep)), with these
    /// exceptions:
    ///
    /// - 408 (too slow), 425 (too early) and 429 (too many): a client may try again ([`Retry`](Self::Retry), as for
    ///   500 and above).
    /// - 401, 405, 407, 411, 413, 414, 415, 417, 421, 426, 428 and 431: the server refuses the form of the request
    ///   (who sends it, its method, its length, its headers, its connection), and has not processed it
    ///   ([`NothingHappened`](Self::NothingHappened)). The corrected request may have the same key.
    /// - 1xx, such as 101 (another protocol): done, and there is nothing to replay ([`DoNotKeep`](Self::DoNotKeep)).
    ///
    /// A refusal that depends on the content, or on the state of the data (400, 402, 403, 404, 406, 409, 410, 412,
    /// 416, 422, 423, …), is final, because a handler may answer so after some work. If a handler answers with one of
    /// the second group after some work, decide by a [hook](crate::IdempotencyLayer::finality). Without a hook,
    /// [`ServerError::Unknown`](crate::ServerError::Unknown) keeps these too, but for 401, 405 and 407.
    ///
    /// The layer also takes a 409 with `Retry-After` for [`Retry`](Self::Retry): a server behind the handler answers
    /// so while it has the request in flight.
    ///
    /// ```
    /// # async fn f(rowlock: rowlock::Rowlock) {
    /// # let user = |_: &axum::http::request::Parts| Some("7");
    /// use rowlock_http::{Finality, IdempotencyLayer};
    ///
    /// let layer = IdempotencyLayer::new(rowlock.idempotency(), user).finality(|head, body| match head.status.as_u16() {
    ///     // The provider's answer says whether it has charged.
    ///     502 if body.is_some_and(|body| body.starts_with(b"{\"charged\":false")) => Finality::NothingHappened,
    ///     502 => Finality::Unknown,
    ///     _ => Finality::of(head.status),
    /// });
    /// # }
    /// ```
    #[must_use]
    pub fn of(status: StatusCode) -> Self {
        match status.as_u16() {
            100..=199 => Self::DoNotKeep,
            // RFC 9110, section 15.5, and RFC 6585: the server refuses to process such a request. Routers and
            // extractors answer so without calling a handler, and a client corrects what the fingerprint does not
            // contain.
            401 | 405 | 407 | 411 | 413 | 414 | 415 | 417 | 421 | 426 | 428 | 431 => {
                Self::NothingHappened
            }
            408 | 425 | 429 | 500.. => Self::Retry,
            _ => Self::Keep,
        }
    }

    /// What is left of it after a panic of the hook, which would have known more. What may be done is not free.
    pub(crate) fn in_doubt(self) -> Self {
        if self.is_done() {
            Self::DoNotKeep
        } else {
            Self::Unknown
        }
    }

    /// Whether the work is done.
    pub(crate) fn is_done(self) -> bool {
        matches!(self, Self::Keep | Self::DoNotKeep)
    }
}
