//! The application's pool, on any engine.

use std::time::Duration;

use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{AssertSqlSafe, MySqlPool, PgPool, SqlitePool};

use crate::Tx;

/// The application's pool.
#[derive(Debug, Clone)]
pub enum App {
    Postgres(PgPool),
    MySql(MySqlPool),
    Sqlite(SqlitePool),
}

/// Runs the same code on the pool of any engine.
#[macro_export]
macro_rules! on_app {
    ($app:expr, $pool:ident => $body:expr) => {
        match $app {
            $crate::App::Postgres($pool) => $body,
            $crate::App::MySql($pool) => $body,
            $crate::App::Sqlite($pool) => $body,
        }
    };
}
impl App {
    /// A pool of another process on the same database.
    pub async fn connect(url: &str, connections: u32) -> Self {
        // A long wait is slow, but no failure.
        let timeout = Duration::from_mins(5);
        if url.starts_with("postgres") {
            let pool = PgPoolOptions::new().max_connections(connections);
            Self::Postgres(pool.acquire_timeout(timeout).connect(url).await.unwrap())
        } else if url.starts_with("sqlite") {
            let pool = SqlitePoolOptions::new().max_connections(connections);
            Self::Sqlite(pool.acquire_timeout(timeout).connect(url).await.unwrap())
        } else {
            let pool = MySqlPoolOptions::new().max_connections(connections);
            Self::MySql(pool.acquire_timeout(timeout).connect(url).await.unwrap())
        }
    }

    /// Reads one number.
    pub async fn number(&self, sql: &str) -> i64 {
        on_app!(self, pool => {
            sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(pool).await.unwrap()
        })
    }

    /// Begins a transaction of the application, which may write.
    pub async fn begin(&self) -> Tx {
        match self {
            Self::Postgres(pool) => Tx::Postgres(pool.begin().await.unwrap()),
            Self::MySql(pool) => Tx::MySql(pool.begin().await.unwrap()),
            Self::Sqlite(pool) => Tx::Sqlite(pool.begin_with("BEGIN IMMEDIATE").await.unwrap()),
        }
    }

    /// Begins a transaction at an isolation level. (SQLite has one level.)
    pub async fn begin_at(&self, level: &str) -> Tx {
        match self {
            Self::Postgres(pool) => {
                let begin = AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"));
                Tx::Postgres(pool.begin_with(begin).await.unwrap())
            }
            Self::MySql(pool) => {
                let set = format!("SET TRANSACTION ISOLATION LEVEL {level}; START TRANSACTION");
                Tx::MySql(pool.begin_with(AssertSqlSafe(set)).await.unwrap())
            }
            Self::Sqlite(_) => self.begin().await,
        }
    }
}
