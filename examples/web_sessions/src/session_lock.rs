//! The lock of a session, as a layer. Copy this page.
//!
//! It stands *around* the `SessionManagerLayer`, so the load, the handler and the save all happen under one lease:
//!
//! ```text
//! Router::new()
//!     .route(…)                                                    // handlers that change the session
//!     .layer(SessionManagerLayer::new(store))                      // loads and saves it
//!     .layer(middleware::from_fn_with_state(lock, one_at_a_time))  // this page
//!     .layer(CookieManagerLayer::new())                            // the outermost: it reads the cookie
//! ```
//!
//! Case by case:
//!
//! - *A request without a cookie* passes without a lock: no other request knows the session that it makes. Two first
//!   requests at the same time make two sessions, and the browser keeps the cookie of the later answer. A lock cannot
//!   help, because there is no name yet. Make the session with the first page, before there is something to lose.
//! - *A client that hangs up* while it waits leaves the queue. After that, the request runs in a task of its own, to
//!   its end. If it were dropped, its save could be in flight, and reach the database after the next request has
//!   loaded the session.
//! - *The wait is over*, the queue is full, or the database is out of reach: 503 with `Retry-After`. The handler has
//!   not run.
//! - *The lease is lost in the middle*, because the database did not answer, the process was paused, or an operator
//!   freed the name: the request is dropped at its next await point. The answer is 503 without `Retry-After`: the save
//!   may have happened, so the client must look before it repeats. (`rowlock-http` makes a repeated request safe.)
//! - *The handler panics*: 500, the lock is released, nothing is saved.
//! - *The server crashes*: the others wait until the lease expires, at most its TTL.
//! - *The session gets a new id*: see [`rotate`](crate::rotate).
//! - *A handler that takes long*, also because its client sends the body slowly, holds up the requests of its own
//!   session only. Put a time limit *inside* the `SessionManagerLayer`. A limit around it could cut off the save.
//!
//! The id in the cookie is a secret: who knows it *is* the user. The lock's name is its SHA-256, because every
//! operator may read the names of locks. A client that invents ids makes a row for each of them, which the cleaner
//! removes ten days later. Where that matters, sign the cookies: `SessionManagerLayer::with_signed`, and here
//! `cookies.signed(&key).get(COOKIE)`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use rowlock::{Held, Rowlock};
use sha2::{Digest, Sha256};
use tower_cookies::Cookies;
use tower_sessions::session::Id;

/// The name of the session's cookie. The `SessionManagerLayer` has it from
/// [`with_name`](tower_sessions::SessionManagerLayer::with_name).
pub const COOKIE: &str = "id";

/// The longest queue for one session: a browser has no more requests in flight, so more of them are an attack or an
/// accident.
const QUEUE_LIMIT: u32 = 32;

tokio::task_local! {
    static LEASE: Arc<Held>;
}

/// The lease of the session whose request this task serves. The store [pins](crate::store) it.
pub fn lease() -> Option<Arc<Held>> {
    LEASE.try_with(Arc::clone).ok()
}

/// The settings of [`one_at_a_time`].
#[derive(Debug, Clone)]
pub struct SessionLock {
    /// The client. Shut it down before the process ends: that waits for requests whose clients have hung up.
    pub rowlock: Rowlock,
    /// How long a crashed server keeps a session from the others; 100 ms to 24 h.
    pub ttl: Duration,
    /// How long a request waits for others of its session. Longer than the TTL, so that a request outlasts the crash
    /// of another server.
    pub wait: Duration,
}

/// The name of the session's lock, without the secret.
#[must_use]
pub fn lock_name(id: &Id) -> String {
    format!("session:{}", digest(id))
}

/// The SHA-256 of the session's id, in hexadecimal digits.
#[must_use]
pub fn digest(id: &Id) -> String {
    let digest = Sha256::digest(id.to_string());
    let digits = digest.iter().map(|byte| format!("{byte:02x}"));
    digits.collect()
}

/// Lets the requests of one session pass one after the other, on all servers. Requests of other sessions do not wait.
///
/// It reads the cookie with the parser of the `SessionManagerLayer`, so both mean the same session.
pub async fn one_at_a_time(
    State(lock): State<SessionLock>,
    cookies: Cookies,
    request: Request,
    next: Next,
) -> Response {
    let cookie = cookies.get(COOKIE);
    let Some(id) = cookie.and_then(|cookie| cookie.value().parse::<Id>().ok()) else {
        return next.run(request).await;
    };
    let waiting = lock.rowlock.lock(lock_name(&id)).ttl(lock.ttl);
    let waiting = waiting.wait(lock.wait).queue_limit(QUEUE_LIMIT);
    let held = match waiting.acquire().await {
        Ok(held) => Arc::new(held),
        Err(error) => {
            tracing::warn!(%error, "a request could not get the lock of its session");
            let said = "other requests of this session are not done: send this one again\n";
            let later = [(header::RETRY_AFTER, "1")];
            return (StatusCode::SERVICE_UNAVAILABLE, later, said).into_response();
        }
    };
    let whole_request = lock.rowlock.spawn("a request of a session", async move {
        let lease = Arc::clone(&held);
        let under_lease = async || LEASE.scope(lease, next.run(request)).await;
        match held.with(under_lease).await {
            // Saved before the deadline, so before another server could load the session. Dropping `held` releases.
            Ok(response) if held.is_held() => response,
            _ => {
                tracing::warn!(name = %held.name(), loss = ?held.loss(), "the lock of a session was lost");
                let said = "look at the session before you repeat this: it may be saved\n";
                (StatusCode::SERVICE_UNAVAILABLE, said).into_response()
            }
        }
    });
    let answer = whole_request.await;
    answer.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}
