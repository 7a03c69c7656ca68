//! The layer and its settings.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderName, Method, StatusCode, Uri};
use rowlock::{Error, Fingerprint, Idempotency};
use serde_json_path::JsonPath;
use tower_layer::Layer;

use crate::fingerprint::json::{Choice, Which};
use crate::received::{self, Received};
use crate::service::IdempotencyService;
use crate::settings::{Running, ServerError, Settings};
use crate::under_way::Left;

/// Makes the routes inside it safe to retry; see the [module](crate). Give it to
/// [`Router::layer`](https://docs.rs/axum/latest/axum/struct.Router.html#method.layer), to `route_layer`, or to any stack of
/// tower services for HTTP. Cloning is cheap.
#[derive(Debug, Clone)]
#[must_use = "it does nothing by itself"]
pub struct IdempotencyLayer(Arc<Settings>);

impl IdempotencyLayer {
    /// A layer that keeps its records with `idempotency`, whose settings are the lease, the retention, the waiting and the
    /// largest outcome.
    ///
    /// `principal` returns whose request it is (a user, a tenant), in 1 to 250 bytes. Equal keys of two principals are two
    /// records; otherwise one user could read another user's responses. On `None`, or 0 bytes, the layer answers with 401.
    /// Return what the authentication in front of this layer has put into the request's extensions, not what any client can
    /// send. The record's scope is [`scope`](crate::scope) of the principal.
    pub fn new<P: AsRef<[u8]>>(
        idempotency: Idempotency,
        principal: impl Fn(&Parts) -> Option<P> + Send + Sync + 'static,
    ) -> Self {
        let principal = move |parts: &Parts| {
            let who = principal(parts)?;
            let who = who.as_ref();
            (!who.is_empty()).then(|| who.to_vec())
        };
        Self(Arc::new(Settings::new(idempotency, Arc::new(principal))))
    }

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

    /// The methods that the layer handles (default: POST and PATCH). Requests with other methods pass untouched.
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        let methods = methods.into_iter().collect();
        self.with(|settings| settings.methods = methods)
    }

    /// The largest body of a request, in bytes (default: 1 MiB). The layer reads the whole body before it calls the handler. It
    /// answers a larger body with 413.
    pub fn max_body(self, bytes: usize) -> Self {
        self.with(|settings| settings.max_body = bytes)
    }

    /// How long the whole body of a request may take to arrive, counted from the end of its head: 1 ms to 1 day (default: one
    /// minute). The layer answers a slower body with 408. Give routes for large bodies more time: 1 MiB in a minute is 17 KiB/s.
    ///
    /// The limit also holds after the client has hung up, and after a time limit outside of this layer: the layer's task waits
    /// for the rest of the body, but not longer than this.
    pub fn body_timeout(self, timeout: Duration) -> Self {
        self.with(|settings| settings.body_timeout = timeout)
    }

    /// The largest body of a response that the layer keeps, in bytes: at most the
    /// [`max_outcome`](Idempotency::max_outcome) of the idempotency settings (default: 16 KiB less than that, to leave room for
    /// the headers). The layer sends a larger response, but does not replay it: see
    /// [response-not-kept](crate#response-not-kept).
    pub fn max_response(self, bytes: usize) -> Self {
        self.with(|settings| settings.max_response = Some(bytes))
    }

    /// How long a handler may run: 1 ms to 1 day (default: for ever). After that the handler is dropped at its next await point, as if its
    /// process had crashed there, and the client gets [run-too-long](crate#run-too-long). The key is free, or unknown, by what the handler had begun:
    /// [`server_error`](Self::server_error), and its [steps](rowlock::IdempotencyGuard::step_once). If the handler had already returned a final response, whose body did
    /// not come to its end in this time, then the work is done, and retries get [response-not-kept](crate#response-not-kept).
    ///
    /// Tasks that the handler has spawned go on. A transaction of the handler is rolled back, unless its commit is on its way.
    pub fn max_run(self, time: Duration) -> Self {
        self.with(|settings| settings.max_run = Some(time))
    }

    /// How many handlers may run at the same time in this layer and its clones (default: no limit). The layer answers a request beyond it with
    /// [overloaded](crate#overloaded), without claiming its key. Replays, and requests whose key is in flight, need no room.
    pub fn max_running(self, handlers: usize) -> Self {
        self.with(|settings| settings.max_running = Some(Running::at_most(handlers)))
    }

    /// Returns the URI whose path and query, with the method and the body, distinguish one request from another. axum 0.8 does
    /// not need this: without it, both the URI that the client has sent ([`OriginalUri`](axum::extract::OriginalUri)) and the
    /// URI that the handler sees count.
    ///
    /// Set this if another router removes a prefix of the path before the layer. Otherwise the same request to `/tenants/a` and
    /// to `/tenants/b` counts as one, and the second tenant gets the first tenant's response. With another version of axum the
    /// layer answers every request with 500 until this is set:
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
    /// One service often has several names: one for each region, an internal name, the addresses of its processes. A retry may
    /// go to another name than the first request. If the server refused that retry, the client might send the request under a
    /// new key, and the work would happen twice. So by default the same request to two hosts counts as one, and the second
    /// host answers with the first host's response.
    ///
    /// Set this where the hosts are different services to the same [principal](Self::new), for example shops that share their
    /// users. The layer then refuses the same key on another host (422). If each host shall have separate keys, make the host a
    /// part of the principal instead.
    ///
    /// The host is the authority of the URI (HTTP/2, or a URI in absolute form), or else the header `Host`; the port counts. The
    /// client or a proxy has sent it. Let your proxy pass the client's host on, and refuse hosts that you do not serve.
    pub fn host_counts(self, counts: bool) -> Self {
        self.with(|settings| settings.host_counts = counts)
    }

    /// The headers of a response that the layer keeps (default: Cache-Control, Content-Disposition, Content-Language,
    /// Content-Location, `ETag`, Last-Modified, Link and Location). It always keeps Content-Type, Content-Encoding, the
    /// WWW-Authenticate of a 401 and the Allow of a 405.
    ///
    /// It never keeps Set-Cookie, Authorization, Content-Length, or a header of the connection (Connection, Keep-Alive, Proxy-…,
    /// TE, Trailer, Transfer-Encoding, Upgrade), even when it is listed here.
    pub fn keep_headers<I>(self, headers: I) -> Self
    where
        I: IntoIterator,
        I::Item: TryInto<HeaderName>,
    {
        let headers = header_names("keep_headers", headers);
        self.with(|settings| settings.keep = headers)
    }

    /// The parts of a JSON body that distinguish one request from another, as JSONPaths of RFC 9535 (default: the whole body counts). Use
    /// this, or [`json_except`](Self::json_except), for clients whose retries differ in fields without meaning. White space and the order of the fields make
    /// no difference then.
    ///
    /// All bytes count if the Content-Type is not JSON, if the body is not JSON or is nested more than 128 levels deep, and if an object in
    /// question has a field twice, because parsers differ in which one they take. A [`fingerprint`](Self::fingerprint) hook replaces this setting.
    ///
    /// ```
    /// # async fn f(rowlock: rowlock::Rowlock) -> Result<(), rowlock::Error> {
    /// # let user = |_: &axum::http::request::Parts| Some("7");
    /// let layer = rowlock_http::IdempotencyLayer::new(rowlock.idempotency(), user)
    ///     .json_only(["$.order_id", "$.items[*]['sku', 'count']"]);
    /// layer.check()?; // refuses what is not a JSONPath
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

    /// The parts of a JSON body that do not count, as JSONPaths of RFC 9535, such as the time of sending (`$.sent_at`) or a trace in each item
    /// (`$.items[*].trace`). All else counts. Otherwise as [`json_only`](Self::json_only), of which the last one set holds.
    pub fn json_except<I>(self, paths: I) -> Self
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        let choice = Choice::of(Which::Except, paths).map(Some);
        self.with(|settings| settings.json = choice)
    }

    /// The headers of a request that distinguish it from another, too: the version of the API, for example (default: none). The values count
    /// as they are, in their order; a missing header differs from an empty one.
    pub fn headers_count<I>(self, headers: I) -> Self
    where
        I: IntoIterator,
        I::Item: TryInto<HeaderName>,
    {
        let headers = header_names("headers_count", headers);
        self.with(|settings| settings.headers_count = headers)
    }

    /// Computes what distinguishes one request from another, in addition to its method, path and query, and to
    /// [`headers_count`](Self::headers_count) and [`host_counts`](Self::host_counts): instead of the body. (Without a hook, a JSON body counts as
    /// [`json_only`](Self::json_only) says, and a form of several parts, `multipart/form-data`, counts by its parts and not by its boundary. Every
    /// other body counts byte for byte.)
    ///
    /// The hook may wait, to look something up for example. It gets the whole request. If it returns an error, the client
    /// gets [request-refused](crate#request-refused) with the first 300 characters of the error's text, and nothing is done. Set
    /// [`Fingerprint::from_bytes`] if you have computed the digest yourself. The same request must get the same fingerprint at any
    /// time, in every process: otherwise its retries are refused (422).
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

    /// Takes the key from a JSON body, where the JSONPath selects a text or a whole number: a webhook's event id, for example.
    ///
    /// ```
    /// # async fn f(rowlock: rowlock::Rowlock) -> Result<(), rowlock::Error> {
    /// let sender = |_: &axum::http::request::Parts| Some("stripe");
    /// let layer = rowlock_http::IdempotencyLayer::new(rowlock.idempotency(), sender).key_in_json("$.id");
    /// layer.check()?; // refuses what is not a JSONPath
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A body that is not JSON, and a value of another type, are [bad-key](crate#bad-key). A missing value, or `null`, is a missing key.
    pub fn key_in_json(self, path: &str) -> Self {
        match JsonPath::parse(path) {
            Ok(path) => {
                let path = Arc::new(path);
                self.key_from(move |request| {
                    let path = Arc::clone(&path);
                    async move { received::text_at(&request, &path) }
                })
            }
            Err(_) => self.with(|settings| {
                settings.key_from = Err(Error::InvalidSetting {
                    setting: "key_in_json",
                    reason: "it is not a JSONPath (RFC 9535), such as $.id",
                });
            }),
        }
    }

    /// Decides which responses are final. The layer keeps and replays final responses (default: a status below 500, except 401,
    /// 405, 407, 408, 425 and 429). A status of 401, 405 or 407 that is not final says that nothing was done, and frees the
    /// key. The layer treats every other response that is not final as a [server error](Self::server_error).
    ///
    /// A 403 or 404 is final. If the layer is also around the router's fallback, the router's 404 for an unknown route is final,
    /// too. So put the layer around the routes only (`Router::route_layer`).
    pub fn final_if(self, is_final: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.is_final = Arc::new(is_final))
    }

    /// What a failure of the handler means for the key. A failure is a response that is not [final](Self::final_if), a panic, or
    /// the end of the process. Default: [`ServerError::Transient`], so the key becomes free, and a retry runs the handler
    /// again.
    ///
    /// With [`ServerError::Unknown`] the handler is a [step that must not be
    /// repeated](rowlock::IdempotencyGuard::step_once), with the name `http:handler`: after a failure the record is unknown until
    /// the [reconcile hook](Idempotency::reconcile) or an operator decides. If they decide that the handler's work happened,
    /// a retry gets the result that they give, with status 200. This costs one more statement, and the handler cannot have
    /// another step that must not be repeated.
    pub fn server_error(self, means: ServerError) -> Self {
        self.with(|settings| settings.server_error = means)
    }

    /// The address of the page that describes the [problems](crate#problems), each under an anchor with its name (default: the
    /// page of this crate). The `type` of a problem is this address, `#` and the name.
    pub fn policy_url(self, url: impl Into<String>) -> Self {
        let url = url.into().into();
        self.with(|settings| settings.policy_url = url)
    }

    /// Checks the settings. Call this when the server starts: with wrong settings the layer answers every request with 500.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidSetting`], [`Error::InvalidDuration`].
    pub fn check(&self) -> Result<(), Error> {
        self.0.check()
    }

    /// Ends the layer, its clones, and layers that were made from it, when the server stops. From now on they answer each new request with a key with
    /// [stopping](crate#stopping). Waits for the requests that are under way, for at most `limit`, and returns those that it could not wait for: log them.
    ///
    /// A request is under way from the first poll of its future until the layer has kept its response, or given up. This
    /// includes a request whose client has hung up; a server's graceful shutdown does not wait for such a request, because its
    /// connection is gone. Near the end of the limit (a tenth of it, at most 2 s) the layer drops the handlers that still run, as
    /// [`max_run`](Self::max_run) does: each key is free, or unknown, by what its handler had begun. So no started effect is lost or repeated unseen, if the
    /// handler does it in its transaction, in a step, or under [`ServerError::Unknown`].
    ///
    /// Call it at the same time as the server's graceful shutdown, or after it; then call [`Rowlock::shutdown`](rowlock::Rowlock::shutdown). Requests that pass
    /// untouched (another method, no key) do not count.
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
    names.map_err(|_| Error::InvalidSetting {
        setting,
        reason: "one of them is not a valid name of a header: names have letters, digits and hyphens",
    })
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotencyService::new(inner, Arc::clone(&self.0))
    }
}
