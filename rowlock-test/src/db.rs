//! An empty database for each test.

use std::sync::atomic::{AtomicU32, Ordering};

use rowlock::{Engine, Rowlock};
use sqlx::AssertSqlSafe;

use crate::urls::{server, with_database};
use crate::{App, Tx, mysql, on_app, postgres, sqlite};

/// An empty database, dropped with [`remove`](Self::remove).
#[derive(Debug)]
pub struct Db {
    pub engine: Engine,
    pub url: String,
    /// The application's connection pool.
    pub app: App,
    pub(crate) name: String,
    /// The URL of the server; empty for SQLite.
    server: String,
    _dir: Option<tempfile::TempDir>,
}

impl Db {
    pub async fn new(engine: Engine) -> Self {
        if engine == Engine::Sqlite {
            return Self::on(engine, "").await;
        }
        Self::on(engine, &server(engine)).await
    }

    /// Makes a database on a server that this test alone uses, and whose settings it may change.
    pub async fn on(engine: Engine, server: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rl_{}_{count}", std::process::id());
        let (url, app, dir) = match engine {
            Engine::Sqlite => {
                let dir = tempfile::tempdir().unwrap();
                let url = format!("sqlite:{}", dir.path().join("test.db").display());
                let pool = sqlite::create(&url).await;
                (url, App::Sqlite(pool), Some(dir))
            }
            Engine::Postgres => {
                let url = with_database(server, &name);
                let pool = postgres::create(server, &name, &url).await;
                (url, App::Postgres(pool), None)
            }
            _ => {
                let url = with_database(server, &name);
                let pool = mysql::create(server, &name, &url).await;
                (url, App::MySql(pool), None)
            }
        };
        Self {
            engine,
            url,
            app,
            name,
            server: server.to_owned(),
            _dir: dir,
        }
    }

    /// Connects a new client, with connections and threads of its own, as in another process.
    pub async fn rowlock(&self) -> Rowlock {
        Rowlock::connect(&self.url).await.unwrap()
    }

    /// Runs a statement that is the same on every engine.
    pub async fn execute(&self, sql: &str) -> u64 {
        on_app!(&self.app, pool => {
            sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(pool).await.unwrap().rows_affected()
        })
    }

    /// Runs a statement that the server may refuse.
    pub async fn try_execute(&self, sql: &str) -> Result<(), sqlx::Error> {
        on_app!(&self.app, pool => {
            sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(pool).await.map(|_| ())
        })
    }

    /// Damages a lock's row against the constraints, as an administrator could.
    pub async fn damage(&self, sql: &str) {
        self.damage_in("rowlock_lock", "rowlock_lock_held", sql)
            .await;
    }

    /// Damages a record against the constraints.
    pub async fn damage_record(&self, sql: &str) {
        self.damage_in("rowlock_idempotency", "rowlock_idempotency_state", sql)
            .await;
    }

    async fn damage_in(&self, table: &str, constraint: &str, sql: &str) {
        let drop = match self.engine {
            Engine::Sqlite => return sqlite::damage(&self.url, sql).await,
            Engine::MySql => "DROP CHECK",
            _ => "DROP CONSTRAINT",
        };
        self.execute(&format!("ALTER TABLE {table} {drop} {constraint}"))
            .await;
        self.execute(sql).await;
    }

    /// Reads one number.
    pub async fn number(&self, sql: &str) -> i64 {
        self.app.number(sql).await
    }

    /// How many transactions of this database's users are open on the server.
    pub async fn open_transactions(&self) -> i64 {
        match &self.app {
            App::Postgres(_) => self.number(&postgres::open_transactions(&self.name)).await,
            App::Sqlite(pool) => sqlite::is_locked(pool).await,
            App::MySql(pool) => {
                let open = mysql::transactions(pool, &self.name).await;
                i64::try_from(open.len()).unwrap()
            }
        }
    }

    /// How many transactions of this database's users wait for a lock.
    pub async fn waiting(&self) -> usize {
        match &self.app {
            App::Postgres(_) => usize::try_from(self.number(postgres::WAITING).await).unwrap(),
            App::Sqlite(_) => 0,
            App::MySql(pool) => {
                let open = mysql::transactions(pool, &self.name).await;
                open.iter()
                    .filter(|text| text.contains("LOCK WAIT"))
                    .count()
            }
        }
    }

    /// Locks the row of `name`, as another client's long transaction would (SQLite: the whole file).
    pub async fn lock_row(&self, name: &str) -> Tx {
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

    /// Locks the record of `key`, as another client's long transaction would.
    pub async fn lock_record(&self, key: &str) -> Tx {
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

    /// Begins a transaction of the application, which may write.
    pub async fn begin(&self) -> Tx {
        self.app.begin().await
    }

    /// Begins a transaction at an isolation level. (SQLite has one level.)
    pub async fn begin_at(&self, level: &str) -> Tx {
        self.app.begin_at(level).await
    }

    /// The bytes of `name` as a literal of this engine.
    pub fn bytes(&self, name: &str) -> String {
        let hex = name
            .bytes()
            .fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
        match self.engine {
            Engine::Postgres => format!("'\\x{hex}'::bytea"),
            _ => format!("x'{hex}'"),
        }
    }

    /// Drops the database. After a panic of the test, the database stays until the server ends.
    pub async fn remove(self) {
        on_app!(&self.app, pool => pool.close().await);
        match self.engine {
            Engine::Sqlite => {}
            Engine::Postgres => postgres::drop(&self.server, &self.name).await,
            _ => mysql::drop(&self.server, &self.name).await,
        }
    }
}

/// Ends the leases of all running records now, as if their processes had paused for long. (The processes renew the leases when
/// they wake up.)
pub async fn lapse(db: &Db) {
    let past = match db.engine {
        Engine::Postgres => "clock_timestamp() - interval '1 second'",
        Engine::Sqlite => "0",
        _ => "UTC_TIMESTAMP(6) - INTERVAL 1 SECOND",
    };
    let lapse =
        format!("UPDATE rowlock_idempotency SET lease_until = {past} WHERE state = 'running'");
    db.execute(&lapse).await;
}
