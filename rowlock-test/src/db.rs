//! A database for each test.

use rowlock::{Engine, Rowlock};
use sqlx::AssertSqlSafe;

use crate::kind::{Kind, New, engine_after};
use crate::urls::server;
use crate::{App, Tx, database_name, on_app, patience};

/// A database of one test, which [`remove`](Self::remove) drops.
#[derive(Debug)]
pub struct Db {
    pub engine: Engine,
    /// What the engine does in its own way.
    pub kind: &'static Kind,
    pub url: String,
    /// The application's connection pool.
    pub app: App,
    pub(crate) name: String,
    /// The URL of the server; empty where there is none.
    server: String,
    tables: Tables,
    _dir: Option<tempfile::TempDir>,
}

/// What is in a new database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tables {
    /// Nothing.
    None,
    /// The tables of rowlock, without a row of a lock or a key.
    Migrated,
}

impl Db {
    /// A database with the tables of rowlock, on the server that all tests share.
    pub async fn new(engine: Engine) -> Self {
        Self::shared(engine, Tables::Migrated).await
    }

    /// A database without tables, on the server that all tests share: for a test that is about migrations.
    pub async fn empty(engine: Engine) -> Self {
        Self::shared(engine, Tables::None).await
    }

    async fn shared(engine: Engine, tables: Tables) -> Self {
        if Kind::of(engine).has_server {
            Self::make(engine, &server(engine), tables).await
        } else {
            Self::make(engine, "", tables).await
        }
    }

    /// Makes a database without tables on a server that this test alone uses, and whose settings it may change.
    pub async fn on(engine: Engine, server: &str) -> Self {
        Self::make(engine, server, Tables::None).await
    }

    async fn make(engine: Engine, server: &str, tables: Tables) -> Self {
        let kind = Kind::of(engine);
        let New {
            name,
            url,
            app,
            dir,
        } = match tables {
            Tables::None => (kind.create)(server, database_name()).await,
            Tables::Migrated => (kind.create_migrated)(engine, server, database_name()).await,
        };
        Self {
            engine,
            kind,
            url,
            app,
            name,
            server: server.to_owned(),
            tables,
            _dir: dir,
        }
    }

    /// The engine that comes `n` places after this one in the list of engines, round and round.
    pub fn engine_after(&self, n: usize) -> Engine {
        engine_after(self.engine, n)
    }

    /// The name of the database.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether only one transaction at a time can write, and locks the whole database.
    pub fn one_writer(&self) -> bool {
        self.kind.one_writer
    }

    /// Whether there is a server process.
    pub fn has_server(&self) -> bool {
        self.kind.has_server
    }

    /// Connects a new client, with connections and threads of its own, as in another process.
    pub async fn rowlock(&self) -> Rowlock {
        // A busy machine may keep back an answer for long.
        let rowlock = Rowlock::builder().operation_timeout(patience() / 12);
        rowlock.connect(&self.url).await.unwrap()
    }

    /// Runs a statement that is the same on every engine.
    pub async fn execute(&self, sql: &str) -> u64 {
        self.app.execute(sql).await
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
        let damage = (self.kind.unchecked)(table, constraint, sql);
        self.execute(&damage).await;
    }

    /// Reads one number.
    pub async fn number(&self, sql: &str) -> i64 {
        self.app.number(sql).await
    }

    /// How many transactions of this database's users are open.
    pub async fn open_transactions(&self) -> i64 {
        (self.kind.open_transactions)(self).await
    }

    /// How many transactions of this database's users wait for a lock.
    pub async fn waiting(&self) -> i64 {
        (self.kind.waiting)(self).await
    }

    /// How many connections to this database rowlock's clients have.
    pub async fn clients(&self) -> i64 {
        (self.kind.clients)(self).await
    }

    /// Locks the row of `name`, as another client's long transaction would (where there is one writer: all rows).
    pub async fn lock_row(&self, name: &str) -> Tx {
        let mut tx = self.begin().await;
        if !self.one_writer() {
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
        if !self.one_writer() {
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
        (self.kind.bytes)(&hex)
    }

    /// A time, moved by so many seconds.
    pub fn moved(&self, time: &str, seconds: i64) -> String {
        (self.kind.moved)(time, seconds)
    }

    /// The time in so many seconds.
    pub fn from_now(&self, seconds: i64) -> String {
        self.moved(self.kind.now, seconds)
    }

    /// A time that is over.
    pub fn past(&self) -> String {
        self.from_now(-1)
    }

    /// A time that comes in a second.
    pub fn soon(&self) -> String {
        self.from_now(1)
    }

    /// A time that no test reaches.
    pub fn future(&self) -> String {
        self.from_now(3_600)
    }

    /// Gives the database up: nobody uses it any more. After a panic of the test, it stays until the server ends.
    pub async fn remove(self) {
        self.app.close().await;
        match self.tables {
            Tables::None => (self.kind.drop)(&self.server, &self.name).await,
            Tables::Migrated => {
                (self.kind.drop_migrated)(&self.server, &self.name).await;
            }
        }
    }
}

/// Ends the leases of all running records now, as if their processes had paused for long. (The processes renew the
/// leases when they wake up.)
pub async fn lapse(db: &Db) {
    let past = db.past();
    let lapse =
        format!("UPDATE rowlock_idempotency SET lease_until = {past} WHERE state = 'running'");
    db.execute(&lapse).await;
}
