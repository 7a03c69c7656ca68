//! The layer and its settings.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderName, Method, StatusCode, Uri};
use rowlock::{Error, Idempotency};
use tower_layer::Layer;

use crate::service::IdempotencyService;
use crate::settings::{ServerError, Settings};

/// Makes the routes behind it safe to retry; see the [module](crate). For
/// [`Router::layer`](https://docs.rs/axum/latest/axum/struct.Router.html#method.layer), `route_layer`, or any tower of
/// services of HTTP. Cloning is cheap.
#[derive(Debug, Clone)]
#[must_use = "it does nothing by itself"]
pub struct IdempotencyLayer(Arc<Settings>);

impl IdempotencyLayer {
    /// A layer that keeps its records with `idempotency`: lease, retention, waiting and the size of an outcome are
    /// settings of that one.
    ///
    /// `principal` tells whose request it is (a user, a tenant), in 1 to 250 bytes. Two users' equal
    /// keys are two records; without that, one user could read another one's responses. `None`, or nothing, is answered
    /// with 401. Take it from what an authentication in front of this layer has put into the request's
    /// extensions, not from what anybody can send. The record's scope is [`scope`](crate::scope) of it.
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

    /// Whether a request without a key is refused with 400. It is when not set; otherwise it passes untouched.
    pub fn required(self, required: bool) -> Self {
        self.with(|settings| settings.required = required)
    }

    /// Whether a key without its quotes is accepted, too: visible ASCII without quotes, commas, semicolons and
    /// backslashes. It names the same record as with quotes. Not when not set.
    pub fn lenient(self, lenient: bool) -> Self {
        self.with(|settings| settings.lenient = lenient)
    }

    /// The longest key that is accepted, in characters: 1 to 255, 255 when not set. A longer one is answered with 400,
    /// before anything is looked up.
    pub fn max_key(self, characters: usize) -> Self {
        self.with(|settings| settings.max_key = characters)
    }

    /// Which keys are accepted (only UUIDs, say). Another one is answered with 400, before anything is looked up.
    pub fn key_format(self, accept: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.key_format = Arc::new(accept))
    }

    /// The methods that the layer is for: POST and PATCH when not set. Requests of other methods pass untouched.
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        let methods = methods.into_iter().collect();
        self.with(|settings| settings.methods = methods)
    }

    /// The largest body of a request in bytes, 1 MiB when not set: it is read whole before the handler runs. A larger
    /// one is answered with 413.
    pub fn max_body(self, bytes: usize) -> Self {
        self.with(|settings| settings.max_body = bytes)
    }

    /// How long the body of a request may take to arrive whole, from when its head is there: 1 ms to 1 day, one minute when not
    /// set. A slower one is answered with 408. Give routes for large bodies more time: 1 MiB in a minute is 17 KiB/s.
    ///
    /// It counts also when the client has hung up, or a time limit outside of this layer is over: the layer's task goes on
    /// then, for as long as the body may yet come to its end.
    pub fn body_timeout(self, timeout: Duration) -> Self {
        self.with(|settings| settings.body_timeout = timeout)
    }

    /// The largest body of a response that is kept, in bytes: at most the
    /// [`max_outcome`](Idempotency::max_outcome) of the idempotency settings; 16 KiB less than that when not set, which
    /// is for the headers. A larger one is delivered, and not replayed: see [response-not-kept](crate#response-not-kept).
    pub fn max_response(self, bytes: usize) -> Self {
        self.with(|settings| settings.max_response = Some(bytes))
    }

    /// The URI that tells one request from another, together with its method and body; its path and query count. Not needed with
    /// axum 0.8, where both the URI that the client has asked for ([`OriginalUri`](axum::extract::OriginalUri)) and the
    /// one that the handler sees count when this is not set.
    ///
    /// Set it behind another router that takes a prefix off the path: otherwise the same request to `/tenants/a` and to
    /// `/tenants/b` is one, and the second tenant gets the first one's response. With another version of axum every request is
    /// answered with 500 until it is set:
    ///
    /// ```
    /// # async fn f(rowlock: rowlock::Rowlock) {
    /// use axum::extract::OriginalUri; // of that version
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

    /// Whether the host that the client has asked tells one request from another, too. It does not when this is not set.
    ///
    /// One service often has several names (one for each region, an internal one, the addresses of its processes), and a retry may
    /// go to another one than the first request: it must not be refused, and sent again under a new key. So the same request to
    /// two hosts is one, and the second host answers with the first one's response. Set this where hosts are different
    /// services to the same [principal](Self::new), as shops that share their users are: the same key on another host is then
    /// refused (422). (Where each host is to have keys of its own, make the host a part of the principal.)
    ///
    /// The host is the authority of the URI (HTTP/2, or a URI in absolute form), or else the field `Host`; its port counts. It is what the client
    /// has sent, or what a proxy has put there: let the proxy hand the client's on, and refuse hosts that you do not serve.
    pub fn host_counts(self, counts: bool) -> Self {
        self.with(|settings| settings.host_counts = counts)
    }

    /// The headers of a response that are kept, instead of Cache-Control, Content-Disposition, Content-Language,
    /// Content-Location, `ETag`, Last-Modified, Link and Location. Content-Type and Content-Encoding always are, and so are
    /// WWW-Authenticate of a 401 and Allow of a 405.
    ///
    /// Set-Cookie, Authorization, Content-Length and what is between two neighbours only (Connection, Keep-Alive, Proxy-…,
    /// TE, Trailer, Transfer-Encoding, Upgrade) are never kept, also when they are listed.
    pub fn keep_headers<I>(self, headers: I) -> Self
    where
        I: IntoIterator,
        I::Item: TryInto<HeaderName>,
    {
        let refused = |_| Error::InvalidSetting {
            setting: "keep_headers",
            reason: "one of them is not the name of a header field",
        };
        let headers = headers.into_iter().map(TryInto::try_into);
        let headers = headers.collect::<Result<_, _>>().map_err(refused);
        self.with(|settings| settings.keep = headers)
    }

    /// The fields of a JSON object that tell one request from another, instead of all bytes of the body: for clients
    /// whose retries differ in what does not matter (a time of sending). Their layout and order make no difference.
    ///
    /// Another body than an object, or one of a Content-Type that is not JSON, counts with all its bytes.
    pub fn json_fields<I>(self, fields: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        let fields = fields.into_iter().map(Into::into).collect();
        self.with(|settings| settings.json_fields = fields)
    }

    /// Which responses are final, that is: kept and replayed. Everything below 500 but for 401, 405, 407, 408, 425 and 429,
    /// when not set. The others are [server errors](Self::server_error), but for 401, 405 and 407: these say that nothing
    /// was done, and the key is free again.
    ///
    /// A 403 or 404 is final. So is the 404 of a router that has no such route, where the layer is around that, too: put it
    /// around the routes alone (`Router::route_layer`).
    pub fn final_if(self, is_final: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.is_final = Arc::new(is_final))
    }

    /// What it means when the handler answers with a response that is not [final](Self::final_if), panics, or vanishes with
    /// its process.
    /// [`ServerError::Transient`] when not set: the key is free, a retry runs the handler again.
    ///
    /// With [`ServerError::Unknown`] the handler is a [step that must not be
    /// repeated](rowlock::IdempotencyGuard::step_once), called `http:handler`: the record is unknown until the
    /// [reconcile hook](Idempotency::reconcile) or a person has found out. (So the handler can have no other such step.
    /// One statement more.) When it is found that it happened, a retry gets what the finder says with status 200.
    pub fn server_error(self, means: ServerError) -> Self {
        self.with(|settings| settings.server_error = means)
    }

    /// The page that describes the [problems](crate#problems), each under an anchor of its name: the `type` of a problem
    /// is this address, `#` and the name. This page when not set.
    pub fn policy_url(self, url: impl Into<String>) -> Self {
        let url = url.into().into();
        self.with(|settings| settings.policy_url = url)
    }

    /// Whether the settings make sense. Ask when the server starts: with settings that do not, every request
    /// is answered with 500.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidSetting`], [`Error::InvalidDuration`].
    pub fn check(&self) -> Result<(), Error> {
        self.0.check()
    }

    /// Waits until no request with a key is under way behind this layer, its clones, or layers that were made from it. Requests that
    /// the layer passes on (another method, no key) are not counted.
    ///
    /// A request is under way from the first poll of its future until its response is kept or given up, also when its client has hung
    /// up: then no connection is left for a server's graceful shutdown to wait for. So call this after the shutdown, and before
    /// [`flush`](rowlock::Rowlock::flush); otherwise the end of the process cuts handlers off. Bound it: a handler may take any time,
    /// and the layer tries for 10 minutes to keep a response.
    ///
    /// ```
    /// # async fn f(layer: rowlock_http::IdempotencyLayer, rowlock: rowlock::Rowlock) {
    /// let bound = std::time::Duration::from_secs(30);
    /// if tokio::time::timeout(bound, layer.idle()).await.is_err() {
    ///     eprintln!("the process ends in the middle of requests: retries take them over when their leases have run out");
    /// }
    /// rowlock.flush().await;
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn idle(&self) {
        self.0.under_way.none().await;
    }

    fn with(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        let settings = Arc::make_mut(&mut self.0);
        // A layer that differs may be for work that takes another time.
        settings.pace = Arc::default();
        set(settings);
        self
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotencyService::new(inner, Arc::clone(&self.0))
    }
}
