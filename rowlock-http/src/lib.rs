//! The HTTP layer: requests with an `Idempotency-Key` that can be sent again, and do their work once.
//!
//! # Overview
//!
//! [`IdempotencyLayer`] is a layer for tower and axum, to the IETF draft "The Idempotency-Key HTTP Header Field"
//! (draft-ietf-httpapi-idempotency-key-header-07). The first request with a key runs the handler, and its response is
//! kept in the database; whoever sends the same request with the same key later gets that response, byte for byte, with
//! `Idempotent-Replayed: true`.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let url = format!("sqlite:{}/shop.db?mode=rwc", dir.path().display());
//! use axum::extract::State;
//! use axum::http::{StatusCode, request::Parts};
//! use axum::response::{IntoResponse, Response};
//! use axum::{Extension, Router, routing::post};
//! use rowlock_http::{IdempotencyLayer, Idempotent};
//!
//! # #[derive(Debug)]
//! struct Failed(Box<dyn std::error::Error>);
//! # impl<E: std::error::Error + 'static> From<E> for Failed {
//! #     fn from(error: E) -> Self { Self(error.into()) }
//! # }
//! # impl IntoResponse for Failed {
//! #     fn into_response(self) -> Response { StatusCode::INTERNAL_SERVER_ERROR.into_response() }
//! # }
//!
//! /// The payment and its response are committed together.
//! async fn pay(
//!     State(pool): State<sqlx::SqlitePool>,
//!     Extension(idempotent): Extension<Idempotent>,
//!     body: String,
//! ) -> Result<Response, Failed> {
//!     let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
//!     sqlx::query("INSERT INTO payment VALUES (?)").bind(&body).execute(&mut *tx).await?;
//!     let response = (StatusCode::CREATED, "paid").into_response();
//!     let response = idempotent.complete_in(&mut tx, response).await?;
//!     tx.commit().await?;
//!     Ok(response.into_response())
//! }
//!
//! let pool = sqlx::SqlitePool::connect(&url).await?;
//! # sqlx::raw_sql("CREATE TABLE payment (body TEXT)").execute(&pool).await?;
//! let rowlock = rowlock::Rowlock::from_pool(&pool).await?;
//! // Whose key it is: what the authentication in front has found out, not what anybody can send.
//! let user = |parts: &Parts| parts.extensions.get::<User>().map(|user| user.0.clone());
//! let layer = IdempotencyLayer::new(rowlock.idempotency(), user);
//! layer.check()?;
//! # #[derive(Clone)]
//! # struct User(String);
//! let app = Router::new().route("/payments", post(pay)).route_layer(layer).with_state(pool.clone());
//! # let app = app.layer(Extension(User("7".into())));
//! # let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! # let address = format!("http://{}/payments", listener.local_addr()?);
//! # tokio::spawn(async move { axum::serve(listener, app).await });
//! # for replayed in [false, true] {
//! #     let request = reqwest::Client::new().post(&address).body("500").header("Idempotency-Key", "\"order-4711\"");
//! #     let response = request.send().await?;
//! #     assert_eq!(response.headers().contains_key("idempotent-replayed"), replayed);
//! #     assert_eq!((response.status().as_u16(), response.text().await?.as_str()), (201, "paid"));
//! # }
//! # let paid: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM payment").fetch_one(&pool).await?;
//! # assert_eq!(paid, 1);
//! # Ok(())
//! # }
//! ```
//!
//! A handler that knows nothing of the layer works, too: its response is kept after it has come to its end.
//!
//! # State model
//!
//! A request is one attempt of the record (principal, key); the states are those of
//! [`Idempotency`](rowlock::Idempotency). What the handler answers decides what comes after `running`:
//!
//! ```text
//!            ┌── a final response ─────────────────────────────► done: replayed
//!            │── a final response that cannot be kept ─────────► done: replays are answered with 410
//!   running ─┤── complete_in, and a commit ────────────────────► done: replayed
//!            │── complete_in, and a rollback ──────────────────► free: a retry runs the handler
//!            │── 401, 405 or 407: nothing was done ────────────► free
//!            └── another response, a panic, a crash ───┬───────► free (ServerError::Transient)
//!                                                      └───────► unknown (ServerError::Unknown)
//! ```
//!
//! *Final* is everything below 500 but for 401, 405, 407, 408, 425 and 429, unless
//! [`final_if`](IdempotencyLayer::final_if) says otherwise. A refusal of the handler's (400, 404, a declined card) is final: it is
//! replayed, too.
//!
//! Two requests are the same when method, path, query and body are
//! ([`json_fields`](IdempotencyLayer::json_fields) makes an exception). The path is the one that the client has asked for:
//! `Router::nest` and `nest_service` of axum 0.8 take their prefix off before the layer sees a request, and remember the
//! whole URI, which the layer reads. Behind another router that takes something off, say where the URI is
//! ([`uri`](IdempotencyLayer::uri)). The host does not count, because a retry may go to another name of the same service;
//! where several hosts are several services to one principal, let it count ([`host_counts`](IdempotencyLayer::host_counts)).
//!
//! The scope of a record is `http:` and the principal ([`scope`]).
//!
//! # Trust window
//!
//! There is none: an attempt can record its response until another one has taken over, whether or not its lease has run out. The first
//! response is sent after it was kept, never before. With [`complete_in`](Idempotent::complete_in) the effect
//! and the response are one commit. Without it, a process that crashes between the two lets a retry run the handler again
//! ([`ServerError::Transient`]) or leaves it to somebody to find out ([`ServerError::Unknown`]).
//!
//! # Failure
//!
//! - *The client hangs up*: once the layer has been handed its request, and the body arrives whole, the handler goes on to its
//!   end in a task of its own, and a retry gets the response. (Task-locals are not seen there; the span of tracing is.) A
//!   server may never hand over the request of a client that is gone at once: hyper does not when it reads the last byte and the
//!   end of the connection in one go. Then nothing is done, and a retry is the first. `half_close(true)` of hyper's HTTP/1
//!   builder makes it hand over these, too (`axum::serve` has no such setting).
//! - *The server stops*: its graceful shutdown waits for connections, not for handlers whose clients have hung up:
//!   [`idle`](IdempotencyLayer::idle) does.
//! - *The handler panics*: 500, and the key is free or unknown. When only the body of its final response panics, the work is
//!   done, and a retry gets [response-not-kept](#response-not-kept).
//! - *The process crashes, or is paused*: the lease runs out, and a retry takes over, or finds the record unknown.
//! - *The database is out of reach*: 503 with Retry-After. When it has gone while the handler ran, the response is recorded
//!   as soon as it is back, unless another process has taken the key over by then; that is tried for 10 minutes. A key
//!   whose work is done is not freed: not after that time, and not when the process ends. Others take it over when its lease has
//!   run out.
//!
//! # Bodies
//!
//! Bodies are read whole: the request's before the handler runs, the response's before its head is sent. A response that
//! is larger than [`max_response`](IdempotencyLayer::max_response), has trailers, or whose body breaks off, is delivered as it
//! is, but not kept. A stream of events (`text/event-stream`) is never read ahead. Keep other streams that may not
//! end out of the routes of this layer: their head would not be sent. Compress outside of the layer.
//!
//! # Problems
//!
//! What is not the handler's answer is `application/problem+json` (RFC 9457), whose `type` leads here.
//!
//! ## missing-key
//!
//! *400.* The request has no Idempotency-Key, and needs one.
//!
//! ## bad-key
//!
//! *400.* The header field is not one String of RFC 8941 (`Idempotency-Key: "8e03978e-40d5-43dd-bc93-6894a57f9324"`) of at
//! least one character; the key is too long, or has another format than the server asks for. Parameters after it mean
//! nothing.
//!
//! ## no-principal
//!
//! *401*, with `WWW-Authenticate: Bearer`. Nobody is logged in to whom the key could belong.
//!
//! ## body-too-large
//!
//! *413.* The body of the request is larger than is accepted.
//!
//! ## body-unreadable
//!
//! *400.* The body of the request broke off.
//!
//! ## body-too-slow
//!
//! *408.* The body of the request did not come to its end in the time that is allowed: nothing was done, and the connection may
//! be closed.
//!
//! ## in-flight
//!
//! *409 with Retry-After.* A request with this key is being processed, or another attempt has taken over the one that ran this
//! request. With [`wait`](rowlock::Idempotency::wait) it is waited for first. Retry-After is the time in which nine of ten of the last 64
//! attempts behind this layer in this process were over, 1 to 300 s, and no longer than the lease of the running one; 1 s when
//! there were none. Give routes that take very different times layers of their own.
//!
//! ## key-reused
//!
//! *422.* The key was used for another request.
//!
//! ## unknown
//!
//! *409.* An earlier request broke off in a step that must not be repeated. Find out whether it happened, then `rowlock
//! idempotency resolve`; or give the server a [reconcile hook](rowlock::Idempotency::reconcile).
//!
//! ## poisoned
//!
//! *409.* So many attempts have crashed that it is not run again, until `rowlock idempotency reset`.
//!
//! ## expired
//!
//! *410.* It was done longer ago than responses are kept. It is not run again.
//!
//! ## response-not-kept
//!
//! *410.* It was done, with the status `original_status`; the response was too large to be kept, had trailers, or broke off. It
//! is not run again.
//!
//! ## handler-panicked
//!
//! *500.* The handler panicked.
//!
//! ## damaged
//!
//! *500.* Somebody has edited the record by hand.
//!
//! ## misconfigured
//!
//! *500.* The settings of the layer make no sense ([`check`](IdempotencyLayer::check) tells), the principal has more than
//! 250 bytes, or this axum is not the one whose [whole URI](IdempotencyLayer::uri) the layer knows how to read.
//!
//! ## unavailable
//!
//! *503 with Retry-After.* The database is out of reach. When the handler has run, a retry gets its response as soon as that
//! could be kept.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod attempt;
mod body;
mod fingerprint;
mod handle;
mod key;
mod layer;
mod pace;
mod problem;
mod service;
mod settings;
mod stored;
mod under_way;

pub use body::ResponseBody;
pub use handle::Idempotent;
pub use layer::IdempotencyLayer;
pub use service::{IdempotencyService, ResponseFuture};
pub use settings::ServerError;

/// The scope of the records of `principal` (which [`IdempotencyLayer::new`] is given a function for): `http:`, and the
/// principal. So they are never those of a scope that the server's own code gives to
/// [`Idempotency`](rowlock::Idempotency): attempts in such a scope are refused there. Looking at a record and deciding about it are not.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/shop.db?mode=rwc", dir.path().display());
/// # let rowlock = rowlock::Rowlock::connect(&url).await?;
/// let record = rowlock.idempotency().inspect(rowlock_http::scope("alice"), "order-17").await?;
/// # assert!(record.is_none());
/// assert_eq!(rowlock_http::scope("alice"), b"http:alice"); // rowlock idempotency show http:alice order-17
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn scope(principal: impl AsRef<[u8]>) -> Vec<u8> {
    [
        rowlock::Idempotency::HTTP_SCOPES.as_bytes(),
        principal.as_ref(),
    ]
    .concat()
}
