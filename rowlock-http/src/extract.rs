//! The attempt as an argument of axum's handlers.

use std::convert::Infallible;

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;

use crate::handle::Idempotent;

/// The request has no attempt: its route is outside of every [`IdempotencyLayer`](crate::IdempotencyLayer) and
/// `IdempotencyMiddleware`, or it has passed the layer untouched (no key, which the layer does not
/// [require](crate::IdempotencyLayer::required), or another method). The response is 500. Take an `Option<Idempotent>`
/// where both can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this request has no attempt: put the route inside an IdempotencyLayer that handles its method (POST and PATCH, \
     unless IdempotencyLayer::methods says more), or take an Option<Idempotent>"
)]
#[non_exhaustive]
pub struct NoAttempt;

impl IntoResponse for NoAttempt {
    fn into_response(self) -> Response {
        tracing::error!(error = %self, "a request is refused");
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

impl<S: Sync> FromRequestParts<S> for Idempotent {
    type Rejection = NoAttempt;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Self, NoAttempt> {
        head.extensions.get::<Self>().cloned().ok_or(NoAttempt)
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Idempotent {
    type Rejection = Infallible;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(head.extensions.get::<Self>().cloned())
    }
}
