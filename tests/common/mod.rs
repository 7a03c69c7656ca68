//! What the tests share: the four databases, each test with an empty one of its own.
#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "every test binary uses its part"
)]

mod innodb;
pub(crate) mod own;
mod tx;

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rowlock::{Engine, Held, Rowlock};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{
    AssertSqlSafe, Connection, MySqlConnection, MySqlPool, PgConnection, PgPool, SqlitePool,
};

pub(crate) use tx::{Tx, on_tx};

/// All engines, as the tests name them.
pub(crate) const ENGINES: [Engine; 4] = [
    Engine::Sqlite,
    Engine::Postgres,
    Engine::MariaDb,
    Engine::MySql,
];

/// The variable that holds a server's URL.
pub(crate) fn variable(engine: Engine) -> String {
    format!("ROWLOCK_TEST_{}_URL", engine.name().to_uppercase())
}

/// The URL of a server on which databases may be made.
fn server(engine: Engine) -> String {
    let variable = variable(engine);
    std::env::var(&variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run ./test.sh, which starts the servers, or set it to a URL")
    })
}

/// An empty database, dropped with the value.
#[derive(Debug)]
pub(crate) struct Db {
    pub(crate) engine: Engine,
    pub(crate) url: String,
    /// A connection pool of the application, as a user would have one.
    pub(crate) app: App,
    name: String,
    /// Where it is; for SQLite nothing.
    server: String,
    _dir: Option<tempfile::TempDir>,
}

/// The application's own pool.
#[derive(Debug, Clone)]
pub(crate) enum App {
    Postgres(PgPool),
    MySql(MySqlPool),
    Sqlite(SqlitePool),
}

/// Runs the same statement on whichever pool it is.
macro_rules! on_app {
    ($app:expr, $pool:ident => $body:expr) => {
        match $app {
            $crate::common::App::Postgres($pool) => $body,
            $crate::common::App::MySql($pool) => $body,
            $crate::common::App::Sqlite($pool) => $body,
        }
    };
}
pub(crate) use on_app;

impl App {
    /// A pool of another process on the same database.
    pub(crate) async fn connect(url: &str, connections: u32) -> Self {
        // Who waits long is slow, not wrong.
        let patience = Duration::from_mins(5);
        if url.starts_with("postgres") {
            let pool = PgPoolOptions::new().max_connections(connections);
            Self::Postgres(pool.acquire_timeout(patience).connect(url).await.unwrap())
        } else if url.starts_with("sqlite") {
            let pool = SqlitePoolOptions::new().max_connections(connections);
            Self::Sqlite(pool.acquire_timeout(patience).connect(url).await.unwrap())
        } else {
            let pool = MySqlPoolOptions::new().max_connections(connections);
            Self::MySql(pool.acquire_timeout(patience).connect(url).await.unwrap())
        }
    }

    /// One number.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        on_app!(self, pool => {
            sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(pool).await.unwrap()
        })
    }

    /// A transaction of the application's own, which may write.
    pub(crate) async fn begin(&self) -> Tx {
        match self {
            Self::Postgres(pool) => Tx::Postgres(pool.begin().await.unwrap()),
            Self::MySql(pool) => Tx::MySql(pool.begin().await.unwrap()),
            Self::Sqlite(pool) => Tx::Sqlite(pool.begin_with("BEGIN IMMEDIATE").await.unwrap()),
        }
    }

    /// The same at an isolation level. (SQLite has one.)
    pub(crate) async fn begin_at(&self, level: &str) -> Tx {
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

impl Db {
    pub(crate) async fn new(engine: Engine) -> Self {
        if engine == Engine::Sqlite {
            return Self::on(engine, "").await;
        }
        Self::on(engine, &server(engine)).await
    }

    /// On a server of the test's own, whose settings it may change.
    pub(crate) async fn on(engine: Engine, server: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rl_{}_{count}", std::process::id());
        match engine {
            Engine::Sqlite => {
                let dir = tempfile::tempdir().unwrap();
                let url = format!("sqlite:{}", dir.path().join("test.db").display());
                let made = format!("{url}?mode=rwc");
                let pool = SqlitePoolOptions::new()
                    .max_connections(4)
                    .connect(&made)
                    .await
                    .unwrap();
                sqlx::raw_sql("PRAGMA journal_mode = WAL")
                    .execute(&pool)
                    .await
                    .unwrap();
                Self {
                    engine,
                    url,
                    app: App::Sqlite(pool),
                    name,
                    server: server.to_owned(),
                    _dir: Some(dir),
                }
            }
            Engine::Postgres => {
                let mut admin = PgConnection::connect(server).await.unwrap();
                let sql = format!("CREATE DATABASE {name}");
                sqlx::raw_sql(AssertSqlSafe(sql))
                    .execute(&mut admin)
                    .await
                    .unwrap();
                let url = with_database(server, &name);
                let pool = PgPoolOptions::new()
                    .max_connections(4)
                    .connect(&url)
                    .await
                    .unwrap();
                Self {
                    engine,
                    url,
                    app: App::Postgres(pool),
                    name,
                    server: server.to_owned(),
                    _dir: None,
                }
            }
            _ => {
                let mut admin = MySqlConnection::connect(server).await.unwrap();
                let sql = format!("CREATE DATABASE {name}");
                sqlx::raw_sql(AssertSqlSafe(sql))
                    .execute(&mut admin)
                    .await
                    .unwrap();
                let url = with_database(server, &name);
                // As ARCHITECTURE.md says ("A statement that is cut off and fails").
                let pool = MySqlPoolOptions::new()
                    .max_connections(4)
                    .after_release(|conn, _| {
                        Box::pin(async move {
                            let _ = conn.ping().await;
                            Ok(true)
                        })
                    })
                    .connect(&url)
                    .await
                    .unwrap();
                Self {
                    engine,
                    url,
                    app: App::MySql(pool),
                    name,
                    server: server.to_owned(),
                    _dir: None,
                }
            }
        }
    }

    /// A client with a connection, a renewal thread and everything of its own.
    pub(crate) async fn rowlock(&self) -> Rowlock {
        Rowlock::connect(&self.url).await.unwrap()
    }

    /// Runs a statement that reads the same on every engine.
    pub(crate) async fn execute(&self, sql: &str) -> u64 {
        on_app!(&self.app, pool => {
            sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(pool).await.unwrap().rows_affected()
        })
    }

    /// The same, for what may be refused.
    pub(crate) async fn try_execute(&self, sql: &str) -> Result<(), sqlx::Error> {
        on_app!(&self.app, pool => {
            sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(pool).await.map(|_| ())
        })
    }

    /// Damages a lock's row against the constraints, as an administrator could.
    pub(crate) async fn damage(&self, sql: &str) {
        self.damage_in("rowlock_lock", "rowlock_lock_held", sql)
            .await;
    }

    /// The same for a record.
    pub(crate) async fn damage_record(&self, sql: &str) {
        self.damage_in("rowlock_idempotency", "rowlock_idempotency_state", sql)
            .await;
    }

    async fn damage_in(&self, table: &str, constraint: &str, sql: &str) {
        if self.engine == Engine::Sqlite {
            // SQLite cannot drop a constraint; a session may ignore them.
            let mut conn = sqlx::SqliteConnection::connect(&self.url).await.unwrap();
            let sql = format!("PRAGMA ignore_check_constraints = ON; {sql}");
            sqlx::raw_sql(AssertSqlSafe(sql))
                .execute(&mut conn)
                .await
                .unwrap();
            conn.close().await.unwrap();
        } else {
            let mysql = self.engine == Engine::MySql;
            let drop = if mysql {
                "DROP CHECK"
            } else {
                "DROP CONSTRAINT"
            };
            self.execute(&format!("ALTER TABLE {table} {drop} {constraint}"))
                .await;
            self.execute(sql).await;
        }
    }

    /// One number.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        self.app.number(sql).await
    }

    /// How many transactions of this database's users are open on the server.
    pub(crate) async fn open_transactions(&self) -> i64 {
        let sql = match self.engine {
            Engine::Postgres => format!(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' \
                 AND pid <> pg_backend_pid() AND xact_start IS NOT NULL",
                self.name
            ),
            Engine::Sqlite => return self.sqlite_is_locked().await,
            _ => {
                let open = self.innodb_transactions().await.len();
                return i64::try_from(open).unwrap();
            }
        };
        self.number(&sql).await
    }

    /// How many of them wait for a lock.
    pub(crate) async fn waiting(&self) -> usize {
        match self.engine {
            Engine::Postgres => {
                let sql = "SELECT count(*) FROM pg_stat_activity \
                           WHERE datname = current_database() AND wait_event_type = 'Lock'";
                usize::try_from(self.number(sql).await).unwrap()
            }
            Engine::Sqlite => 0,
            _ => {
                let open = self.innodb_transactions().await;
                open.iter()
                    .filter(|text| text.contains("LOCK WAIT"))
                    .count()
            }
        }
    }

    /// 1 when somebody holds the write lock of the file.
    async fn sqlite_is_locked(&self) -> i64 {
        let App::Sqlite(pool) = &self.app else {
            unreachable!("only for SQLite")
        };
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

    /// Locks the row of `name` as somebody's long transaction would (SQLite: the whole file).
    pub(crate) async fn lock_row(&self, name: &str) -> Tx {
        let mut tx = self.begin().await;
        if self.engine != Engine::Sqlite {
            let sql = format!(
                "SELECT fence FROM rowlock_lock WHERE name = {} FOR UPDATE",
                self.bytes(name)
            );
            tx.number(&sql).await;
        }
        tx
    }

    /// The same with the record of `key`.
    pub(crate) async fn lock_record(&self, key: &str) -> Tx {
        let mut tx = self.begin().await;
        if self.engine != Engine::Sqlite {
            let key = self.bytes(key);
            tx.number(&format!(
                "SELECT attempt FROM rowlock_idempotency WHERE idempotency_key = {key} FOR UPDATE"
            ))
            .await;
        }
        tx
    }

    /// A transaction of the application's own, which may write.
    pub(crate) async fn begin(&self) -> Tx {
        self.app.begin().await
    }

    /// The same at an isolation level. (SQLite has one.)
    pub(crate) async fn begin_at(&self, level: &str) -> Tx {
        self.app.begin_at(level).await
    }

    /// The bytes of `name` as a literal of this engine.
    pub(crate) fn bytes(&self, name: &str) -> String {
        let hex = name
            .bytes()
            .fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
        match self.engine {
            Engine::Postgres => format!("'\\x{hex}'::bytea"),
            _ => format!("x'{hex}'"),
        }
    }

    /// Drops the database. A test that panics leaves it to the server's end.
    pub(crate) async fn remove(self) {
        on_app!(&self.app, pool => pool.close().await);
        match self.engine {
            Engine::Sqlite => {}
            Engine::Postgres => {
                let mut admin = PgConnection::connect(&self.server).await.unwrap();
                let sql = format!("DROP DATABASE {} WITH (FORCE)", self.name);
                sqlx::raw_sql(AssertSqlSafe(sql))
                    .execute(&mut admin)
                    .await
                    .unwrap();
            }
            _ => {
                let mut admin = MySqlConnection::connect(&self.server).await.unwrap();
                let sql = format!("DROP DATABASE {}", self.name);
                sqlx::raw_sql(AssertSqlSafe(sql))
                    .execute(&mut admin)
                    .await
                    .unwrap();
            }
        }
    }
}

/// `url` for another user, whose password is `password`.
pub(crate) fn as_user(url: &str, user: &str, password: &str) -> String {
    let authority = url.find("://").unwrap() + 3;
    let host = url[authority..]
        .find('@')
        .map_or(authority, |at| authority + at + 1);
    format!("{}{user}:{password}@{}", &url[..authority], &url[host..])
}

/// The levels of isolation that an application may choose.
pub(crate) const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

/// The leases of all records that run end now, as if their processes had stood still for long. (They renew them when they
/// wake up.)
pub(crate) async fn lapse(db: &Db) {
    let past = match db.engine {
        Engine::Postgres => "clock_timestamp() - interval '1 second'",
        Engine::Sqlite => "0",
        _ => "UTC_TIMESTAMP(6) - INTERVAL 1 SECOND",
    };
    let lapse =
        format!("UPDATE rowlock_idempotency SET lease_until = {past} WHERE state = 'running'");
    db.execute(&lapse).await;
}

pub(crate) fn with_database(server: &str, name: &str) -> String {
    let (base, query) = server
        .split_once('?')
        .map_or((server, ""), |(base, query)| (base, query));
    let authority = base.find("://").map_or(0, |at| at + 3);
    let end = base[authority..]
        .find('/')
        .map_or(base.len(), |at| authority + at);
    let question = if query.is_empty() { "" } else { "?" };
    format!("{}/{name}{question}{query}", &base[..end])
}

/// Waits until `condition` holds. A minute is for what never comes to show: no test measures with it.
pub(crate) async fn eventually<F: Future<Output = bool>>(
    what: &str,
    mut condition: impl FnMut() -> F,
) {
    let deadline = tokio::time::Instant::now() + Duration::from_mins(1);
    while !condition().await {
        assert!(
            tokio::time::Instant::now() < deadline,
            "not within a minute: {what}"
        );
        // What is waited for needs the machine, too.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The guard of an attempt that must succeed.
pub(crate) async fn take(rowlock: &Rowlock, name: &str, ttl: Duration) -> Held {
    rowlock
        .lock(name)
        .ttl(ttl)
        .try_acquire()
        .await
        .unwrap()
        .held()
        .expect("the name is free")
}

/// Waits until the lease was renewed once more.
pub(crate) async fn renewed(held: &Held) {
    let until = held.deadline();
    while held.deadline() == until {
        tokio::task::yield_now().await;
    }
}

/// A test of a promise, run on every engine: `sqlite::name`, `postgres::name`, …
macro_rules! on_every_engine {
    ($($(#[$meta:meta])* async fn $name:ident($db:ident: &Db) $body:block)*) => {
        mod promise {
            use super::*;
            $($(#[$meta])* pub(super) async fn $name($db: &Db) $body)*
        }
        on_every_engine!(@engine sqlite Sqlite $($name)*);
        on_every_engine!(@engine postgres Postgres $($name)*);
        on_every_engine!(@engine mariadb MariaDb $($name)*);
        on_every_engine!(@engine mysql MySql $($name)*);
    };
    (@engine $module:ident $engine:ident $($name:ident)*) => {
        mod $module {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    let db = Db::new(rowlock::Engine::$engine).await;
                    // A promise that is broken may show as an event that never comes.
                    let test = super::promise::$name(&db);
                    tokio::time::timeout(std::time::Duration::from_mins(2), test)
                        .await
                        .expect("done within two minutes");
                    db.remove().await;
                }
            )*
        }
    };
}
pub(crate) use on_every_engine;
