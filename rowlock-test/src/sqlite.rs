//! SQLite: a file in a temporary folder.

use sqlx::SqlitePool;
use sqlx::sqlite::SqlitePoolOptions;

use crate::kind::{Kind, New};
use crate::{App, Db};

pub(crate) const KIND: Kind = Kind {
    one_writer: true,
    has_server: false,
    refuses_newer_rows: false,
    waits_for_leases: false,
    gives_names_back: false,
    tells_changed_rows: true,
    nowhere: "sqlite:/no/such/folder/locks.db",
    readable: "",
    // SQLite does so itself when the disk is full.
    ends: &["ROLLBACK"],
    // A transaction that writes has the whole file.
    lock_table: "UPDATE rowlock_lock SET fence = fence",
    serializable: None,
    share: "",
    settings: None,
    unless_exists: |key| format!(" ON CONFLICT ({key}) DO NOTHING"),
    refuse: |table, column, bytes| {
        format!(
            "CREATE TRIGGER refused BEFORE UPDATE ON {table} WHEN NEW.{column} = {bytes} \
             BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )
    },
    end_idle: None,
    micros: "CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000",
    now: "CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000",
    moved: |time, seconds| format!("{time} + {seconds} * 1000000"),
    bytes: |hex| format!("x'{hex}'"),
    // SQLite cannot drop a constraint, but a session may ignore all.
    unchecked: |_, _, sql| {
        let ignore = "PRAGMA ignore_check_constraints";
        format!("{ignore} = ON; {sql}; {ignore} = OFF")
    },
    create: |_, _| Box::pin(create()),
    drop: |_, _| Box::pin(async {}),
    open_transactions: |db| Box::pin(is_locked(pool(db))),
    waiting: |_| Box::pin(async { 0 }),
    clients: |db| Box::pin(async { open_files(db) - i64::from(pool(db).size()) }),
};

fn pool(db: &Db) -> &SqlitePool {
    let App::Sqlite(pool) = &db.app else {
        unreachable!("`create` makes it")
    };
    pool
}

async fn create() -> New {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("test.db").display());
    let pool = SqlitePoolOptions::new().max_connections(4);
    let pool = pool.connect(&format!("{url}?mode=rwc")).await.unwrap();
    let wal = sqlx::raw_sql("PRAGMA journal_mode = WAL");
    wal.execute(&pool).await.unwrap();
    (url, App::Sqlite(pool), Some(dir))
}

/// How many times this process has the file open.
fn open_files(db: &Db) -> i64 {
    let file = db.url.trim_start_matches("sqlite:");
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let open = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    let count = open.filter(|path| path.to_str() == Some(file)).count();
    i64::try_from(count).unwrap()
}

/// 1 when a transaction holds the write lock of the file.
async fn is_locked(pool: &SqlitePool) -> i64 {
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
