//! What a response means for its key, and what is kept of it.

use std::sync::Arc;

use http::{HeaderName, response};
use rowlock::RecordKey;

use super::{IdempotencyLayer, header_names};
use crate::body::BoxError;
use crate::finality::Finality;
use crate::seal::Seal;
use crate::settings::{Replayed, ServerError};

impl IdempotencyLayer {
    /// The largest body of a response that the layer keeps, in bytes: at most the
    /// [`max_outcome`](rowlock::Idempotency::max_outcome) of the idempotency settings (default: 16 KiB less than that,
    /// to leave room for the headers). The layer sends a larger response, but does not replay it: see
    /// [response-not-kept](crate#response-not-kept).
    pub fn max_response(self, bytes: usize) -> Self {
        self.with(|settings| settings.max_response = Some(bytes))
    }

    /// The headers of a response that the layer keeps (default: Cache-Control, Content-Disposition, Content-Language,
    /// Content-Location, `ETag`, Last-Modified, Link and Location). It always keeps Content-Type, Content-Encoding,
    /// the WWW-Authenticate of a 401, the Allow of a 405, the Content-Range of a 206 or 416, and the Retry-After of a
    /// status from 500 on.
    ///
    /// It never keeps Set-Cookie, Authorization, Content-Length, or a header of the connection (Connection,
    /// Keep-Alive, Proxy-…, TE, Trailer, Transfer-Encoding, Upgrade), even when it is listed here.
    pub fn keep_headers<I>(self, headers: I) -> Self
    where
        I: IntoIterator,
        I::Item: TryInto<HeaderName>,
    {
        let headers = header_names("keep_headers", headers);
        self.with(|settings| settings.keep = headers)
    }

    /// Decides what a response means for its key, instead of [`Finality::of`] its status and
    /// [`server_error`](Self::server_error).
    ///
    /// The layer calls `decide` with the head alone, and again with the whole body when that has arrived. The first
    /// answer counts if the body cannot be kept ([`max_response`](Self::max_response), trailers, an endless stream),
    /// breaks off, panics or is [cut off](Self::max_run): so answer by the head what is true whatever the body says.
    /// The layer reads the body before it sends the head, but for `text/event-stream`. If `decide` panics, the work
    /// counts as done if the head says so (by `decide`'s own answer, or else by the status), and retries get
    /// [response-not-kept](crate#response-not-kept); otherwise the record is [unknown](crate#unknown). If the handler
    /// has ended its attempt by itself, nothing is asked.
    ///
    /// A 403 or 404 is final without this. If the layer is also around the router's fallback, the router's 404 for an
    /// unknown route is final, too. So put the layer around the routes only (`Router::route_layer`).
    pub fn finality(
        self,
        decide: impl Fn(&response::Parts, Option<&[u8]>) -> Finality + Send + Sync + 'static,
    ) -> Self {
        self.with(|settings| settings.finality = Some(Arc::new(decide)))
    }

    /// What a failure of the handler means for the key. A failure is a response that [may be tried
    /// again](Finality::of), a panic, a handler that was [cut off](Self::max_run), or the end of the process. Default:
    /// [`ServerError::Transient`], so the key becomes free, and a retry runs the handler again.
    ///
    /// With [`ServerError::Unknown`] the handler is a [step that must not be
    /// repeated](rowlock::IdempotencyGuard::step_once), with the name `http:handler`: after a failure the record is
    /// unknown until the [reconcile hook](rowlock::Idempotency::reconcile) or an operator decides. If they decide that
    /// the handler's work happened, a retry gets the result that they give, with status 200. This costs one more
    /// statement, and the handler cannot have another step that must not be repeated. A handler that knows that it did
    /// nothing says so with [`Idempotent::nothing_happened`](crate::Idempotent::nothing_happened).
    ///
    /// With [`ServerError::Keep`] a response with 500 or more is kept and replayed, and so is the response to a panic.
    pub fn server_error(self, means: ServerError) -> Self {
        self.with(|settings| settings.server_error = means)
    }

    /// Changes what the layer keeps of a response: takes a secret out of its body, for example. The first client gets
    /// the whole response, and a retry gets what was kept. It also concerns
    /// [`complete_in`](crate::Idempotent::complete_in), but neither outcomes that the handler records with the guard,
    /// nor the results of steps. If it panics, the response is [not kept](crate#response-not-kept), and `complete_in`
    /// is an error.
    ///
    /// ```
    /// # async fn f(rowlock: rowlock::Rowlock) {
    /// # let user = |_: &axum::http::request::Parts| Some("7");
    /// let layer = rowlock_http::IdempotencyLayer::new(rowlock.idempotency(), user).redact(|head, body| {
    ///     if head.headers.contains_key("x-secret") {
    ///         *body = b"{}".to_vec();
    ///     }
    /// });
    /// # }
    /// ```
    pub fn redact(
        self,
        redact: impl Fn(&mut response::Parts, &mut Vec<u8>) + Send + Sync + 'static,
    ) -> Self {
        self.with(|settings| settings.redact = Some(Arc::new(redact)))
    }

    /// Encrypts what the layer keeps of a response, with a function of yours that seals, and one that opens again.
    /// Both also get the record: give it to the cipher as associated data, so that nobody can move a response to
    /// another record. The sealed bytes must not be more than the [`max_outcome`](rowlock::Idempotency::max_outcome).
    /// A response that cannot be sealed (or whose seal panics) is [not kept](crate#response-not-kept), and is an error
    /// of [`complete_in`](crate::Idempotent::complete_in). One that cannot be opened is [damaged](crate#damaged).
    ///
    /// To change the key of the cipher, let `open` know the old one for as long as the
    /// [retention](rowlock::Idempotency::retention). The functions do not concern outcomes that the handler records
    /// with the guard, nor the results of steps.
    pub fn seal<S, O>(
        self,
        seal: impl Fn(&RecordKey, &[u8]) -> Result<Vec<u8>, S> + Send + Sync + 'static,
        open: impl Fn(&RecordKey, &[u8]) -> Result<Vec<u8>, O> + Send + Sync + 'static,
    ) -> Self
    where
        S: Into<BoxError>,
        O: Into<BoxError>,
    {
        let seal = Seal {
            seal: Arc::new(move |record, bytes| seal(record, bytes).map_err(Into::into)),
            open: Arc::new(move |record, bytes| open(record, bytes).map_err(Into::into)),
        };
        self.with(|settings| settings.seal = Some(seal))
    }

    /// Whether the layer replays only what is [sealed](Self::seal) (default: `false`). Anything else is [not
    /// kept](crate#response-not-kept): a response that was kept before there was a seal, and a result that the handler
    /// has recorded with the guard, or an operator or the reconcile hook has given. Otherwise who may write to the
    /// database could put any response there. When you introduce the seal, set this after a
    /// [retention](rowlock::Idempotency::retention).
    pub fn sealed_only(self, only: bool) -> Self {
        let replayed = if only {
            Replayed::Sealed
        } else {
            Replayed::All
        };
        self.with(|settings| settings.replayed = replayed)
    }
}
