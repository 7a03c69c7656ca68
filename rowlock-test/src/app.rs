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
        Self::prepared(url, connections, "SELECT 1").await
    }

    /// As [`connect`](Self::connect). Each connection first runs this.
    pub async fn prepared(url: &str, connections: u32, sql: &str) -> Self {
        let engine = url.split_once(':').unwrap().0;
        let sql = match engine {
            "sqlite" => format!("PRAGMA busy_timeout = 30000; {sql}"),
            _ => sql.to_owned(),
        };
        macro_rules! connect {
            ($pool:ty) => {{
                let pool = <$pool>::new().max_connections(connections);
                // A long wait is slow, but no failure.
                let pool = pool.acquire_timeout(Duration::from_mins(5));
                let pool = pool.after_connect(move |conn, _| {
                    let sql = AssertSqlSafe(sql.clone());
                    Box::pin(async move { sqlx::raw_sql(sql).execute(conn).await.map(|_| ()) })
                });
                pool.connect(url).await.unwrap()
            }};
        }
        match engine {
            "postgres" | "postgresql" => Self::Postgres(connect!(PgPoolOptions)),
            "mysql" | "mariadb" => Self::MySql(connect!(MySqlPoolOptions)),
            "sqlite" => Self::Sqlite(connect!(SqlitePoolOptions)),
            other => panic!("no pool for {other}:"),
        }
    }

    /// Runs statements.
    pub async fn execute(&self, sql: &str) -> u64 {
        on_app!(self, pool => {
            sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(pool).await.unwrap().rows_affected()
        })
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
    /// Begins a transaction that cannot write. (On SQLite the connection stays so: take a pool of its own.)
    pub async fn begin_read_only(&self) -> Tx {
        let mut tx = self.begin_at("READ COMMITTED, READ ONLY").await;
        if let Tx::Sqlite(_) = tx {
            tx.execute("PRAGMA query_only = ON").await.unwrap();
        }
        tx
    }

    /// Closes its connections.
    pub async fn close(&self) {
        on_app!(self, pool => pool.close().await);
    }
}
