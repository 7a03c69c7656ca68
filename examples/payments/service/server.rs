//! The shop: payments behind the `Idempotency-Key` header, orders behind form tokens.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use rowlock::layer::{IdempotencyLayer, Idempotent};
use rowlock::{Error, Fingerprint, FormTokens, Outcome, Retry, Rowlock, Submitted};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Failure;
use super::database::{Database, Order, Payment, Statements, on_database};
use super::gateway::{Charge, Charged};

/// How to serve.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) url: String,
    pub(crate) gateway: String,
    pub(crate) gateway_delay_ms: u64,
    /// How long a process that vanished keeps its keys.
    pub(crate) lease: Duration,
    pub(crate) connections: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            url: String::new(),
            gateway: String::new(),
            gateway_delay_ms: 0,
            lease: Duration::from_secs(30),
            connections: 10,
        }
    }
}

/// What is served.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) router: Router,
    /// To be flushed before the process ends.
    #[allow(dead_code, reason = "a process that is killed flushes nothing")]
    pub(crate) rowlock: Rowlock,
}

#[derive(Debug)]
struct Shop {
    database: Database,
    tokens: FormTokens,
    gateway: String,
    gateway_delay_ms: u64,
    client: reqwest::Client,
}

pub(crate) async fn router(settings: &Settings) -> Result<App, Failure> {
    let database = Database::open(&settings.url, settings.connections).await?;
    let rowlock = on_database!(&database, pool => Rowlock::from_pool(pool).await?);
    let shop = Arc::new(Shop {
        database,
        tokens: rowlock.form_tokens(),
        gateway: settings.gateway.clone(),
        gateway_delay_ms: settings.gateway_delay_ms,
        client: reqwest::Client::builder()
            .timeout(Duration::from_secs(30))
            .build()?,
    });
    // Whose key it is: two users' equal keys are two payments.
    let once = IdempotencyLayer::new(
        rowlock.idempotency().lease(settings.lease),
        |parts: &Parts| principal(&parts.headers),
    );
    let router = Router::new()
        .route("/payments", post(pay).layer(once).get(payments))
        .route("/form-tokens", post(form_token))
        .route("/orders", post(order).get(orders))
        .layer(middleware::from_fn(identify))
        .route("/healthz", get(health))
        .with_state(shop);
    Ok(App { router, rowlock })
}

/// Who asks: whoever has a bearer token, which is not checked here. What stands for a user in the tables is a digest of it:
/// a token is a secret, and the scope of a key is not. (With real users it would be the user's id.)
#[derive(Debug, Clone)]
struct Principal(String);

fn principal(headers: &HeaderMap) -> Option<String> {
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
            "send Authorization: Bearer with a token",
        )
        .into_response(),
    }
}

/// What went wrong (RFC 9457).
#[derive(Debug)]
struct Problem {
    status: StatusCode,
    detail: String,
    /// Another attempt has taken over.
    superseded: bool,
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Self { status, detail, .. } = self;
        let title = status.canonical_reason();
        let body = json!({ "title": title, "status": status.as_u16(), "detail": detail });
        let content_type = [(header::CONTENT_TYPE, "application/problem+json")];
        (status, content_type, body.to_string()).into_response()
    }
}

impl Problem {
    fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
            superseded: false,
        }
    }

    fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// Something that may pass: the client comes again with the same key.
    fn trouble(error: &dyn std::fmt::Display) -> Self {
        eprintln!("payments: {error}");
        let detail = "something did not answer: send the same request again";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self {
            superseded: matches!(error, Error::Superseded { .. }),
            ..Self::trouble(&error)
        }
    }
}

impl From<sqlx::Error> for Problem {
    fn from(error: sqlx::Error) -> Self {
        Self::trouble(&error)
    }
}

/// The JSON of a request; what is wrong with it is the client's own, and final.
fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    serde_json::from_slice(body)
        .map_err(|error| Problem::bad(format!("the JSON is wrong: {error}")))
}

/// An id that fits into the table.
fn check(what: &str, text: &str) -> Result<(), Problem> {
    if (1..=100).contains(&text.len()) && !text.contains('\0') {
        return Ok(());
    }
    Err(Problem::bad(format!("{what} has 1 to 100 bytes")))
}

#[derive(Debug, Deserialize)]
struct PaymentRequest {
    order_id: String,
    amount_cents: i64,
    currency: String,
}

async fn pay(
    State(shop): State<Arc<Shop>>,
    Extension(Principal(principal)): Extension<Principal>,
    Extension(once): Extension<Idempotent>,
    body: Bytes,
) -> Result<Response, Problem> {
    let request: PaymentRequest = parse(&body)?;
    check("order_id", &request.order_id)?;
    if request.amount_cents <= 0 {
        return Err(Problem::bad("amount_cents is greater than 0"));
    }
    if request.currency != "EUR" {
        return Err(Problem::bad("currency is \"EUR\""));
    }
    let (id, attempt) = (once.downstream_key("payment")?, once.attempt());
    let order = &request.order_id;
    // Before anything is charged: is this the request that pays the order?
    let is_ours = on_database!(&shop.database, pool => {
        pool.acquire().await?.reserve(&principal, order, &id, attempt).await?
    });
    if !is_ours {
        let paid = paid(&shop, &principal, order).await?;
        return match paid {
            Some(payment) => Ok((StatusCode::CONFLICT, Json(payment)).into_response()),
            None => Err(Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "another request is paying this order: come again later",
            )),
        };
    }
    // Once for the key, over all attempts: the provider knows it by a key of its own.
    let charged = once.step("charge", shop.charge(&once, &request)).await;
    let charged = match charged {
        Ok(charged) => charged,
        Err(problem) => {
            // Taken over, and perhaps done by now: what a later attempt has reserved stays.
            if problem.superseded {
                on_database!(&shop.database, pool => {
                    pool.acquire().await?.give_back(&principal, order, &id, attempt).await?;
                });
            }
            return Err(problem);
        }
    };
    if charged.status == "declined" {
        let (once, who, id) = (&once, &principal, &id);
        let response = on_database!(&shop.database, pool => {
            Retry::new().run(pool, |mut tx| async move {
                let declined = Problem::new(StatusCode::PAYMENT_REQUIRED, "the card was declined");
                tx.give_back(who, order, id, attempt).await?;
                once.complete_in(&mut tx, declined.into_response()).await
            }).await
        });
        return Ok(response?.into_response());
    }
    let payment = Payment {
        payment_id: format!("pay_{}", &id[..16]),
        order_id: request.order_id,
        amount_cents: request.amount_cents,
        currency: request.currency,
        status: charged.status,
    };
    // The payment and the response: both or neither.
    let (once, who, payment) = (&once, &principal, &payment);
    let response = on_database!(&shop.database, pool => {
        Retry::new().run(pool, |mut tx| async move {
            tx.add_payment(who, payment).await?;
            let created = (StatusCode::CREATED, Json(payment)).into_response();
            once.complete_in(&mut tx, created).await
        }).await
    });
    Ok(response?.into_response())
}

async fn paid(shop: &Shop, principal: &str, order: &str) -> Result<Option<Payment>, Problem> {
    let payments = on_database!(&shop.database, pool => {
        pool.acquire().await?.payments(principal).await?
    });
    Ok(payments
        .into_iter()
        .find(|payment| payment.order_id == order))
}

impl Shop {
    async fn charge(
        &self,
        once: &Idempotent,
        request: &PaymentRequest,
    ) -> Result<Charged, Problem> {
        let answer = self
            .client
            .post(format!("{}/charges", self.gateway))
            .header("Idempotency-Key", once.downstream_key("charge")?)
            .json(&Charge {
                reference: request.order_id.clone(),
                amount_cents: request.amount_cents,
                currency: request.currency.clone(),
                delay_ms: self.gateway_delay_ms,
            })
            .send()
            .await
            .and_then(reqwest::Response::error_for_status);
        let answer = answer.map_err(|error| Problem::trouble(&error))?;
        let charged = answer.json().await;
        charged.map_err(|error| Problem::trouble(&error))
    }
}

async fn payments(
    State(shop): State<Arc<Shop>>,
    Extension(Principal(principal)): Extension<Principal>,
) -> Result<Json<Vec<Payment>>, Problem> {
    on_database!(&shop.database, pool => {
        Ok(Json(pool.acquire().await?.payments(&principal).await?))
    })
}

#[derive(Debug, Deserialize)]
struct OrderRequest {
    form_token: String,
    order_id: String,
    sku: String,
    quantity: i64,
}

/// What the first click is told, and the second one, too.
#[derive(Debug, Serialize, Deserialize)]
struct Ordered {
    #[serde(flatten)]
    order: Order,
    status: String,
    /// For the form on the next page.
    form_token: String,
}

async fn form_token(
    State(shop): State<Arc<Shop>>,
    Extension(Principal(principal)): Extension<Principal>,
) -> Result<Response, Problem> {
    let token = shop.tokens.issue(&principal).await?;
    let body = Json(json!({ "token": token.as_str() }));
    Ok((StatusCode::CREATED, body).into_response())
}

async fn order(
    State(shop): State<Arc<Shop>>,
    Extension(Principal(principal)): Extension<Principal>,
    body: Bytes,
) -> Result<Response, Problem> {
    let request: OrderRequest = parse(&body)?;
    check("order_id", &request.order_id)?;
    check("sku", &request.sku)?;
    if request.quantity <= 0 {
        return Err(Problem::bad("quantity is greater than 0"));
    }
    let form = Fingerprint::builder()
        .part(&request.order_id)
        .part(&request.sku)
        .part(request.quantity.to_be_bytes())
        .finish();
    let order = Order {
        order_id: request.order_id,
        sku: request.sku,
        quantity: request.quantity,
    };
    let (tokens, placed, who) = (&shop.tokens, &order, &principal);
    let token = request.form_token.as_str();
    let submitted: Result<Submitted, Error> = on_database!(&shop.database, pool => {
        tokens.submit(pool, who, token, &form, |mut tx| async move {
            tx.add_order(who, placed).await?;
            let next = tokens.issue_in(&mut tx, who).await?;
            Outcome::json(&Ordered {
                order: placed.clone(),
                status: "placed".into(),
                form_token: next.to_string(),
            })
        }).await
    });
    match submitted {
        Ok(Submitted::New(outcome) | Submitted::Replay(outcome)) => {
            let content_type = [(header::CONTENT_TYPE, outcome.content_type().to_owned())];
            let body = outcome.bytes().to_vec();
            Ok((StatusCode::CREATED, content_type, body).into_response())
        }
        Ok(Submitted::Mismatch) => Err(Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "this form was submitted before, with something else in it",
        )),
        Ok(Submitted::Gone) => Err(Problem::new(
            StatusCode::GONE,
            "the form is not valid any more: load it again",
        )),
        Err(Error::Application { cause }) if is_duplicate(cause.sqlx()) => {
            let orders = on_database!(&shop.database, pool => {
                pool.acquire().await?.orders(&principal).await?
            });
            let before = orders
                .into_iter()
                .find(|before| before.order_id == order.order_id);
            Ok((StatusCode::CONFLICT, Json(before)).into_response())
        }
        Err(error) => Err(error.into()),
    }
}

fn is_duplicate(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(sqlx::error::DatabaseError::is_unique_violation)
}

async fn orders(
    State(shop): State<Arc<Shop>>,
    Extension(Principal(principal)): Extension<Principal>,
) -> Result<Json<Vec<Order>>, Problem> {
    on_database!(&shop.database, pool => {
        Ok(Json(pool.acquire().await?.orders(&principal).await?))
    })
}

async fn health(State(shop): State<Arc<Shop>>) -> Result<Response, Problem> {
    on_database!(&shop.database, pool => {
        sqlx::raw_sql("SELECT 1").execute(pool).await?;
    });
    Ok(Json(json!({ "status": "ok" })).into_response())
}
