//! Whose key it is, by an extractor of axum.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use http::request::Parts;

/// Who it is, in the extensions of the request.
#[derive(Debug, Clone)]
pub(crate) struct Extracted(pub(crate) Vec<u8>);

/// The head of the request, and the extractor's response if it refuses the request.
type Found = Pin<Box<dyn Future<Output = (Parts, Option<Response>)> + Send>>;

pub(crate) type Extractor = dyn Fn(Parts) -> Found + Send + Sync;

pub(crate) fn extractor<E, P>(principal: impl Fn(E) -> P + Send + Sync + 'static) -> Arc<Extractor>
where
    E: FromRequestParts<()>,
    P: AsRef<[u8]>,
{
    let principal = Arc::new(principal);
    Arc::new(move |mut parts| {
        let principal = Arc::clone(&principal);
        Box::pin(async move {
            // A layer outside of this one may have had another extractor.
            parts.extensions.remove::<Extracted>();
            match E::from_request_parts(&mut parts, &()).await {
                Ok(who) => {
                    let who = Extracted(principal(who).as_ref().to_vec());
                    parts.extensions.insert(who);
                    (parts, None)
                }
                Err(refusal) => (parts, Some(refusal.into_response())),
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use http::{Request, StatusCode};

    use super::*;

    struct Refuses;

    impl FromRequestParts<()> for Refuses {
        type Rejection = StatusCode;

        async fn from_request_parts(_: &mut Parts, (): &()) -> Result<Self, StatusCode> {
            Err(StatusCode::FORBIDDEN)
        }
    }

    #[tokio::test]
    async fn who_an_outer_layer_knows_is_nobody_to_an_inner_one_that_refuses() {
        let (mut parts, ()) = Request::new(()).into_parts();
        parts.extensions.insert(Extracted(b"ann".to_vec()));
        let (parts, refusal) = extractor(|_: Refuses| "ann")(parts).await;
        assert_eq!(refusal.unwrap().status(), StatusCode::FORBIDDEN);
        assert!(parts.extensions.get::<Extracted>().is_none());
    }
}
