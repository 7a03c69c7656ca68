//! Whose key it is, by an extractor of axum.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use http::request::Parts;

/// The principal, or the extractor's response if it refuses the request.
type Found<'a> = Pin<Box<dyn Future<Output = Result<Vec<u8>, Response>> + Send + 'a>>;

pub(crate) type Extractor = dyn for<'a> Fn(&'a mut Parts) -> Found<'a> + Send + Sync;

pub(crate) fn extractor<E, P>(principal: impl Fn(E) -> P + Send + Sync + 'static) -> Arc<Extractor>
where
    E: FromRequestParts<()>,
    P: AsRef<[u8]>,
{
    let principal = Arc::new(principal);
    Arc::new(move |parts| {
        let principal = Arc::clone(&principal);
        Box::pin(async move {
            let found = E::from_request_parts(parts, &()).await;
            let who = found.map_err(IntoResponse::into_response)?;
            Ok(principal(who).as_ref().to_vec())
        })
    })
}
