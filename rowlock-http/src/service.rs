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
use crate::settings::Settings;
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
            let mut refusal = None;
            if let Some(extract) = &settings.extractor
                && settings.covers(&parts.method)
            {
                (parts, refusal) = extract(parts).await;
            }
            let admitted = panics::catch(ADMITS, || admit::<B>(&settings, &parts));
            let admitted = admitted.unwrap_or(Err(Problem::HandlerPanicked));
            let request = Request::from_parts(parts, body);
            match (admitted, refusal) {
                (Err(Problem::NoPrincipal), Some(refusal)) => {
                    Ok(refuse_with(refusal, request).await)
                }
                (Ok(None), _) => pass(inner, request).await,
                (Ok(Some(asked)), _) => asked.answer(inner, request).await,
                (Err(problem), _) => Ok(refuse(&settings, &problem, request).await),
            }
        }))
    }
}

/// Decides what needs neither the database nor the body. `None`: the request passes untouched.
pub(crate) fn admit<B: 'static>(
    settings: &Arc<Settings>,
    parts: &Parts,
) -> Result<Option<Asked>, Problem> {
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
    let key = if matches!(settings.key_from, Ok(Some(_))) {
        None
    } else {
        let Some(key) = settings.key_in(&parts.headers)? else {
            return Ok(None);
        };
        Some(key)
    };
    let principal = (settings.principal)(parts).ok_or(Problem::NoPrincipal)?;
    let owner = scope::owner(settings.service.as_deref(), &principal);
    Ok(Some(Asked {
        settings: Arc::clone(settings),
        owner,
        key,
    }))
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
/// reads the body, runs the handler and keeps the response. If the body breaks off, or does not arrive within
/// [`body_timeout`](crate::IdempotencyLayer::body_timeout), the task leaves nothing in the database.
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
