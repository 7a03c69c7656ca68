//! The queue in a file.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Row, SqliteConnection};
use tempfile::TempDir;

use crate::store::sqlite::Sqlite;
use crate::store::tests::{Place, TTL, queue_cases};
use crate::store::verbs::schema::SchemaStore;

#[cfg(target_os = "linux")]
#[path = "listener_tests.rs"]
mod listeners;

#[derive(Clone)]
struct File(Arc<TempDir>);

impl File {
    async fn new() -> Self {
        let file = Self(Arc::new(tempfile::tempdir().unwrap()));
        let mut conn = file.connect().await;
        SchemaStore::migrate(&mut conn, crate::store::verbs::schema::MigrateUntil::Now)
            .await
            .unwrap();
        conn.check_tables().await.unwrap();
        file
    }
}

impl Place for File {
    type Verbs = SqliteConnection;

    const AGO: &'static str = "(unixepoch() - 60) * 1000000";
    const LONG_AGO: &'static str = "(unixepoch() - 11 * 86400) * 1000000";
    const OLD_FENCE: &'static str = "(unixepoch() - 11 * 86400) * 1000000";
    const LOCK: &'static str = "BEGIN IMMEDIATE";
    const LOCKS_ALL: bool = true;
    const ROW_WAIT: Duration = Duration::from_millis(200);

    async fn connect(&self) -> SqliteConnection {
        let url = format!("sqlite:{}", self.0.path().join("queue.db").display());
        Sqlite::from_url(&url).unwrap().open(TTL).await.unwrap()
    }

    async fn run(conn: &mut SqliteConnection, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(conn)
            .await
            .unwrap();
    }

    async fn numbers(conn: &mut SqliteConnection, sql: &str) -> Vec<i64> {
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(conn).await;
        rows.unwrap().iter().map(|row| row.get(0)).collect()
    }
}

queue_cases!(File::new());
