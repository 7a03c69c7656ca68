//! Databases on PostgreSQL, and queries for their sessions.

use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};

/// How many transactions of the current database wait for a lock.
pub(crate) const WAITING: &str = "SELECT count(*) FROM pg_stat_activity \
     WHERE datname = current_database() AND wait_event_type = 'Lock'";

/// How many transactions of the database `name` are open.
pub(crate) fn open_transactions(name: &str) -> String {
    format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}' \
         AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"
    )
}

pub(crate) async fn create(server: &str, name: &str, url: &str) -> PgPool {
    administer(server, format!("CREATE DATABASE {name}")).await;
    let pool = PgPoolOptions::new().max_connections(4);
    pool.connect(url).await.unwrap()
}

pub(crate) async fn drop(server: &str, name: &str) {
    administer(server, format!("DROP DATABASE {name} WITH (FORCE)")).await;
}

async fn administer(server: &str, sql: String) {
    let mut admin = PgConnection::connect(server).await.unwrap();
    let sql = sqlx::raw_sql(AssertSqlSafe(sql));
    sql.execute(&mut admin).await.unwrap();
}

pub(crate) async fn promote(standby: &str) {
    let mut conn = PgConnection::connect(standby).await.unwrap();
    let promote = sqlx::raw_sql("SELECT pg_promote()");
    promote.execute(&mut conn).await.unwrap();
}
