//! SQLite: a file in a temporary folder.

use rowlock::Engine;
use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{AssertSqlSafe, Connection, SqliteConnection, SqlitePool};
use tokio::sync::OnceCell;

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
    create: |_, name| Box::pin(create(name, None)),
    drop: |_, _| Box::pin(async {}),
    create_migrated: |_, _, name| {
        Box::pin(async {
            static MIGRATED: OnceCell<Vec<u8>> = OnceCell::const_new();
            create(name, Some(MIGRATED.get_or_init(migrated).await)).await
        })
    },
    drop_migrated: |_, _| Box::pin(async {}),
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

/// Makes a file, with the content of a migrated one if there is one.
async fn create(name: String, content: Option<&Vec<u8>>) -> New {
    let dir = tempfile::Builder::new().prefix(&name).tempdir().unwrap();
    let file = dir.path().join("test.db");
    if let Some(content) = content {
        std::fs::write(&file, content).unwrap();
    }
    let url = format!("sqlite:{}", file.display());
    if content.is_some() {
        // Not by the pool: a connection that has read the file delays the end of the others.
        let mut conn = SqliteConnection::connect(&url).await.unwrap();
        let own_id = sqlx::raw_sql("UPDATE rowlock_database SET id = randomblob(16)");
        own_id.execute(&mut conn).await.unwrap();
        conn.close().await.unwrap();
    }
    let pool = SqlitePoolOptions::new().max_connections(4);
    let pool = pool.connect(&format!("{url}?mode=rwc")).await.unwrap();
    let app = App::Sqlite(pool.clone());
    if content.is_none() {
        let wal = sqlx::raw_sql("PRAGMA journal_mode = WAL");
        wal.execute(&pool).await.unwrap();
    }
    New {
        name,
        url,
        app,
        dir: Some(dir),
    }
}

/// The bytes of a file with the tables of rowlock.
async fn migrated() -> Vec<u8> {
    let new = create("rl_migrated".to_owned(), None).await;
    let App::Sqlite(pool) = &new.app else {
        unreachable!("`create` makes it")
    };
    let tables = rowlock::migration_sql(Engine::Sqlite, 0).unwrap();
    let tables = sqlx::raw_sql(AssertSqlSafe(tables));
    tables.execute(pool).await.unwrap();
    // The last connection that is closed moves the log into the file.
    pool.close().await;
    std::fs::read(new.url.trim_start_matches("sqlite:")).unwrap()
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
