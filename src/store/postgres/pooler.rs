//! Poolers: whose session a connection is. `session.rs` sends the verbs there.
//!
//! A pooler in transaction mode gives a server connection to whoever begins a transaction. Two things follow:
//!
//! - *No setting of a session.* It would stay with a connection that belongs to everybody. Where the default isolation is
//!   not the one that the verbs rely on, each runs in a transaction that asks for it.
//! - *No name for a prepared statement*, unless the pooler keeps track of them (`PgBouncer` does from 1.21 on, if it is
//!   told to). `sqlx_s_1` of one client is another statement than that of the next client, and the server would run
//!   whichever it has. There each verb runs in a transaction of its own, and its statements have no names.
//!
//! So the first connection finds out which it is, before anything is prepared ([`Sharing`]).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection, Row};

use super::look::{Look, open};
use crate::model::Error;
use crate::store::fault::Fault;

/// Who is paused between a statement and its COMMIT keeps rows, but not for long: a row that is new keeps all others waiting
/// who make it, and what shares their statements. Who comes later finds the connection closed, and sends again what it has
/// sent. `SET LOCAL` ends with the transaction.
pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; \
                     SET LOCAL idle_in_transaction_session_timeout = '1s'";

/// The parameter of a URL that says what is not to be found out.
pub(super) const POOLER: &str = "rowlock_pooler";

/// Which of the two connections is asked next for its process: the first (true) or the second. Several questions, because
/// a pooler that was just started, with many clients at once, may by chance give each of two the same process a few times.
/// Without a rhythm, because a pooler may lend its processes in turn.
const ORDER: [bool; 10] = [
    false, true, true, false, true, false, false, true, true, false,
];

/// Under which name the server knows this very statement. `PgBouncer` gives it one of its own when it keeps track.
const TRACKED: &str = "
SELECT bool_and(name NOT LIKE 'sqlx%') FROM pg_prepared_statements
WHERE statement LIKE '%rowlock asks for its name%'";

/// How a client's connections to the server are shared with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    /// A connection is a session of the server's for itself.
    Not,
    /// Each transaction may run in another session, and prepared statements are kept track of.
    Tracked,
    /// Each transaction may run in another session, which has the statements of others.
    Mixed,
}

/// A client of this process has found [`Sharing::Mixed`]. The connections of callers come from pools of their own, and
/// cannot be asked; probably they came by the same way. In a transaction, statements without names are right everywhere.
static MIXED: AtomicBool = AtomicBool::new(false);

pub(super) fn names_are_mixed() -> bool {
    MIXED.load(Ordering::Relaxed)
}

/// What the clients of one connector know of their pooler.
#[derive(Debug, Clone, Default)]
pub(super) struct Known(Arc<Mutex<Option<Sharing>>>);

impl Known {
    pub(super) fn get(&self) -> Option<Sharing> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, sharing: Sharing) {
        if sharing == Sharing::Mixed {
            MIXED.store(true, Ordering::Relaxed);
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // What one connection has found out, another one that was luckier does not take back.
        if *known != Some(Sharing::Mixed) {
            *known = Some(sharing);
        }
    }
}

/// Takes `rowlock_pooler=…` out of a URL.
pub(super) fn take_pooler(url: &str) -> Result<(String, Option<Sharing>), Error> {
    let Some((before, parameters)) = url.split_once('?') else {
        return Ok((url.into(), None));
    };
    let mut sharing = None;
    let mut others = Vec::new();
    for parameter in parameters.split('&') {
        match parameter.split_once('=') {
            Some((POOLER, "transaction")) => sharing = Some(Sharing::Mixed),
            Some((POOLER, "session")) => sharing = Some(Sharing::Not),
            Some((POOLER, _)) => {
                return Err(Error::InvalidUrl {
                    reason: "its parameter rowlock_pooler is `transaction` or `session`".into(),
                });
            }
            _ => others.push(parameter),
        }
    }
    Ok((format!("{before}?{}", others.join("&")), sharing))
}

/// Whether `conn` does not keep a process of the server's for itself. A second connection tells: it gets the one that the
/// first has just used, or one of them finds itself with another one than before.
pub(super) async fn is_shared(
    conn: &mut PgConnection,
    seen: &Look,
    options: &PgConnectOptions,
) -> Result<bool, Fault> {
    let (mut other, second) = open(options).await?;
    let mut shared = second.reused || second.process == seen.process;
    for ask_first in ORDER {
        if shared {
            break;
        }
        shared = if ask_first {
            process(conn).await? != seen.process
        } else {
            process(&mut other).await? != second.process
        };
    }
    // What it says is known; how it ends is not of interest.
    let _ = other.close().await;
    Ok(shared)
}

async fn process(conn: &mut PgConnection) -> Result<i32, Fault> {
    let row = sqlx::raw_sql("SELECT pg_backend_pid()").fetch_one(conn);
    Ok(row.await?.try_get(0)?)
}

/// Whether the pooler tells the prepared statements of its clients apart. Nothing stays behind on the server.
pub(super) async fn is_tracked(conn: &mut PgConnection) -> Result<bool, Fault> {
    let mut tx = conn.begin_with(BEGIN).await?;
    let asked: Result<Option<bool>, _> = sqlx::query_scalar(TRACKED).fetch_one(&mut *tx).await;
    match asked {
        Ok(tracked) => {
            tx.clear_cached_statements().await?;
            tx.commit().await?;
            Ok(tracked == Some(true))
        }
        // The name is another client's already.
        Err(error) if is_mix_up(&error) => {
            tx.rollback().await?;
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// `duplicate_prepared_statement`, `invalid_sql_statement_name`; or the statement of that name has other parameters:
/// `invalid_binary_representation`, `protocol_violation` (which is also the code of whatever PgBouncer says itself).
pub(super) fn is_mix_up(error: &sqlx::Error) -> bool {
    let Some(error) = error.as_database_error() else {
        return false;
    };
    match error.code().as_deref() {
        Some("42P05" | "26000" | "22P03") => true,
        Some("08P01") => error.message().starts_with("bind message"),
        _ => false,
    }
}
