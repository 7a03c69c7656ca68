//! The HTTP layer: a client may send a request with an `Idempotency-Key` again, and its work happens once.
//!
//! # Overview
//!
//! [`IdempotencyLayer`] is a layer for tower and axum; the module `actix` (a feature) has it for actix-web, and the
//! module `client` (a feature) the client's side. It follows the IETF draft "The Idempotency-Key HTTP Header Field"
//! (draft-ietf-httpapi-idempotency-key-header-07). The first request with a key runs the handler, and the layer keeps
//! the response in the database. A later request with the same key and the same content gets that response, byte for
//! byte, with `Idempotent-Replayed: true`.
//!
//! ```
//! use axum::extract::State;
//! use axum::http::{StatusCode, request::Parts};
//! use axum::response::IntoResponse;
//! use axum::{Router, routing::post};
//! use rowlock_http::{IdempotencyLayer, Idempotent};
//!
//! /// The payment and its response are committed together.
//! async fn pay(State(pool): State<sqlx::SqlitePool>, once: Idempotent, body: String) -> Result<impl IntoResponse, (StatusCode, String)> {
//!     let body = &body;
//!     let paid = once.in_tx(&pool, async |mut tx| {
//!         sqlx::query("INSERT INTO payment VALUES (?)").bind(body).execute(&mut *tx).await?;
//!         Ok::<_, rowlock::Error>((StatusCode::CREATED, "paid"))
//!     });
//!     paid.await.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
//! }
//!
//! /// Who it is: your authentication, in front of the layer, puts it into the extensions of each request.
//! #[derive(Clone)]
//! struct User(String);
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let url = format!("sqlite:{}/shop.db?mode=rwc", dir.path().display());
//! let pool = sqlx::SqlitePool::connect(&url).await?;
//! # sqlx::raw_sql("CREATE TABLE payment (body TEXT)").execute(&pool).await?;
//! let rowlock = rowlock::Rowlock::from_pool(&pool).await?;
//! // Whose key it is. Never take this from what any client can send.
//! let user = |parts: &Parts| parts.extensions.get::<User>().map(|user| user.0.clone());
//! let layer = IdempotencyLayer::new(rowlock.idempotency(), user);
//! layer.check()?;
//! let app = Router::new().route("/payments", post(pay)).route_layer(layer).with_state(pool.clone());
//! # let app = app.layer(axum::Extension(User("7".into())));
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
//! A handler that knows nothing of the layer works, too: the layer keeps its response after the handler has returned.
//!
//! # State model
//!
//! A request is one attempt of the record (principal, key). The states are those of
//! [`Idempotency`](rowlock::Idempotency). The handler's response decides which state follows `running`:
//!
//! ```text
//!            ┌── a final response (Finality::Keep) ────────────► done: replayed
//!            │── one that is not, or cannot be, kept ──────────► done: replays are answered with 410
//!            │── complete_in, and a commit ────────────────────► done: replayed
//!            │── complete_in, and a rollback ──────────────────► free: a retry runs the handler
//!   running ─┤── nothing happened: 401, 415, …, or so said ────► free
//!            │── another response, a panic, a crash, ──┬───────► free (ServerError::Transient)
//!            │   a handler that is cut off             ├───────► unknown (ServerError::Unknown)
//!            │                                         └───────► done: a response and a panic (ServerError::Keep)
//!            └── Finality::Unknown ────────────────────────────► unknown
//! ```
//!
//! A status below 500 is *final*, except those that refuse the form of a request (401, 405, 415, …), 408, 425 and 429
//! ([`Finality::of`]). [`finality`](IdempotencyLayer::finality) changes this, by the head and the body. A handler's
//! refusal (400, 404, a declined card) is final: the layer replays it, too.
//!
//! Two requests are the same when they have the same method, path, query and body
//! ([`json_only`](IdempotencyLayer::json_only) compares less of a JSON body, and a form of several parts counts by its
//! parts). The path is the one that the client has sent. `Router::nest` and `nest_service` of axum 0.8 remove their
//! prefix before the layer sees a request; they keep the whole URI, and the layer reads it. If another router removes
//! a part of the path, tell the layer where the whole URI is ([`uri`](IdempotencyLayer::uri)). The host does not
//! count, because a retry may go to another name of the same service. Where several hosts are different services to
//! one principal, let the host count ([`host_counts`](IdempotencyLayer::host_counts)).
//!
//! The scope of a record is `http:`, followed by the principal ([`scope`]).
//!
//! # Trust window
//!
//! There is none: an attempt can record its response until another attempt has taken over, even after its lease has
//! run out. The layer sends the first response after it has kept it, never before. With
//! [`complete_in`](Idempotent::complete_in) the effect and the response are one commit. Without `complete_in`, a
//! process may crash between the effect and the response. Then a retry runs the handler again
//! ([`ServerError::Transient`]), or the record stays unknown until an operator or a hook decides
//! ([`ServerError::Unknown`]).
//!
//! # Failure
//!
//! - *The client hangs up*: if the layer already has the request, and the whole body arrives, a separate task runs the
//!   handler to its end, and a retry gets the response. (That task keeps the tracing span, but not task-locals.) If
//!   the client hangs up immediately, the server may never call the layer: hyper does not when it reads the last byte
//!   and the end of the connection together. Then nothing happens, and the retry counts as the first request.
//!   `half_close(true)` of hyper's HTTP/1 builder passes such requests on, too (`axum::serve` has no such setting).
//! - *The server stops*: its graceful shutdown waits for connections, but not for handlers whose clients have hung up.
//!   [`drain`](IdempotencyLayer::drain) waits for those, too, and cuts off the handlers that are left at the end of
//!   its limit.
//! - *The handler hangs*: its lease is renewed for ever, and retries get 409, unless
//!   [`max_run`](IdempotencyLayer::max_run) drops it.
//! - *The handler panics*: the client gets 500, and the key is free or unknown. When only the body of a final response
//!   panics, the work is done, and a retry gets [response-not-kept](#response-not-kept).
//! - *A function that you gave to the layer panics*: no key of work that is done, or may be done, becomes free. Before
//!   the handler runs it is 500, and nothing was begun. If [`finality`](IdempotencyLayer::finality) panics, a retry
//!   gets [response-not-kept](#response-not-kept) or [unknown](#unknown); if [`redact`](IdempotencyLayer::redact) or
//!   [`seal`](IdempotencyLayer::seal) does, [response-not-kept](#response-not-kept).
//! - *The process crashes, or is paused*: the lease runs out. Then a retry takes over, or finds the record unknown.
//! - *The database is out of reach*: the client gets 503 with Retry-After. If the database fails while the handler
//!   runs, the layer tries for 10 minutes to record the response, unless another process takes the key over first. A
//!   key whose work is done is never freed, neither after the 10 minutes nor at the end of the process. Another
//!   process can take it over when its lease has run out.
//!
//! # Bodies
//!
//! The layer reads the whole request body before it calls the handler, and the whole response body before it sends the
//! head of the response. It sends a response unchanged, but does not keep it, when the response is larger than
//! [`max_response`](IdempotencyLayer::max_response), has trailers, or breaks off. The layer does not read ahead in a
//! stream of events (`text/event-stream`). Do not put the layer around other endless streams: their head would never
//! be sent. Compress outside of the layer. Before it refuses a request, it reads up to 16 MiB of its body for up to 10
//! seconds (not after `Expect: 100-continue`), for clients that write all before they read.
//!
//! For a handler, the layer makes a new body of the bytes that it has read: the type of the requests' bodies is
//! `From<Bytes>`, as axum's is, which has the trailers of a request, too. hyper's own
//! ([`Incoming`](https://docs.rs/hyper/latest/hyper/body/struct.Incoming.html)) is not. So without axum, a layer in
//! front of this one changes the type:
//!
//! ```
//! use axum::body::Body;
//! use http::{Request, Response};
//! use hyper::body::Incoming;
//! use rowlock_http::IdempotencyLayer;
//! use tower::ServiceBuilder;
//!
//! # async fn serve(layer: IdempotencyLayer, connection: tokio::net::TcpStream) -> Result<(), hyper::Error> {
//! let service = ServiceBuilder::new()
//!     .map_request(|request: Request<Incoming>| request.map(Body::new))
//!     .layer(layer)
//!     .service_fn(async |_: Request<Body>| Ok::<_, std::convert::Infallible>(Response::new(Body::from("paid"))));
//! let service = hyper_util::service::TowerToHyperService::new(service);
//! let connection = hyper_util::rt::TokioIo::new(connection);
//! hyper::server::conn::http1::Builder::new().serve_connection(connection, service).await
//! # }
//! ```
//!
//! # Problems
//!
//! A response of the layer's own is `application/problem+json` (RFC 9457). Its `type` is a link to one of these
//! headings.
//!
//! ## missing-key
//!
//! *400.* The request has no Idempotency-Key. Send one: a new key for each request, and the same key for its retries.
//!
//! ## bad-key
//!
//! *400.* The header must have one key of at least one character, in quotes (a String of RFC 8941):
//! `Idempotency-Key: "8e03978e-40d5-43dd-bc93-6894a57f9324"`. Most servers also accept it without quotes. The layer
//! refused this key because it is malformed, too long, or not in the server's format. The layer ignores parameters
//! after the key. With [`key_from`](IdempotencyLayer::key_from): the hook refused the request, or the key that it
//! found is empty, too long or malformed.
//!
//! ## no-principal
//!
//! *401*, with `WWW-Authenticate: Bearer`. A key belongs to a user, and the request does not say who its user is. Log
//! in, and send the request again.
//!
//! ## grpc
//!
//! *415.* The request is one of gRPC, and has an Idempotency-Key, or should have one. The status of its response would
//! be in trailers, which the layer cannot replay.
//!
//! ## request-refused
//!
//! *400.* The server's [fingerprint hook](IdempotencyLayer::fingerprint) cannot read the request. The problem says
//! why. Nothing was done.
//!
//! ## body-too-large
//!
//! *413.* The body of the request is larger than the layer accepts ([`max_body`](IdempotencyLayer::max_body)).
//!
//! ## body-unreadable
//!
//! *400 with Retry-After.* The body of the request broke off. Nothing was done. Send the request again.
//!
//! ## body-too-slow
//!
//! *408.* The whole body of the request did not arrive in time ([`body_timeout`](IdempotencyLayer::body_timeout)).
//! Nothing was done, and the server may close the connection. Send the request again.
//!
//! ## in-flight
//!
//! *409 with Retry-After.* The server is processing a request with this key, or another attempt has taken over from
//! the attempt that ran this request. Send the same request again after the given time. With
//! [`max_wait`](IdempotencyLayer::max_wait) and `Prefer: wait=10`, or with [`wait`](rowlock::Idempotency::wait), the
//! layer waits for the running attempt before it answers so.
//!
//! Retry-After comes from the last 64 attempts of this layer in this process: nine of ten took no longer. It is 1 to
//! 300 s, and not longer than the lease of the running attempt; without an earlier attempt it is 1 s. Give routes that
//! take very different times separate layers.
//!
//! ## key-reused
//!
//! *422.* The key was used for another request. Send a new request with a new key. But if it is a retry, it differs
//! from what was sent first, which may have been done: do not send it under a new key. The server may have changed
//! what counts of a request ([`also_accept`](IdempotencyLayer::also_accept) prevents that).
//!
//! ## unknown
//!
//! *409.* An earlier request broke off in a step that must not be repeated. An operator finds out whether the step
//! happened, and runs `rowlock idempotency resolve`. A [reconcile hook](rowlock::Idempotency::reconcile) lets the
//! server find out.
//!
//! ## poisoned
//!
//! *409.* Too many attempts of this request in a row were abandoned: their process died before there was a result. A
//! response with 5xx and a panic do not count. The request does not run again until an operator runs `rowlock
//! idempotency reset`, or an hour has passed since the last attempt.
//!
//! ## expired
//!
//! *410.* The request was done, and its response has been deleted since. The request does not run again. (An
//! [event](IdempotencyLayer::events) gets 200 without a body.)
//!
//! ## response-not-kept
//!
//! *410.* The request was done, with the status `original_status`, and the response was not kept: the server chose so,
//! or the response was too large, a stream of events, had trailers, broke off, could not be sealed, or was refused by
//! the database. The request does not run again. (An [event](IdempotencyLayer::events) gets that status without a
//! body.)
//!
//! ## handler-panicked
//!
//! *500.* The handler panicked. The key is free or [unknown](#unknown), as
//! [`server_error`](IdempotencyLayer::server_error) says. Or a function that the layer was given panicked before the
//! handler: nothing was begun.
//!
//! ## run-too-long
//!
//! *503 with Retry-After.* The handler ran for longer than [`max_run`](IdempotencyLayer::max_run), and was dropped.
//! Send the same request again, with the same key. If the work may have happened, the answer is [unknown](#unknown).
//!
//! ## overloaded
//!
//! *503 with Retry-After.* As many handlers run as the layer allows ([`max_running`](IdempotencyLayer::max_running)).
//! Nothing was done. Send the same request again.
//!
//! ## damaged
//!
//! *500.* The record cannot be read: it was edited by hand, or `open` of [`seal`](IdempotencyLayer::seal) refused the
//! response, or panicked. The request was done. An operator repairs the record.
//!
//! ## misconfigured
//!
//! *500.* A setting of the layer is wrong ([`check`](IdempotencyLayer::check) says which), or the principal has more
//! than 250 bytes (with the name of the [service](IdempotencyLayer::service)), or the layer is inside of another one
//! that has begun the same record, or the layer cannot read the [whole URI](IdempotencyLayer::uri) with this version
//! of axum; or a kept response is sealed and the layer has no [`seal`](IdempotencyLayer::seal), or a result is larger
//! than [`max_outcome`](rowlock::Idempotency::max_outcome).
//!
//! ## unavailable
//!
//! *503 with Retry-After.* The database is out of reach, or in [quarantine](rowlock::Admin::quarantine). Send the
//! same request again. If the handler has already run, a retry gets its response when the layer has been able to keep
//! it.
//!
//! ## stopping
//!
//! *503 with Retry-After.* The layer [drains](IdempotencyLayer::drain), or the client of rowlock was [shut
//! down](rowlock::Rowlock::shutdown), because the process is about to exit. Send the same request again, with the same
//! key, to another server or later.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(all(doctest, feature = "metrics"))]
#[doc = include_str!("../../docs/METRICS.md")]
mod metrics_page {}

#[cfg(feature = "actix")]
pub mod actix;
mod attempt;
mod body;
#[cfg(feature = "client")]
pub mod client;
mod collect;
mod ending;
mod extract;
mod extracted;
mod finality;
mod finality_by_settings;
mod fingerprint;
mod handle;
mod in_tx;
mod keeps;
mod key;
mod layer;
mod pace;
mod panics;
mod plain;
mod prefer;
mod problem;
mod received;
mod scope;
mod seal;
mod service;
mod settings;
mod stored;
mod under_way;

pub use body::ResponseBody;
pub use extract::NoAttempt;
pub use finality::Finality;
pub use handle::Idempotent;
pub use layer::IdempotencyLayer;
pub use received::Received;
pub use scope::scope;
pub use service::{IdempotencyService, ResponseFuture};
pub use settings::ServerError;
pub use under_way::{Doing, Left};
