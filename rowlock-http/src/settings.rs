//! The settings of a layer, and the decisions that depend on them alone.

use std::borrow::Cow;
use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LANGUAGE, CONTENT_LOCATION, ETAG, LAST_MODIFIED,
    LINK, LOCATION,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, Method, Response, Uri};
use rowlock::layer::LayerKeys as _;
use rowlock::{Error, Fingerprint, Idempotency, InvalidError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

use crate::body::ResponseBody;
use crate::extracted::Extractor;
use crate::fingerprint::json::Choice;
use crate::pace::Pace;
use crate::problem::Problem;
use crate::received::{Hook, Received};
use crate::seal::{Redact, Seal};
use crate::under_way::UnderWay;
use crate::{finality, key, prefer, scope};

/// The part of an outcome that is reserved for the head of the response.
const HEAD_ROOM: usize = 16 << 10;
const MAX_WAIT: Duration = Duration::from_hours(366 * 24);
const MAX_WAITING: usize = 1_000;
const DEFAULT_MAX_BODY: usize = 1 << 20;
const DEFAULT_BODY_TIMEOUT: Duration = Duration::from_mins(1);
/// The longest key of a record, in bytes.
const MAX_KEY: usize = 255;

/// The headers of a response that are kept by default.
const KEPT: [HeaderName; 8] = [
    CACHE_CONTROL,
    CONTENT_DISPOSITION,
    CONTENT_LANGUAGE,
    CONTENT_LOCATION,
    ETAG,
    LAST_MODIFIED,
    LINK,
    LOCATION,
];

/// What a failure of the handler means for the key; see
/// [`IdempotencyLayer::server_error`](crate::IdempotencyLayer::server_error).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ServerError {
    /// A retry may run the handler again: the key is free.
    #[default]
    Transient,
    /// The work may have happened: the record is unknown until an operator or a hook decides. A refusal of the form of
    /// the request (such as 413 or 415), which usually frees the key, is kept, but for 401, 405 and 407: see
    /// [`Finality::of`](crate::Finality::of).
    Unknown,
    /// A response with 500 or more is final: the layer keeps it and replays it, as Stripe's API does. So it keeps the
    /// response to a panic. (After the end of the process a retry runs the handler again, as with
    /// [`Transient`](Self::Transient).)
    Keep,
}

/// Who sends the requests, and chooses the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Senders {
    /// They want the response.
    Clients,
    /// Those of events need no more than that an event was done.
    OfEvents,
}

/// Which outcomes are replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replayed {
    All,
    /// Those that the layer has sealed.
    Sealed,
}

/// The attempts that run.
#[derive(Debug, Clone)]
pub(crate) struct Running {
    most: usize,
    room: Arc<Semaphore>,
}

impl Running {
    pub(crate) fn at_most(most: usize) -> Self {
        let room = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        Self { most, room }
    }

    /// Room for one more, if there is any.
    pub(crate) fn room(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.room).try_acquire_owned().ok()
    }
}

/// The room that a running attempt takes; `None` where there is no limit.
pub(crate) type Room = Option<OwnedSemaphorePermit>;

/// Whose key it is; `None`: nobody's.
type Known = dyn Fn(&Parts) -> Option<Vec<u8>> + Send + Sync;

/// How the layer finds out whose key it is.
#[derive(Clone)]
pub(crate) enum Principal {
    Known(Arc<Known>),
    Extracted(Arc<Extractor>),
}

type WholeUri = dyn Fn(&Parts) -> Uri + Send + Sync;

#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) idempotency: Idempotency,
    pub(crate) principal: Principal,
    pub(crate) service: Option<Arc<str>>,
    pub(crate) uri: Option<Arc<WholeUri>>,
    pub(crate) host_counts: bool,
    pub(crate) required: bool,
    pub(crate) strict: bool,
    pub(crate) max_key: usize,
    pub(crate) key_from: Result<Option<Arc<Hook<Option<String>>>>, Error>,
    pub(crate) senders: Senders,
    pub(crate) key_format: Arc<dyn Fn(&str) -> bool + Send + Sync>,
    pub(crate) methods: Vec<Method>,
    pub(crate) max_body: usize,
    pub(crate) body_timeout: Duration,
    pub(crate) max_response: Option<usize>,
    pub(crate) max_wait: Option<Duration>,
    pub(crate) max_waiting: Running,
    pub(crate) max_run: Option<Duration>,
    pub(crate) max_running: Option<Running>,
    pub(crate) keep: Result<Vec<HeaderName>, Error>,
    pub(crate) json: Result<Option<Choice>, Error>,
    pub(crate) headers_count: Result<Vec<HeaderName>, Error>,
    pub(crate) fingerprint: Option<Arc<Hook<Fingerprint>>>,
    pub(crate) also_accepted: Vec<Arc<Settings>>,
    pub(crate) finality: Option<Arc<finality::Hook>>,
    pub(crate) redact: Option<Arc<Redact>>,
    pub(crate) seal: Option<Seal>,
    pub(crate) replayed: Replayed,
    pub(crate) server_error: ServerError,
    pub(crate) policy_url: Arc<str>,
    pub(crate) pace: Arc<Pace>,
    pub(crate) under_way: UnderWay,
}

impl Settings {
    pub(crate) fn new(idempotency: Idempotency, principal: Principal) -> Self {
        #[cfg(feature = "metrics")]
        metrics::describe_counter!(
            "rowlock_http_problems_total",
            metrics::Unit::Count,
            "Responses of the layer's own, by the name of the problem"
        );
        Self {
            idempotency,
            principal,
            service: None,
            uri: None,
            host_counts: false,
            required: true,
            strict: false,
            max_key: MAX_KEY,
            key_from: Ok(None),
            senders: Senders::Clients,
            key_format: Arc::new(|_| true),
            methods: vec![Method::POST, Method::PATCH],
            max_body: DEFAULT_MAX_BODY,
            body_timeout: DEFAULT_BODY_TIMEOUT,
            max_response: None,
            max_wait: None,
            max_waiting: Running::at_most(MAX_WAITING),
            max_run: None,
            max_running: None,
            keep: Ok(KEPT.to_vec()),
            json: Ok(None),
            headers_count: Ok(Vec::new()),
            fingerprint: None,
            also_accepted: Vec::new(),
            finality: None,
            redact: None,
            seal: None,
            replayed: Replayed::All,
            server_error: ServerError::default(),
            policy_url: "https://docs.rs/rowlock-http/latest/rowlock_http/index.html".into(),
            pace: Arc::default(),
            under_way: UnderWay::default(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.idempotency.check()?;
        self.also_accepted
            .iter()
            .try_for_each(|other| other.check())?;
        self.keep.as_ref().map_err(Clone::clone)?;
        self.key_from.as_ref().map_err(Clone::clone)?;
        self.json.as_ref().map_err(Clone::clone)?;
        self.headers_count.as_ref().map_err(Clone::clone)?;
        let refuse =
            |setting, reason| Err(Error::Invalid(InvalidError::Setting { setting, reason }));
        if self
            .service
            .as_deref()
            .is_some_and(|name| !scope::is_name(name))
        {
            let reason = "1 to 50 letters, digits, hyphens, underscores and dots are allowed";
            return refuse("service", reason);
        }
        if !(1..=MAX_KEY).contains(&self.max_key) {
            return refuse("max_key", "1 to 255 bytes are allowed");
        }
        let times = [
            ("body_timeout", Some(self.body_timeout)),
            ("max_run", self.max_run),
        ];
        if let Some(given) = self.max_wait.filter(|limit| *limit > MAX_WAIT) {
            return Err(Error::Invalid(InvalidError::Duration {
                setting: "max_wait",
                given,
                bounds: "at most 366 days are allowed",
            }));
        }
        for (setting, given) in times {
            let allowed = Duration::from_millis(1)..=Duration::from_hours(24);
            if let Some(given) = given.filter(|given| !allowed.contains(given)) {
                return Err(Error::Invalid(InvalidError::Duration {
                    setting,
                    given,
                    bounds: "1 ms to 1 day are allowed",
                }));
            }
        }
        let most = Semaphore::MAX_PERMITS;
        let limits = [
            ("max_running", self.max_running.as_ref()),
            ("max_waiting", Some(&self.max_waiting)),
        ];
        for (setting, limit) in limits {
            if limit.is_some_and(|limit| !(1..=most).contains(&limit.most)) {
                return refuse(setting, "1 at least is allowed");
            }
        }
        if self.replayed == Replayed::Sealed && self.seal.is_none() {
            return refuse("sealed_only", "it needs a seal");
        }
        if self.methods.is_empty() {
            let reason = "name one at least: without any, every request passes untouched";
            return refuse("methods", reason);
        }
        if self.max_body == 0 {
            return refuse("max_body", "1 byte at least is allowed");
        }
        if self.max_response() > self.idempotency.largest_outcome() {
            let reason = "it is larger than max_outcome of the idempotency settings, or than the server's max_allowed_packet allows: lower it, or raise those";
            return refuse("max_response", reason);
        }
        let printable = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if self.policy_url.is_empty() || !printable(&self.policy_url) {
            return refuse(
                "policy_url",
                "it must be a URL: visible ASCII, at least one character",
            );
        }
        Ok(())
    }

    /// The largest body of a response that the layer keeps.
    pub(crate) fn max_response(&self) -> usize {
        let max_outcome = self.idempotency.largest_outcome();
        let room = max_outcome - HEAD_ROOM.min(max_outcome / 2);
        self.max_response.unwrap_or(room)
    }

    pub(crate) fn covers(&self, method: &Method) -> bool {
        self.methods.contains(method)
    }

    /// The key in the header field. `None`: the request has no key, and needs none.
    pub(crate) fn key_in(&self, headers: &HeaderMap) -> Result<Option<String>, Problem> {
        let key = key::of(headers, self.strict);
        self.check_key(key.map_err(|reason| Problem::BadKey(reason.into()))?)
    }

    /// The key that the hook finds. `None`: the request has no key, and needs none.
    pub(crate) async fn key_of(
        &self,
        received: &Received,
        key_from: &Hook<Option<String>>,
    ) -> Result<Option<String>, Problem> {
        let key = key_from(received.clone()).await;
        let key = key.map_err(|reason| Problem::BadKey(reason.into()))?;
        if key.as_deref() == Some("") {
            return Err(Problem::BadKey("The key is empty.".into()));
        }
        if key.as_deref().is_some_and(key::is_no_value) {
            return Err(Problem::BadKey(key::NO_VALUE.into()));
        }
        self.check_key(key)
    }

    fn check_key(&self, key: Option<String>) -> Result<Option<String>, Problem> {
        let key = match key {
            Some(key) => key,
            None if self.required => return Err(Problem::MissingKey),
            None => return Ok(None),
        };
        if key.len() > self.max_key {
            let reason = format!(
                "The key has more than {} bytes. Send a shorter key.",
                self.max_key
            );
            return Err(Problem::BadKey(reason.into()));
        }
        if !(self.key_format)(&key) {
            let reason = "The key does not have the format that this server requires.";
            return Err(Problem::BadKey(reason.into()));
        }
        Ok(Some(key))
    }

    /// The settings of the records, with the wait that the client prefers, where the server allows that and has room
    /// for it.
    pub(crate) fn idempotency_for(&self, headers: &HeaderMap) -> (Cow<'_, Idempotency>, Room) {
        let with = |wait| Cow::Owned(self.idempotency.clone().wait(wait));
        let asked = match (self.max_wait, prefer::wait(headers)) {
            (Some(limit), Some(wait)) => with(wait.min(limit)),
            _ => Cow::Borrowed(&self.idempotency),
        };
        if !asked.waits() {
            return (asked, None);
        }
        match self.max_waiting.room() {
            None => (with(Duration::ZERO), None),
            room => (asked, room),
        }
    }

    /// Room for one more attempt, if there is any.
    pub(crate) fn room(&self) -> Option<Room> {
        match &self.max_running {
            Some(running) => running.room().map(Some),
            None => Some(None),
        }
    }

    /// Runs the handler to its end, or until its time is over, or the server stops. Then it drops the handler.
    pub(crate) async fn in_time<T>(&self, handler: impl Future<Output = T>) -> Result<T, Problem> {
        let too_long = async {
            match self.max_run {
                Some(limit) => {
                    sleep(limit).await;
                    Problem::RunTooLong { limit }
                }
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            come = handler => Ok(come),
            problem = too_long => Err(problem),
            () = self.under_way.cut() => Err(Problem::Stopping),
        }
    }

    /// The response that reports a problem.
    pub(crate) fn response(&self, problem: &Problem) -> Response<ResponseBody> {
        problem.response(&self.policy_url, self.pace.usual())
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("idempotency", &self.idempotency)
            .field("required", &self.required)
            .field("strict", &self.strict)
            .field("max_key", &self.max_key)
            .field("methods", &self.methods)
            .field("max_body", &self.max_body)
            .field("body_timeout", &self.body_timeout)
            .field("max_response", &self.max_response())
            .field("server_error", &self.server_error)
            .finish_non_exhaustive()
    }
}
