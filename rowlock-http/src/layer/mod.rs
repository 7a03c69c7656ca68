//! The layer and its settings.
//!
//! - [`key`]: where the key is, and which keys the layer accepts.
//! - [`request`]: which requests the layer handles, and what distinguishes one from another.
//! - [`response`]: what a response means for its key, and what is kept of it.

mod key;
mod request;
mod response;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use http::HeaderName;
use http::request::Parts;
use rowlock::{Error, Idempotency, InvalidError};
use tower_layer::Layer;

use crate::extracted::extractor;
use crate::scope::{owner, with_prefix};
use crate::service::IdempotencyService;
use crate::settings::{Principal, Running, Settings};
use crate::under_way::Left;

/// Makes the routes inside it safe to retry; see the [module](crate). Give it to
/// [`Router::layer`](https://docs.rs/axum/latest/axum/struct.Router.html#method.layer), to `route_layer`, or to any
/// stack of tower services for HTTP. Cloning is cheap.
#[derive(Debug, Clone)]
#[must_use = "it does nothing by itself"]
pub struct IdempotencyLayer(Arc<Settings>);

impl IdempotencyLayer {
    /// A layer that keeps its records with `idempotency`, whose settings are the lease, the retention, the waiting and
    /// the largest outcome.
    ///
    /// `principal` returns whose request it is (a user, a tenant), in 1 to 250 bytes. (With a
    /// [service](Self::service), its name and two bytes less.) Equal keys of two principals are two records; otherwise
    /// one user could read another user's responses. On `None`, or 0 bytes, the layer answers with 401. Return what
    /// the authentication in front of this layer has put into the request's extensions, not what any client can send.
    /// The record's scope is [`scope`](Self::scope) of the principal. It is stored and logged as it is: of a secret,
    /// return the digest.
    ///
    /// - If the principal has two parts, put them together so that no two pairs become one text: `a:b` and `c` must
    ///   not be `a` and `b:c`. Say the length of the first part, for example: `format!("{}:{tenant}:{user}",
    ///   tenant.len())`.
    /// - A route without a login has strangers for clients. One principal for all of them (`"anonymous"`) makes their
    ///   keys one: who sends the key and the request of another gets the response that was kept for that one. Return
    ///   something that only the same client can send again: the digest of a session cookie that the server has
    ///   signed, or of another secret in the request. If there is nothing of the kind, return `"anonymous"` only where
    ///   the response to an equal request holds nothing that is not in that request, and keys are random: accept only
    ///   UUIDs ([`key_format`](Self::key_format)).
    pub fn new<P: AsRef<[u8]>>(
        idempotency: Idempotency,
        principal: impl Fn(&Parts) -> Option<P> + Send + Sync + 'static,
    ) -> Self {
        let principal = move |parts: &Parts| Some(principal(parts)?.as_ref().to_vec());
        let principal = Principal::Known(Arc::new(principal));
        Self(Arc::new(Settings::new(idempotency, principal)))
    }

    /// Like [`new`](Self::new), but an axum extractor finds the user. `principal` returns the user's id. If a request
    /// with a key is refused by the extractor, the client gets the extractor's response.
    ///
    /// Return an id that stays the same over logins and tokens: if the token were the principal, a retry after a
    /// refresh would be another principal's, and the work would run twice.
    ///
    /// The extractor cannot read the router's state. If yours needs it, run it in a middleware in front, and use
    /// [`new`](Self::new). With actix-web every request with a key gets 500
    /// ([misconfigured](crate#misconfigured)), and the log says why: use [`new`](Self::new).
    ///
    /// ```
    /// # use axum::http::{StatusCode, request::Parts};
    /// # struct Claims { user_id: String }
    /// # fn verify(token: &str) -> Option<Claims> { token.strip_prefix("Bearer ").map(|id| Claims { user_id: id.into() }) }
    /// struct User { id: String }
    ///
    /// impl<S: Sync> axum::extract::FromRequestParts<S> for User {
    ///     type Rejection = StatusCode;
    ///     async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, StatusCode> {
    ///         let token = parts.headers.get("authorization").and_then(|token| token.to_str().ok());
    ///         // Your check of the token: its signature, its end.
    ///         let claims = token.and_then(verify).ok_or(StatusCode::UNAUTHORIZED)?;
    ///         Ok(Self { id: claims.user_id })
    ///     }
    /// }
    ///
    /// # fn f(rowlock: rowlock::Rowlock) {
    /// let layer = rowlock_http::IdempotencyLayer::from_extractor(rowlock.idempotency(), |user: User| user.id);
    /// # }
    /// ```
    pub fn from_extractor<E, P>(
        idempotency: Idempotency,
        principal: impl Fn(E) -> P + Send + Sync + 'static,
    ) -> Self
    where
        E: FromRequestParts<()>,
        P: AsRef<[u8]>,
    {
        let principal = Principal::Extracted(extractor(principal));
        Self(Arc::new(Settings::new(idempotency, principal)))
    }

    /// The name of the service that this layer belongs to: 1 to 50 letters, digits, hyphens, underscores and dots
    /// (default: none). It is a part of the [scope](Self::scope): equal keys of one principal at two services are two
    /// records.
    ///
    /// Set it where several services keep their records in one database, and a client, or one of the services, may
    /// send the same key to more than one of them. A gateway, for example, that passes the client's header on to a
    /// service behind it: without names that service meets the record that the gateway's own attempt holds, and
    /// answers [in-flight](crate#in-flight) or [key-reused](crate#key-reused) for ever. Name a service from its first
    /// day: under another name the keys are new, and a retry does its work again.
    pub fn service(self, name: &str) -> Self {
        self.with(|settings| settings.service = Some(name.into()))
    }

    /// The scope of the layer's records for one `principal`: `http:` and the principal ([`scope`](crate::scope())), or
    /// `http:@`, the name of the [service](Self::service), `:` and the principal.
    ///
    /// ```
    /// # fn f(layer: rowlock_http::IdempotencyLayer) {
    /// let scope = layer.service("payments").scope("alice");
    /// assert_eq!(scope, b"http:@payments:alice"); // rowlock idempotency show http:@payments:alice order-17
    /// # }
    /// ```
    #[must_use]
    pub fn scope(&self, principal: impl AsRef<[u8]>) -> Vec<u8> {
        with_prefix(&owner(self.0.service.as_deref(), principal.as_ref()))
    }

    /// How long a handler may run: 1 ms to 1 day (default: for ever). After that the handler is dropped at its next
    /// await point, and the client gets [run-too-long](crate#run-too-long). The key is free, or unknown, by what the
    /// handler had begun: [`server_error`](Self::server_error), and its [steps](rowlock::IdempotencyGuard::step_once).
    /// If the handler had already returned a final response, whose body did not come to its end in this time, then the
    /// work is done, and retries get [response-not-kept](crate#response-not-kept).
    ///
    /// Tasks that the handler has spawned go on. A transaction of the handler is rolled back, unless its commit is on
    /// its way.
    pub fn max_run(self, time: Duration) -> Self {
        self.with(|settings| settings.max_run = Some(time))
    }

    /// How long a client may ask the layer to wait for the running attempt of its key: with `Prefer: wait=N` (seconds;
    /// RFC 7240, section 4.3) a duplicate gets the response of that attempt when it ends, or
    /// [in-flight](crate#in-flight) after N seconds, or after this limit. If the attempt ends without a response that
    /// is kept, one of those that wait runs the handler, which may take longer. At most 366 days. Without this setting
    /// the layer ignores that header, and [`wait`](rowlock::Idempotency::wait) holds for every request; with it, for
    /// those without that header. It waits as [`wait`](rowlock::Idempotency::wait) does, and has no room of
    /// [`max_running`](Self::max_running); see [`max_waiting`](Self::max_waiting).
    pub fn max_wait(self, limit: Duration) -> Self {
        self.with(|settings| settings.max_wait = Some(limit))
    }

    /// How many requests may wait for an attempt at the same time in this layer and its clones (1 at least; default:
    /// 1000). Each has its body in memory. A request beyond that is not made to wait: while its key is in flight it
    /// gets [in-flight](crate#in-flight) at once.
    pub fn max_waiting(self, requests: usize) -> Self {
        self.with(|settings| settings.max_waiting = Running::at_most(requests))
    }

    /// How many handlers may run at the same time in this layer and its clones (1 at least; default: no limit). The
    /// layer answers a request beyond it with [overloaded](crate#overloaded), without claiming its key. Replays, and
    /// requests whose key is in flight, need no room.
    pub fn max_running(self, handlers: usize) -> Self {
        self.with(|settings| settings.max_running = Some(Running::at_most(handlers)))
    }

    /// The address of the page that describes the [problems](crate#problems), each under an anchor with its name
    /// (default: the page of this crate). The `type` of a problem is this address, `#` and the name.
    pub fn policy_url(self, url: impl Into<String>) -> Self {
        let url = url.into().into();
        self.with(|settings| settings.policy_url = url)
    }

    /// Checks the settings. Call this when the server starts: with wrong settings the layer answers every request with
    /// 500.
    ///
    /// # Errors
    ///
    /// [`InvalidError::Setting`], [`InvalidError::Duration`].
    pub fn check(&self) -> Result<(), Error> {
        self.0.check()
    }

    /// Ends the layer, its clones, and layers that were made from it, when the server stops. From now on they answer
    /// each new request with a key with [stopping](crate#stopping). Waits for the requests that are under way, for at
    /// most `limit`, and returns those that it has cut off or could not wait for, each once, with what it did last:
    /// log them.
    ///
    /// A request is under way from the first poll of its future until the layer has kept its response, or given up.
    /// This includes a request whose client has hung up; a server's graceful shutdown does not wait for such a
    /// request, because its connection is gone. Near the end of the limit (a tenth of it, at most 2 s) the layer drops
    /// the handlers that still run, as [`max_run`](Self::max_run) does: each key is free, or unknown, by what its
    /// handler had begun. So no started effect is lost or repeated unseen, if the handler does it in its transaction,
    /// in a step, or under [`ServerError::Unknown`](crate::ServerError::Unknown).
    ///
    /// Call it at the same time as the server's graceful shutdown, or after it; then call
    /// [`Rowlock::shutdown`](rowlock::Rowlock::shutdown). Requests that pass untouched (another method, no key) do not
    /// count.
    ///
    /// ```
    /// # async fn f(layer: rowlock_http::IdempotencyLayer, rowlock: rowlock::Rowlock) {
    /// let limit = std::time::Duration::from_secs(30);
    /// for left in layer.drain(limit).await {
    ///     eprintln!("{left}");
    /// }
    /// for unfinished in rowlock.shutdown(limit).await {
    ///     eprintln!("not finished: {unfinished}");
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the wait. The layer stays closed.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`).
    pub async fn drain(&self, limit: Duration) -> Vec<Left> {
        self.0.under_way.drain(limit).await
    }

    #[cfg(any(test, feature = "actix"))]
    pub(crate) fn into_settings(self) -> Arc<Settings> {
        self.0
    }

    fn with(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        let settings = Arc::make_mut(&mut self.0);
        // Routes with other settings may take other times.
        settings.pace = Arc::default();
        set(settings);
        self
    }
}

fn header_names<I>(setting: &'static str, names: I) -> Result<Vec<HeaderName>, Error>
where
    I: IntoIterator,
    I::Item: TryInto<HeaderName>,
{
    let names = names.into_iter().map(TryInto::try_into);
    let names = names.collect::<Result<_, _>>();
    names.map_err(|_| Error::Invalid(InvalidError::Setting {
        setting,
        reason: "one of them is not a valid name of a header: names have letters, digits and hyphens",
    }))
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotencyService::new(inner, Arc::clone(&self.0))
    }
}
