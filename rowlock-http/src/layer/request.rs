//! Which requests the layer handles, and what distinguishes one from another.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderName, Method, Uri};
use rowlock::Fingerprint;

use super::{IdempotencyLayer, header_names};
use crate::fingerprint::json::{Choice, Which};
use crate::received::{self, Received};

impl IdempotencyLayer {
    /// The methods that the layer handles (default: POST and PATCH). Requests with other methods pass untouched.
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        let methods = methods.into_iter().collect();
        self.with(|settings| settings.methods = methods)
    }

    /// The largest body of a request, in bytes (default: 1 MiB). The layer reads the whole body before it calls the
    /// handler. It answers a larger body with 413.
    pub fn max_body(self, bytes: usize) -> Self {
        self.with(|settings| settings.max_body = bytes)
    }

    /// How long the whole body of a request may take to arrive, counted from the end of its head: 1 ms to 1 day
    /// (default: one minute). The layer answers a slower body with 408. Give routes for large bodies more time: 1 MiB
    /// in a minute is 17 KiB/s.
    ///
    /// The limit also holds after the client has hung up, and after a time limit outside of this layer: the layer's
    /// task waits for the rest of the body, but not longer than this.
    pub fn body_timeout(self, timeout: Duration) -> Self {
        self.with(|settings| settings.body_timeout = timeout)
    }

    /// Returns the URI whose path and query, with the method and the body, distinguish one request from another. axum
    /// 0.8 does not need this: without it, both the URI that the client has sent
    /// ([`OriginalUri`](axum::extract::OriginalUri)) and the URI that the handler sees count.
    ///
    /// Set this if another router removes a prefix of the path before the layer. Otherwise the same request to
    /// `/tenants/a` and to `/tenants/b` counts as one, and the second tenant gets the first tenant's response. With
    /// another version of axum the layer answers every request with 500 until this is set:
    ///
    /// ```
    /// # async fn f(rowlock: rowlock::Rowlock) {
    /// use axum::extract::OriginalUri; // of your version of axum
    /// # let user = |_: &axum::http::request::Parts| Some("7");
    /// let layer = rowlock_http::IdempotencyLayer::new(rowlock.idempotency(), user).uri(|parts| {
    ///     let original = parts.extensions.get::<OriginalUri>();
    ///     original.map_or(&parts.uri, |original| &original.0).clone()
    /// });
    /// # }
    /// ```
    pub fn uri(self, uri: impl Fn(&Parts) -> Uri + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.uri = Some(Arc::new(uri)))
    }

    /// Whether the host also distinguishes one request from another (default: `false`).
    ///
    /// One service often has several names: one for each region, an internal name, the addresses of its processes. A
    /// retry may go to another name than the first request. If the server refused that retry, the client might send
    /// the request under a new key, and the work would happen twice. So by default the same request to two hosts
    /// counts as one, and the second host answers with the first host's response.
    ///
    /// Set this where the hosts are different services to the same [principal](Self::new), for example shops that
    /// share their users. The layer then refuses the same key on another host (422). If each host shall have separate
    /// keys, make the host a part of the principal instead.
    ///
    /// The host is the authority of the URI (HTTP/2, or a URI in absolute form), or else the header `Host`; the port
    /// counts. The client or a proxy has sent it. Let your proxy pass the client's host on, and refuse hosts that you
    /// do not serve.
    pub fn host_counts(self, counts: bool) -> Self {
        self.with(|settings| settings.host_counts = counts)
    }

    /// The headers and trailers of a request that distinguish it from another, too: the version of the API, for
    /// example (default: none). The values count as they are, in their order; a missing header differs from an empty
    /// one. A header that a request does not have adds nothing: retries of such requests go on where this setting
    /// [changes](Self::also_accept).
    pub fn headers_count<I>(self, headers: I) -> Self
    where
        I: IntoIterator,
        I::Item: TryInto<HeaderName>,
    {
        let headers = header_names("headers_count", headers);
        self.with(|settings| settings.headers_count = headers)
    }

    /// The parts of a JSON body that distinguish one request from another, as paths of RFC 9535 (`$.order.id`)
    /// (default: the whole body counts). Use this, or [`json_except`](Self::json_except), for clients whose retries
    /// differ in fields without meaning. White space and the order of the fields make no difference then.
    ///
    /// All bytes count if the Content-Type is not JSON, if the body is not JSON or is nested more than 128 levels
    /// deep, if the paths select nothing in it (otherwise a wrong path would make all requests one), and if an object
    /// in question has a field twice, because parsers differ in which one they take. All bytes count, too, if the
    /// paths may take more than 8 steps for each byte of the body, and more than 65,536: each `..` visits a value once
    /// for each value around it, and a query from the root inside of a filter visits all values again. A
    /// [`fingerprint`](Self::fingerprint) hook replaces this setting.
    ///
    /// ```
    /// # async fn f(rowlock: rowlock::Rowlock) -> Result<(), rowlock::Error> {
    /// # let user = |_: &axum::http::request::Parts| Some("7");
    /// let layer = rowlock_http::IdempotencyLayer::new(rowlock.idempotency(), user)
    ///     .json_only(["$.order_id", "$.items[*]['sku', 'count']"]);
    /// layer.check()?; // refuses what is not such a path
    /// # Ok(())
    /// # }
    /// ```
    pub fn json_only<I>(self, paths: I) -> Self
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        let choice = Choice::of(Which::Only, paths).map(Some);
        self.with(|settings| settings.json = choice)
    }

    /// The parts of a JSON body that do not count, as paths of RFC 9535 (`$.order.id`), such as the time of sending
    /// (`$.sent_at`) or a trace in each item (`$.items[*].trace`). All else counts. Otherwise as
    /// [`json_only`](Self::json_only), of which the last one set holds.
    pub fn json_except<I>(self, paths: I) -> Self
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        let choice = Choice::of(Which::Except, paths).map(Some);
        self.with(|settings| settings.json = choice)
    }

    /// Also accepts retries of requests that a layer with the settings of `other` has begun, so that a deployment may
    /// change what counts of a request ([`uri`](Self::uri), [`host_counts`](Self::host_counts),
    /// [`headers_count`](Self::headers_count), [`json_only`](Self::json_only), [`json_except`](Self::json_except),
    /// [`fingerprint`](Self::fingerprint); no other setting of `other` means anything). Without it a retry that is on
    /// its way during the deployment gets [key-reused](crate#key-reused), and a client that then takes a new key does
    /// the work twice. Call it once for each layer to accept.
    ///
    /// If the record of a key is of another request by the layer's own settings, the layer compares it by those of
    /// `other`, with one more statement for each. A new request begins by the layer's own settings.
    ///
    /// ```
    /// # async fn f(rowlock: rowlock::Rowlock) -> Result<(), rowlock::Error> {
    /// # let user = |_: &axum::http::request::Parts| Some("7");
    /// use rowlock_http::IdempotencyLayer;
    ///
    /// let before = IdempotencyLayer::new(rowlock.idempotency(), user);
    /// let after = before.clone().json_except(["$.sent_at"]);
    /// // The first deployment, while processes of the old release still run:
    /// let layer = before.clone().also_accept(&after);
    /// // The second one, for as long as keys are remembered:
    /// let layer = after.also_accept(&before);
    /// layer.check()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn also_accept(self, other: &Self) -> Self {
        let other = Arc::clone(&other.0);
        self.with(|settings| settings.also_accepted.push(other))
    }

    /// Computes what distinguishes one request from another, in addition to its method, path and query, and to
    /// [`headers_count`](Self::headers_count) and [`host_counts`](Self::host_counts): instead of the body. (Without a
    /// hook, a JSON body counts as [`json_only`](Self::json_only) says, and a form of several parts,
    /// `multipart/form-data`, counts by its parts and not by its boundary. Every other body counts byte for byte.)
    ///
    /// The hook may wait, to look something up for example. It gets the whole request. If it returns an error, the
    /// client gets [request-refused](crate#request-refused) with the first 300 characters of the error's text, and
    /// nothing is done. Set [`Fingerprint::from_bytes`] if you have computed the digest yourself. The same request
    /// must get the same fingerprint at any time, in every process: otherwise its retries are refused (422).
    ///
    /// ```
    /// # async fn f(rowlock: rowlock::Rowlock) {
    /// # let user = |_: &axum::http::request::Parts| Some("7");
    /// use rowlock::Fingerprint;
    ///
    /// // Lines in any order are one request.
    /// let layer = rowlock_http::IdempotencyLayer::new(rowlock.idempotency(), user).fingerprint(|request| async move {
    ///     let text = std::str::from_utf8(request.body())?;
    ///     let mut lines: Vec<&str> = text.lines().collect();
    ///     lines.sort_unstable();
    ///     Ok::<_, std::str::Utf8Error>(Fingerprint::of(lines.join("\n")))
    /// });
    /// # }
    /// ```
    pub fn fingerprint<F, E>(self, hook: impl Fn(Received) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Fingerprint, E>> + Send + 'static,
        E: fmt::Display,
    {
        let hook = received::hook(hook);
        self.with(|settings| settings.fingerprint = Some(hook))
    }
}
