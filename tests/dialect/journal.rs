//! SQLite: the journal mode of a file, and what a pool's options say of it.

use std::path::Path;
use std::time::Duration;

use rowlock::{ConnectError, Error, Rowlock};
use rowlock_test::take;
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteLockingMode, SqlitePoolOptions};

const TTL: Duration = Duration::from_secs(30);

fn new_file(dir: &Path) -> SqliteConnectOptions {
    let options = SqliteConnectOptions::new().filename(dir.join("new.db"));
    options.create_if_missing(true)
}

async fn pool(options: SqliteConnectOptions) -> SqlitePool {
    // A connection that cannot be opened fails soon.
    let options = options.busy_timeout(Duration::from_millis(500));
    let pool = SqlitePoolOptions::new().max_connections(3);
    pool.connect_with(options).await.unwrap()
}

/// rowlock and the application use the file beside each other, each with several connections, and again after a start.
async fn both_use(pool: &SqlitePool) -> String {
    for table in ["one", "two"] {
        let rowlock = Rowlock::from_pool(pool).await.unwrap();
        let _held = take(&rowlock, table, TTL).await;
        let mut others = Vec::new();
        for _ in 0..3 {
            others.push(pool.acquire().await.unwrap());
        }
        drop(others);
        let make = format!("CREATE TABLE {table} (id INTEGER)");
        sqlx::raw_sql(sqlx::AssertSqlSafe(make))
            .execute(pool)
            .await
            .unwrap();
    }
    let mode = sqlx::query_scalar("PRAGMA journal_mode");
    mode.fetch_one(pool).await.unwrap()
}

#[tokio::test]
async fn a_new_file_of_a_pool_has_the_journal_that_the_pool_sets() {
    use SqliteJournalMode as Mode;
    for (set, mode) in [
        (None, "wal"),
        (Some(Mode::Wal), "wal"),
        (Some(Mode::Delete), "delete"),
        (Some(Mode::Truncate), "truncate"),
        (Some(Mode::Persist), "persist"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let options = new_file(dir.path());
        let options = match set {
            Some(set) => options.journal_mode(set),
            None => options,
        };
        assert_eq!(both_use(&pool(options).await).await, mode);
    }
    for text in ["DELETE", "delete"] {
        let dir = tempfile::tempdir().unwrap();
        let options = new_file(dir.path()).pragma("journal_mode", text);
        assert_eq!(both_use(&pool(options).await).await, "delete");
    }
}

#[tokio::test]
async fn a_pool_whose_connections_keep_the_file_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let options = new_file(dir.path()).locking_mode(SqliteLockingMode::Exclusive);
    let error = Rowlock::from_pool(&pool(options).await).await.unwrap_err();
    assert!(
        matches!(error, Error::Connect(ConnectError::Unwritable { .. })),
        "{error}"
    );
    assert!(error.to_string().contains("locking_mode"), "{error}");
}
