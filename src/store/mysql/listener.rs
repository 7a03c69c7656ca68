//! The connection on which a client hears that a name was passed on: it waits in a statement, which other clients end
//! with KILL QUERY.
//!
//! The connection has the user-level lock of its session. A client that passes a name on to a waiter of it asks
//! which connection has this lock (`IS_USED_LOCK`), and ends its statement. No row keeps the id of a connection: after
//! a restart the ids begin again, and the statement of a stranger would end. Where nobody has the lock (a client that
//! polls; another node of a cluster; behind a proxy), nobody is woken, and looks find what happened.
//!
//! A user may end statements of its own connections without another right (both manuals, "KILL Statement"). Those of
//! another user's client stay asleep: its looks find what happened.
//!
//! A wake that comes between two sleeps is lost: it ends nothing, also not the next statement. The look that follows
//! each wake begins when the next sleep does, and another one comes a little later. A wake that comes when the next
//! statement has begun, and does not sleep yet, ends that statement with an error.
//!
//! On MariaDB the connection does not sleep, but waits for a transaction that no server has. If two of MariaDB's KILL
//! QUERY meet a SLEEP, its thread and theirs wait for each other for up to two seconds, with a mutex of all sleeps of
//! the server. Such a wait occupies a thread of MariaDB's pool of threads, and a few of them would keep the pool busy:
//! a client does not listen there, and polls. (Both were seen on 10.11.)

use std::time::Duration;

use async_trait::async_trait;
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, Row};
use tokio::time::timeout;
use uuid::Uuid;

use super::fault::is_interrupted;
use super::statement::{fill, hex, in_one_transaction};
use crate::model::{FaultKind, Name};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::queue::{Listener, News};

/// The connection that listens for a session, by its id in hexadecimal; NULL: none does. (A lock without a name is an
/// error.)
macro_rules! listener_of {
    ($session:literal) => {
        concat!(
            "CAST(IF(",
            $session,
            " IS NULL, NULL, IS_USED_LOCK(CONCAT('rowlock_', LOWER(",
            $session,
            ")))) AS SIGNED)"
        )
    };
}
pub(super) use listener_of;

/// Reads the connection that listens for the first waiter whose session is live.
const OF_FIRST: &str = concat!(
    "SELECT ",
    listener_of!("HEX(w.session_id)"),
    "
FROM rowlock_lock l
STRAIGHT_JOIN rowlock_waiter w FORCE INDEX (PRIMARY) ON w.name = l.name AND w.position > l.passed
STRAIGHT_JOIN rowlock_session s FORCE INDEX (PRIMARY) ON s.id = w.session_id AND s.expires_at > SYSDATE(6)
WHERE l.name = ? ORDER BY w.position LIMIT 1"
);

/// How long one sleep lasts. The server ends the sleep of a connection that is gone sooner.
const SLEEP: &str = "SELECT CAST(SLEEP(10) AS SIGNED)";

/// A sleep on MariaDB: the wait for the last transaction of the last replication domain.
const WAIT: &str =
    "SELECT CAST(MASTER_GTID_WAIT('4294967295-1-18446744073709551615', 10) AS SIGNED)";

/// Keeps the sleeps out of the log of slow statements.
const NEVER_SLOW: &str = "SET SESSION long_query_time = 31536000";

/// How long the end of the connection may take.
const CLOSING: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Sleeper {
    conn: MySqlConnection,
    sleep: &'static str,
}

/// Listens for a session, on this connection; `None`: not on this server.
pub(super) async fn listen(
    mut conn: MySqlConnection,
    session: Uuid,
) -> Result<Option<Box<dyn Listener>>, Fault> {
    let id = session.simple();
    let lock = format!("{NEVER_SLOW}; SELECT CAST(GET_LOCK('rowlock_{id}', 1) AS SIGNED)");
    // The connection before this one, if the server has not seen yet that it is gone.
    let before = in_one_transaction(&mut conn, &of_session(session)).await?;
    let (is_mariadb, has_pool) = (before[0].try_get(1)?, before[0].try_get(2)?);
    let sleep = match (is_mariadb, has_pool) {
        (true, true) => {
            let _ = conn.close().await;
            return Ok(None);
        }
        (true, false) => WAIT,
        (false, _) => SLEEP,
    };
    if let Some(before) = listener(before.first())? {
        let end = sqlx::raw_sql(AssertSqlSafe(kill(&before.to_string())));
        let _ = end.execute(&mut conn).await;
    }
    let locked = sqlx::raw_sql(AssertSqlSafe(lock))
        .fetch_one(&mut conn)
        .await?;
    if locked.try_get::<Option<i64>, _>(0)? != Some(1) {
        let why = "another connection listens for the session";
        return Err(Fault::said(FaultKind::LockTimeout, why));
    }
    Ok(Some(Box::new(Sleeper { conn, sleep })))
}

/// Reads the connection that listens for a session; whether the server is MariaDB; whether it has a pool of threads.
fn of_session(session: Uuid) -> String {
    let id = session.simple();
    format!(
        "SELECT CAST(IS_USED_LOCK('rowlock_{id}') AS SIGNED), VERSION() LIKE '%MariaDB%',
                @@GLOBAL.thread_handling = 'pool-of-threads'"
    )
}

/// KILL, as a text that proxies send on. A text that begins with KILL they carry out themselves, on a connection of
/// theirs that has this id by chance (MariaDB's proxy, Limitations, "KILL").
pub(super) fn kill(what: &str) -> String {
    format!("SET @rl_kill = 'KILL {what}'; PREPARE rl_kill FROM @rl_kill; EXECUTE rl_kill")
}

/// The connection in the first column.
fn listener(row: Option<&MySqlRow>) -> Result<Option<i64>, sqlx::Error> {
    row.map_or(Ok(None), |row| row.try_get(0))
}

/// Wakes connections that listen, in one round trip. If one is gone, those after it are not woken: they look by
/// themselves.
pub(super) async fn wake(conn: &mut MySqlConnection, listeners: impl IntoIterator<Item = i64>) {
    let mut listeners: Vec<i64> = listeners.into_iter().collect();
    listeners.sort_unstable();
    listeners.dedup();
    if listeners.is_empty() {
        return;
    }
    let kills: Vec<String> = listeners
        .iter()
        .map(|id| kill(&format!("QUERY {id}")))
        .collect();
    let wake = sqlx::raw_sql(AssertSqlSafe(kills.join("; ")));
    if let Err(error) = wake.execute(conn).await {
        tracing::debug!(%error, "{NOT_WOKEN}");
    }
}

/// Wakes the listener of a session.
pub(super) async fn wake_session(conn: &mut MySqlConnection, session: Uuid) {
    wake_found(conn, &of_session(session)).await;
}

/// Wakes the client whose waiter is the first one.
pub(super) async fn wake_first(conn: &mut MySqlConnection, name: &Name) {
    wake_found(conn, &fill(OF_FIRST, &[hex(name.as_bytes())])).await;
}

/// Wakes the listener that a statement finds. Its failure fails no verb, which has committed.
async fn wake_found(conn: &mut MySqlConnection, text: &str) {
    let found = in_one_transaction(conn, text).await;
    match found.and_then(|rows| listener(rows.first())) {
        Ok(found) => wake(conn, found).await,
        Err(error) => tracing::debug!(%error, "{NOT_WOKEN}"),
    }
}

const NOT_WOKEN: &str = "a client that waits was not woken: it looks by itself";

#[async_trait]
impl Listener for Sleeper {
    async fn next(&mut self) -> Result<News, Fault> {
        loop {
            let slept = sqlx::raw_sql(self.sleep).fetch_one(&mut self.conn).await;
            if slept.as_ref().is_err_and(is_interrupted) || slept?.try_get::<i64, _>(0)? == 1 {
                return Ok(News::Woken);
            }
        }
    }

    fn sleeps(&self) -> bool {
        true
    }

    async fn close(mut self: Box<Self>) {
        // (The end of the sleep comes first.)
        let ended = async {
            let _ = self.conn.ping().await;
            let _ = self.conn.close().await;
        };
        let _ = timeout(CLOSING, ended).await;
    }
}
