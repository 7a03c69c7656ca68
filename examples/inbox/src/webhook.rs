//! The webhook: the provider sends an event again until it gets a 2xx.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use rowlock_recipes::inbox::{Inbox, Reply};
use sqlx::PgPool;

use crate::signature::{HEADER, is_signed};
use crate::{Event, credit};

/// What the webhook needs.
#[derive(Debug)]
pub struct Webhook {
    /// Where the events are remembered.
    pub inbox: Inbox<PgPool>,
    /// What the provider signs with.
    pub secret: String,
}

/// The routes: `POST /webhooks`.
pub fn routes(webhook: Webhook) -> Router {
    Router::new()
        .route("/webhooks", post(receive))
        .with_state(Arc::new(webhook))
}

async fn receive(State(webhook): State<Arc<Webhook>>, headers: HeaderMap, body: Bytes) -> Response {
    #[allow(
        clippy::disallowed_methods,
        reason = "the provider's signature tells the time"
    )]
    let now = SystemTime::now();
    let signature = headers.get(HEADER).and_then(|value| value.to_str().ok());
    let is_ours = |header| is_signed(&webhook.secret, header, &body, now);
    if !signature.is_some_and(is_ours) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let event = match Event::of(&body) {
        Ok(event) => event,
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    let delivery = credit(&webhook.inbox, &event).await;
    tracing::info!(event = &*event.id, ?delivery, "a webhook");
    match delivery.reply() {
        Reply::Ack => StatusCode::OK.into_response(),
        Reply::Nack => (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")]).into_response(),
        Reply::DeadLetter => StatusCode::UNPROCESSABLE_ENTITY.into_response(),
    }
}
