//! Answers without an attempt.

use std::pin::pin;

use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::body::{BoxError, ResponseBody};
use crate::collect::discard;
use crate::problem::Problem;
use crate::settings::Settings;

/// Answers a request whose body is of no interest.
pub(crate) async fn refuse<B: Body>(
    settings: &Settings,
    problem: &Problem,
    request: Request<B>,
) -> Response<ResponseBody> {
    let (head, body) = request.into_parts();
    discard(&head.headers, pin!(body)).await;
    settings.response(problem)
}

/// [`refuse`] with a response of the application's.
pub(crate) async fn refuse_with<B: Body>(
    response: axum::response::Response,
    request: Request<B>,
) -> Response<ResponseBody> {
    let (head, body) = request.into_parts();
    discard(&head.headers, pin!(body)).await;
    response.map(ResponseBody::new)
}

/// Passes a request on, untouched.
pub(crate) async fn pass<S, B, R>(
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
