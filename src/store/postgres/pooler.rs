//! Poolers: how a connection shares the server's sessions. `own_connection.rs` sends the verbs accordingly.
//!
//! A pooler in transaction mode lends a server connection to each transaction. Three things follow:
//!
//! - *No session settings.* They would stay with a connection that other clients use. Where the default isolation is
//!   not the one that the verbs rely on, each verb runs in a transaction that asks for it.
//! - *No name for a prepared statement*, unless the pooler keeps track of them (`PgBouncer` does from 1.21 on, if it
//!   is told to). Two clients use the name `sqlx_s_1` for different statements, and the server would run the one that
//!   it has. There each verb runs in a transaction of its own, and its statements have no names.
//!
//! - *No LISTEN.* The session that listens is another client's a moment later, and so is what it hears.
//!
//! So the first connection finds out how it is shared ([`Sharing`]), before anything is prepared.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection, Row};

use super::look::{ServerLook, open};
use crate::model::{ConnectError, Error};
use crate::store::driver::url::Parameter;
use crate::store::verbs::fault::Fault;

/// A client that is paused between a statement and its COMMIT keeps its rows locked, but only briefly: a new row
/// blocks all clients that make the same row, with all jobs in their statements. A client that returns later finds the
/// connection closed, and sends its statement again. `SET LOCAL` ends with the transaction.
pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; \
                     SET LOCAL idle_in_transaction_session_timeout = '1s'; \
                     SET LOCAL enable_seqscan = off; SET LOCAL jit = off; \
                     SET LOCAL plan_cache_mode = force_generic_plan";

/// The parameter of a URL that states the pooler's mode, so that rowlock need not find it out.
pub(super) const POOLER: &str = "rowlock_pooler";

/// Which of the two connections is asked next for its process: the first (true) or the second. Several questions,
/// because a pooler that just started, under many clients, may by chance give both the same process a few times.
/// Irregular, because a pooler may lend its processes in turn.
const ORDER: [bool; 10] = [
    false, true, true, false, true, false, false, true, true, false,
];

/// The name under which the server knows this statement. `PgBouncer` chooses a name of its own when it keeps track.
const TRACKED: &str = "
SELECT bool_and(name NOT LIKE 'sqlx%') FROM pg_prepared_statements
WHERE statement LIKE '%rowlock asks for its name%'";

/// How the connections of a client share the server's sessions with other clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    /// A connection has a session of the server's for itself.
    Not,
    /// Each transaction may run in another session, and the pooler keeps track of prepared statements.
    Tracked,
    /// Each transaction may run in another session, which has other clients' prepared statements.
    Mixed,
}

impl Sharing {
    pub(super) fn is_shared(self) -> bool {
        self != Self::Not
    }
}

/// A client of this process has found [`Sharing::Mixed`]. The callers' connections come from their own pools and
/// cannot be asked; probably they use the same pooler. In a transaction, statements without names are right
/// everywhere.
static MIXED: AtomicBool = AtomicBool::new(false);

pub(super) fn names_are_mixed() -> bool {
    MIXED.load(Ordering::Relaxed)
}

/// What the connections of one connector know of their pooler.
#[derive(Debug, Clone, Default)]
pub(super) struct KnownPooler(Arc<Mutex<Option<Sharing>>>);

impl KnownPooler {
    pub(super) fn get(&self) -> Option<Sharing> {
        *self.0.lock()
    }

    pub(super) fn set(&self, sharing: Sharing) {
        if sharing == Sharing::Mixed {
            MIXED.store(true, Ordering::Relaxed);
        }
        let mut known = self.0.lock();
        // Once a connection has found mixed statements, another one that by chance finds none changes nothing.
        if *known != Some(Sharing::Mixed) {
            *known = Some(sharing);
        }
    }
}

/// The URL without `rowlock_pooler=…` among its `parameters`, and the meaning of that.
pub(super) fn take_pooler(
    url: &str,
    parameters: &[Parameter<'_>],
) -> Result<(String, Option<Sharing>), Error> {
    let is_it = |(name, _): &&Parameter<'_>| name == POOLER;
    let sharing = match parameters.iter().find(is_it).map(|(_, value)| &**value) {
        None => return Ok((url.into(), None)),
        Some("transaction") => Sharing::Mixed,
        Some("session") => Sharing::Not,
        Some(_) => {
            return Err(Error::Connect(ConnectError::InvalidUrl {
                reason: "its parameter rowlock_pooler has to be `transaction` or `session`".into(),
            }));
        }
    };
    let others = parameters.iter().filter(|parameter| !is_it(parameter));
    let mut without = form_urlencoded::Serializer::new(String::new());
    without.extend_pairs(others);
    let before = url.split('?').next().unwrap_or_default();
    Ok((format!("{before}?{}", without.finish()), Some(sharing)))
}

/// Whether `conn` shares the server's processes. A second connection shows it: that connection gets the process that
/// the first has just used, or one of the two finds itself on another process than before.
pub(super) async fn is_shared(
    conn: &mut PgConnection,
    seen: &ServerLook,
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
    // Its answers are known; an error while closing does not matter.
    let _ = other.close().await;
    Ok(shared)
}

async fn process(conn: &mut PgConnection) -> Result<i32, Fault> {
    let row = sqlx::raw_sql("SELECT pg_backend_pid()").fetch_one(conn);
    Ok(row.await?.try_get(0)?)
}

/// Whether the pooler keeps the prepared statements of its clients apart. Leaves nothing on the server.
pub(super) async fn is_tracked(conn: &mut PgConnection) -> Result<bool, Fault> {
    let mut tx = conn.begin_with(BEGIN).await?;
    let asked: Result<Option<bool>, _> = sqlx::query_scalar(TRACKED).fetch_one(&mut *tx).await;
    match asked {
        Ok(tracked) => {
            tx.clear_cached_statements().await?;
            tx.commit().await?;
            Ok(tracked == Some(true))
        }
        // Another client has the name already.
        Err(error) if is_mix_up(&error) => {
            tx.rollback().await?;
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether the server ran into another client's statement: `duplicate_prepared_statement`,
/// `invalid_sql_statement_name`; or the statement of that name has other parameters: `invalid_binary_representation`,
/// `protocol_violation` (also the code of all PgBouncer's own errors).
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
