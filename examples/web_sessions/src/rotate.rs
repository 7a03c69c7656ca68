//! A new id for a session, as every login should give it: an attacker may have planted the old one (session fixation).
//!
//! [`Session::cycle_id`] deletes the old record. A request of another tab, sent with the old cookie, then waits for
//! the lock, and finds no session. The `SessionManagerLayer` answers it with a removal of the cookie, or with the
//! cookie of a new, empty session. Both put an end to the session that has just logged in: the browser has one cookie
//! for all its tabs.
//!
//! So [`rotate`] leaves a note under the old id for a minute. [`refuse_moved`] answers 409 to a request that finds it,
//! and touches no cookie. The browser sends the request again, with its new cookie.
//!
//! A request with the old cookie locks the old name, a request with the new cookie the new name. They work on
//! different records, so they need not wait for each other.
//!
//! The limit: tower-sessions deletes the old record during the login, and creates the new one after it. A server that
//! crashes in between leaves no session. What must survive that belongs in a table of its own, under the user's id.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tower_sessions::session::{Error, Record};
use tower_sessions::{Expiry, Session, SessionStore};

/// The entry of a note.
const MOVED: &str = "moved";

/// How long a note stays. A request that was sent with the old cookie arrives earlier.
const NOTE: time::Duration = time::Duration::minutes(1);

/// Gives the session a new id. Call it from a handler under the session's lock.
///
/// # Errors
///
/// The store's. The session may be gone then.
pub async fn rotate(session: &Session, store: &(impl SessionStore + Clone)) -> Result<(), Error> {
    session.get_value(MOVED).await?; // loads the session: an id that no session has is removed
    let old = session.id();
    session.cycle_id().await?;
    if let Some(id) = old {
        let expiry = Some(Expiry::OnInactivity(NOTE));
        let note = Session::new(None, Arc::new(store.clone()), expiry);
        let mut note = Record {
            id,
            data: HashMap::from([(MOVED.to_owned(), true.into())]),
            expiry_date: note.expiry_date(),
        };
        store.create(&mut note).await?;
    }
    Ok(())
}

/// Answers 409 to a request whose session has a new id. It stands inside the `SessionManagerLayer`.
pub async fn refuse_moved(session: Session, request: Request, next: Next) -> Response {
    match session.get_value(MOVED).await {
        Ok(None) => next.run(request).await,
        Ok(Some(_)) => {
            let said = "the session has a new cookie: send this again with it\n";
            (StatusCode::CONFLICT, said).into_response()
        }
        Err(error) => {
            tracing::error!(%error, "the session cannot be loaded");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
