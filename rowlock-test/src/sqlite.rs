//! SQLite files, and whether one is locked.

use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{AssertSqlSafe, Connection, SqliteConnection, SqlitePool};

pub(crate) async fn create(url: &str) -> SqlitePool {
    let pool = SqlitePoolOptions::new().max_connections(4);
    let pool = pool.connect(&format!("{url}?mode=rwc")).await.unwrap();
    let wal = sqlx::raw_sql("PRAGMA journal_mode = WAL");
    wal.execute(&pool).await.unwrap();
    pool
}

/// Runs `sql` without checking constraints: SQLite cannot drop a constraint, but a session may ignore all.
pub(crate) async fn damage(url: &str, sql: &str) {
    let mut conn = SqliteConnection::connect(url).await.unwrap();
    let sql = format!("PRAGMA ignore_check_constraints = ON; {sql}");
    let sql = sqlx::raw_sql(AssertSqlSafe(sql));
    sql.execute(&mut conn).await.unwrap();
    conn.close().await.unwrap();
}

/// 1 when a transaction holds the write lock of the file.
pub(crate) async fn is_locked(pool: &SqlitePool) -> i64 {
    let mut conn = pool.acquire().await.unwrap();
    sqlx::raw_sql("PRAGMA busy_timeout = 0")
        .execute(&mut *conn)
        .await
        .unwrap();
    let got = sqlx::raw_sql("BEGIN IMMEDIATE; ROLLBACK")
        .execute(&mut *conn)
        .await;
    sqlx::raw_sql("PRAGMA busy_timeout = 5000")
        .execute(&mut *conn)
        .await
        .unwrap();
    i64::from(got.is_err())
}
