//! The shop: its routes, and who may use them.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use rowlock::{Fingerprint, FormTokens, Rowlock};
use rowlock_http::IdempotencyLayer;
use serde_json::json;

use crate::database::{Database, on_database};
use crate::problem::Problem;
use crate::{Failure, order, payment};

/// The routes, for `--help`.
pub const ROUTES: &str = "\
Routes:
  POST /payments     {\"order_id\": \"4711\", \"amount_cents\": 500, \"currency\": \"EUR\"}, with Idempotency-Key: \"k1\"
                     201 paid, 402 declined, 409 another request has paid the order (in the body)
  GET  /payments     your payments
  POST /form-tokens  a token for one order form
  POST /orders       {\"form_token\": \"…\", \"order_id\": \"1\", \"sku\": \"mug\", \"quantity\": 1}
                     201 placed, 409 the order number exists (the order is in the body)
  GET  /orders       your orders
  GET  /healthz      200 when the database answers

Send Authorization: Bearer TOKEN to all routes but /healthz. Every token is valid, and is a separate user.
The provider declines amounts that end in 13 (113, 1013).";

/// The settings of the shop.
#[derive(Debug, Clone)]
pub struct Settings {
    pub url: String,
    pub gateway: String,
    pub gateway_delay_ms: u64,
    /// How long the keys of a crashed process stay in flight.
    pub lease: Duration,
    /// How many attempts of one key may be abandoned in a row. After that many, the key is poisoned.
    pub max_attempts: u32,
    pub connections: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            url: String::new(),
            gateway: String::new(),
            gateway_delay_ms: 0,
            lease: Duration::from_secs(30),
            max_attempts: 5,
            connections: 10,
        }
    }
}

/// The shop, ready to serve.
#[derive(Debug)]
pub struct App {
    pub router: Router,
    /// Finishes payments whose clients have hung up. Wait until it is idle before the process ends.
    pub payments: IdempotencyLayer,
    /// Shut it down before the process ends.
    pub rowlock: Rowlock,
}

#[derive(Debug)]
pub(crate) struct Shop {
    pub(crate) database: Database,
    pub(crate) tokens: FormTokens,
    pub(crate) gateway: String,
    pub(crate) gateway_delay_ms: u64,
    pub(crate) client: reqwest::Client,
}

/// Connects, and makes the tables. Errors name the database or the URL, without the password.
pub async fn router(settings: &Settings) -> Result<App, Failure> {
    let gateway = reqwest::Url::parse(&settings.gateway)
        .map_err(|error| format!("the provider's URL {:?}: {error}", settings.gateway))?;
    // rowlock connects first, because its errors say what is wrong with the URL, or with which server.
    let rowlock = Rowlock::connect(&settings.url).await?;
    let of_database = |error| format!("{}: {error}", rowlock.target());
    let database = Database::open(&settings.url, settings.connections).await;
    let database = database.map_err(|error| of_database(error.to_string()))?;
    let alone = rowlock.lock("payments: tables").ttl(Duration::from_secs(5));
    let alone = alone.wait(Duration::from_secs(30)).acquire().await?;
    let created = alone.with(async || database.create_tables().await).await?;
    created.map_err(|error| of_database(error.to_string()))?;
    alone.release().await?;

    let shop = Arc::new(Shop {
        database,
        tokens: rowlock.form_tokens(),
        gateway: gateway.as_str().trim_end_matches('/').to_owned(),
        gateway_delay_ms: settings.gateway_delay_ms,
        client: reqwest::Client::builder()
            .timeout(Duration::from_secs(30))
            .build()?,
    });
    // The principal is the user: equal keys of two users are two payments.
    let idempotency = rowlock.idempotency();
    let idempotency = idempotency
        .lease(settings.lease)
        .max_attempts(settings.max_attempts);
    let once = IdempotencyLayer::new(idempotency, |parts: &Parts| principal(&parts.headers));
    let payments = post(payment::pay)
        .layer(once.clone())
        .get(payment::payments);
    let router = Router::new()
        .route("/payments", payments)
        .route("/form-tokens", post(order::form_token))
        .route("/orders", post(order::order).get(order::orders))
        .layer(middleware::from_fn(identify))
        .route("/healthz", get(health))
        .fallback(async || {
            Problem::new(
                StatusCode::NOT_FOUND,
                "there is no such route: `payments --help` lists the routes",
            )
        })
        .with_state(shop);
    Ok(App {
        router,
        payments: once,
        rowlock,
    })
}

/// The user of a request. The example accepts every bearer token. The tables name the user by a digest of the token,
/// because a token is a secret, and the scope of a key is not. (A real shop would use the user's id.)
#[derive(Debug, Clone)]
pub(crate) struct Principal(pub(crate) String);

pub fn principal(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?;
    let (scheme, token) = value.as_bytes().split_at_checked(7)?;
    let token = token.trim_ascii();
    if !scheme.eq_ignore_ascii_case(b"bearer ") || token.is_empty() {
        return None;
    }
    let digest = Fingerprint::of(token);
    let digits = digest.as_bytes()[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"));
    Some(format!("user-{}", digits.collect::<String>()))
}

async fn identify(mut request: Request, next: Next) -> Response {
    match principal(request.headers()) {
        Some(name) => {
            request.extensions_mut().insert(Principal(name));
            next.run(request).await
        }
        None => Problem::new(
            StatusCode::UNAUTHORIZED,
            "this route needs a user: send Authorization: Bearer with a token",
        )
        .into_response(),
    }
}

async fn health(State(shop): State<Arc<Shop>>) -> Result<Response, Problem> {
    on_database!(&shop.database, pool => {
        sqlx::raw_sql("SELECT 1").execute(pool).await?;
    });
    Ok(Json(json!({ "status": "ok" })).into_response())
}
