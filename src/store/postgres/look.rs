//! What a new connection reads about its server.

use std::time::{Duration, Instant};

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgConnection, Row};

use crate::store::verbs::fault::Fault;

/// `pg_stat_get_activity` lets a user see its own sessions.
const LOOK: &str = "
SELECT pg_backend_pid(),
       (SELECT (extract(epoch FROM clock_timestamp() - backend_start) * 1000000)::bigint
        FROM pg_stat_get_activity(pg_backend_pid())),
       current_setting('default_transaction_isolation'),
       pg_is_in_recovery(),
       current_setting('transaction_read_only')::boolean,
       CASE WHEN current_schema() IS NULL THEN current_setting('search_path') END";

/// What a new connection reads about its server.
#[derive(Debug)]
pub(super) struct ServerLook {
    /// The server's process.
    pub(super) process: i32,
    /// The process is older than the connection, so it has served other connections.
    pub(super) reused: bool,
    pub(super) isolation: String,
    pub(super) standby: bool,
    pub(super) read_only: bool,
    /// The search path, when none of its schemas exists.
    pub(super) lost_path: Option<String>,
}

pub(super) async fn open(options: &PgConnectOptions) -> Result<(PgConnection, ServerLook), Fault> {
    let began = Instant::now();
    let mut conn = options.connect().await?;
    let row = sqlx::raw_sql(LOOK).fetch_one(&mut conn).await?;
    let age: Option<i64> = row.try_get(1)?;
    let age = Duration::from_micros(age.unwrap_or_default().max(0).unsigned_abs());
    let look = ServerLook {
        process: row.try_get(0)?,
        reused: age > began.elapsed(),
        isolation: row.try_get(2)?,
        standby: row.try_get(3)?,
        read_only: row.try_get(4)?,
        lost_path: row.try_get(5)?,
    };
    Ok((conn, look))
}
