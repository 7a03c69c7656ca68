//! The service: it passes a request on, refuses it, or makes an attempt of it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::attempt::Asked;
use crate::body::{Answer, BoxError, ResponseBody};
use crate::plain::{pass, refuse, refuse_with};
use crate::problem::Problem;
use crate::settings::{Principal, Settings};
use crate::{fingerprint, panics, scope};

/// The type of messages in gRPC, and the beginning of its other types (gRPC over HTTP2, "Requests").
const GRPC: &str = "application/grpc";

/// The functions of the application's that [`admit`] calls.
pub(crate) const ADMITS: &str = "principal, or key_format";

/// A service inside an [`IdempotencyLayer`](crate::IdempotencyLayer).
#[derive(Debug, Clone)]
pub struct IdempotencyService<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S> IdempotencyService<S> {
    pub(crate) fn new(inner: S, settings: Arc<Settings>) -> Self {
        Self { inner, settings }
    }
}

impl<S, B, R> Service<Request<B>> for IdempotencyService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: Body + From<Bytes> + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
    R: Body + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // `poll_ready` was called on this service. Its clone may not be ready.
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        let settings = Arc::clone(&self.settings);
        ResponseFuture(Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let asked = asked::<B>(&settings, &mut parts).await;
            let request = Request::from_parts(parts, body);
            match asked {
                Ok(None) => pass(inner, request).await,
                Ok(Some(asked)) => asked.answer(inner, request).await,
                Err(Refusal::Layer(problem)) => Ok(refuse(&settings, &problem, request).await),
                Err(Refusal::Extractor(response)) => Ok(refuse_with(response, request).await),
            }
        }))
    }
}

/// The key of a request's header; `None`: the key is elsewhere in the request.
#[derive(Debug)]
struct HeaderKey(Option<String>);

impl Asked {
    /// A request of `principal`.
    fn by(
        settings: &Arc<Settings>,
        principal: &[u8],
        HeaderKey(key): HeaderKey,
    ) -> Result<Self, Problem> {
        if principal.is_empty() {
            return Err(Problem::NoPrincipal);
        }
        Ok(Self {
            settings: Arc::clone(settings),
            owner: scope::owner(settings.service.as_deref(), principal),
            key,
        })
    }
}

/// Who refuses a request before there is an attempt.
enum Refusal {
    Layer(Problem),
    Extractor(axum::response::Response),
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self::Layer(problem)
    }
}

/// Decides what needs neither the database nor the body. `None`: the request passes untouched.
async fn asked<B: 'static>(
    settings: &Arc<Settings>,
    parts: &mut Parts,
) -> Result<Option<Asked>, Refusal> {
    let Principal::Extracted(extract) = &settings.principal else {
        let admitted = panics::catch(ADMITS, || admit::<B>(settings, parts));
        return Ok(admitted.unwrap_or(Err(Problem::HandlerPanicked))?);
    };
    let key = panics::catch(ADMITS, || key_of::<B>(settings, parts));
    let Some(key) = key.unwrap_or(Err(Problem::HandlerPanicked))? else {
        return Ok(None);
    };
    // Only now: a request that needs no key, or has none, costs no look at a session or a token.
    let who = panics::catch_async(ADMITS, extract(parts)).await;
    let who = who.ok_or(Problem::HandlerPanicked)?;
    let who = who.map_err(Refusal::Extractor)?;
    Ok(Some(Asked::by(settings, &who, key)?))
}

/// [`asked`] where no extractor has to be awaited.
pub(crate) fn admit<B: 'static>(
    settings: &Arc<Settings>,
    parts: &Parts,
) -> Result<Option<Asked>, Problem> {
    let Some(key) = key_of::<B>(settings, parts)? else {
        return Ok(None);
    };
    let who = match &settings.principal {
        Principal::Known(who) => who(parts).ok_or(Problem::NoPrincipal)?,
        Principal::Extracted(_) => {
            tracing::error!(
                "requests are refused: IdempotencyLayer::from_extractor is for axum; give \
                 IdempotencyLayer::new a function of the request's head"
            );
            return Err(Problem::Misconfigured);
        }
    };
    Asked::by(settings, &who, key).map(Some)
}

/// The key in the request's head; [`HeaderKey(None)`](HeaderKey): the settings say how the key is found in the whole
/// request. `None`: the request passes untouched.
fn key_of<B: 'static>(settings: &Settings, parts: &Parts) -> Result<Option<HeaderKey>, Problem> {
    if !settings.covers(&parts.method) {
        return Ok(None);
    }
    settings.check().map_err(|error| Problem::of(&error))?;
    if settings.uri.is_none() && fingerprint::hides_uri::<B>() {
        tracing::error!(
            "requests are refused: the layer cannot read the whole URI with this version of axum; set \
             IdempotencyLayer::uri"
        );
        return Err(Problem::Misconfigured);
    }
    if is_grpc(&parts.headers) {
        // A client without a key goes its own way.
        let is_asked = settings.required || settings.key_in(&parts.headers)?.is_some();
        return if is_asked {
            Err(Problem::Grpc)
        } else {
            Ok(None)
        };
    }
    if matches!(settings.key_from, Ok(Some(_))) {
        return Ok(Some(HeaderKey(None)));
    }
    let key = settings.key_in(&parts.headers)?;
    Ok(key.map(|key| HeaderKey(Some(key))))
}

/// The status of a call in gRPC is in the trailers of its response, or in headers that no replay would have.
fn is_grpc(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let start = value.and_then(|value| value.get(..GRPC.len()));
    start.is_some_and(|start| start.eq_ignore_ascii_case(GRPC.as_bytes()))
}

/// The future response of an [`IdempotencyService`].
///
/// # Cancel safety
///
/// After the first poll, a task of the runtime processes the request to its end, even if this future is dropped: it
/// reads the body, runs the handler and keeps the response. (With
/// [`from_extractor`](crate::IdempotencyLayer::from_extractor) it does so when the extractor has found the user.)
///
/// If the body breaks off, or does not arrive within [`body_timeout`](crate::IdempotencyLayer::body_timeout), the task
/// leaves nothing in the database.
#[must_use = "it does nothing unless polled"]
pub struct ResponseFuture<E>(Pin<Box<dyn Future<Output = Answer<E>> + Send>>);

impl<E> fmt::Debug for ResponseFuture<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

impl<E> Future for ResponseFuture<E> {
    type Output = Answer<E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}
