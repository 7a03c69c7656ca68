//! The service: what passes, what is refused at once, and what becomes an attempt.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::attempt::Asked;
use crate::body::{Answer, BoxError, ResponseBody};
use crate::fingerprint;
use crate::problem::Problem;
use crate::settings::Settings;

/// A service behind an [`IdempotencyLayer`](crate::IdempotencyLayer).
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
        // The one that was asked is ready; its clone need not be.
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        let settings = Arc::clone(&self.settings);
        ResponseFuture(Box::pin(async move {
            let (parts, body) = request.into_parts();
            let admitted = admit::<B>(&settings, &parts);
            let request = Request::from_parts(parts, body);
            match admitted {
                Ok(None) => pass(inner, request).await,
                Ok(Some(asked)) => asked.answer(inner, request).await,
                Err(problem) => Ok(settings.response(&problem)),
            }
        }))
    }
}

/// What can be said without a look at the database, or at the body. `None`: it passes.
fn admit<B: 'static>(settings: &Arc<Settings>, parts: &Parts) -> Result<Option<Asked>, Problem> {
    if !settings.covers(&parts.method) {
        return Ok(None);
    }
    settings.check().map_err(|error| Problem::of(&error))?;
    if settings.uri.is_none() && fingerprint::hides_uri::<B>() {
        tracing::error!(
            "requests are refused: with this version of axum, tell the layer which URI the client has asked for \
             (IdempotencyLayer::uri)"
        );
        return Err(Problem::Misconfigured);
    }
    let Some(key) = settings.key(&parts.headers)? else {
        return Ok(None);
    };
    let principal = (settings.principal)(parts).ok_or(Problem::NoPrincipal)?;
    Ok(Some(Asked {
        settings: Arc::clone(settings),
        principal,
        key,
    }))
}

async fn pass<S, B, R>(
    mut inner: S,
    request: Request<B>,
) -> Result<Response<ResponseBody>, S::Error>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body + Send + 'static,
    R::Error: Into<BoxError>,
{
    Ok(inner.call(request).await?.map(ResponseBody::new))
}

/// The answer of an [`IdempotencyService`] to come.
///
/// # Cancel safety
///
/// Once it has been polled, a task of the runtime goes on with the request: it reads the body, runs the handler and keeps
/// the response. When the body breaks off, or does not come within
/// [`body_timeout`](crate::IdempotencyLayer::body_timeout), nothing is left behind.
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
