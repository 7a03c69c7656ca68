//! The session store: one row per session, on the application's own pool.
//!
//! It saves a session only while the session exists: after a logout in one tab, a late request of another tab does not
//! bring it back. (A store that inserts or updates does.) The database's clock decides whether a session has expired.
//! The key is a digest, so a copy of the table logs nobody in.
//!
//! With `pins`, every write that happens under a lease [pins](rowlock::Held::pin) it in its transaction: the write
//! commits only if no other server was granted the lock meanwhile. And no session is saved without its lease, so a
//! route that lacks the lock shows itself. A handler that makes a session, or gives it a new id, leaves the save to
//! the `SessionManagerLayer`: a second save would be refused, because the request has no lease of the new id.

use std::fmt::Display;
use std::time::Duration;

use async_trait::async_trait;
#[cfg(feature = "postgres")]
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions};
use time::OffsetDateTime;
use tower_sessions::SessionStore;
use tower_sessions::session::{Id, Record};
use tower_sessions::session_store::{Error, Result};

use crate::session_lock::{digest, lease, lock_name};

/// Connections per server. rowlock has its own.
const CONNECTIONS: u32 = 8;

#[derive(Debug, Clone)]
enum Database {
    #[cfg(feature = "postgres")]
    Postgres(PgPool),
    Sqlite(SqlitePool),
}

/// The sessions of the shop.
#[derive(Debug, Clone)]
pub struct SqlStore {
    database: Database,
    pins: bool,
}

/// The statements that read the database's clock.
struct Sql {
    load: &'static str,
    remove_expired: &'static str,
}

#[cfg(feature = "postgres")]
const POSTGRES: Sql = Sql {
    load: "SELECT data, expires_at FROM web_sessions WHERE id = $1 AND expires_at > EXTRACT(EPOCH FROM now())",
    remove_expired: "DELETE FROM web_sessions WHERE expires_at <= EXTRACT(EPOCH FROM now())",
};

const SQLITE: Sql = Sql {
    load: "SELECT data, expires_at FROM web_sessions WHERE id = $1 AND expires_at > unixepoch()",
    remove_expired: "DELETE FROM web_sessions WHERE expires_at <= unixepoch()",
};

/// Runs `$body` with the pool and the statements of its engine.
macro_rules! on_database {
    ($store:expr, $pool:ident, $sql:ident => $body:expr) => {
        match &$store.database {
            #[cfg(feature = "postgres")]
            Database::Postgres($pool) => {
                let $sql = &POSTGRES;
                $body
            }
            Database::Sqlite($pool) => {
                let $sql = &SQLITE;
                $body
            }
        }
    };
}

/// Runs a statement, and returns the number of rows that it changed. With a pin if there is a lease and the store
/// pins.
macro_rules! write {
    ($store:expr, $sql:literal $(, $value:expr)*) => {
        on_database!($store, pool, _sql => {
            let statement = sqlx::query($sql)$(.bind($value))*;
            match lease().filter(|_| $store.pins) {
                None => statement.execute(pool).await.map_err(backend)?.rows_affected(),
                Some(held) => {
                    let mut tx = pool.begin().await.map_err(backend)?;
                    let done = statement.execute(&mut *tx).await.map_err(backend)?;
                    held.pin(&mut tx).await.map_err(backend)?;
                    tx.commit().await.map_err(backend)?;
                    done.rows_affected()
                }
            }
        })
    };
}

#[async_trait]
impl SessionStore for SqlStore {
    async fn create(&self, record: &mut Record) -> Result<()> {
        let insert = async |record: &Record| -> Result<bool> {
            let rows = write!(
                self,
                "INSERT INTO web_sessions (id, data, expires_at) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING",
                digest(&record.id),
                data(record)?,
                record.expiry_date.unix_timestamp()
            );
            Ok(rows == 1)
        };
        while !insert(record).await? {
            record.id = Id::default();
        }
        Ok(())
    }

    async fn save(&self, record: &Record) -> Result<()> {
        let name = lock_name(&record.id);
        if self.pins && lease().is_none_or(|held| held.name().as_str() != name) {
            return Err(backend("a session is saved outside of its lock"));
        }
        let rows = write!(
            self,
            "UPDATE web_sessions SET data = $2, expires_at = $3 WHERE id = $1",
            digest(&record.id),
            data(record)?,
            record.expiry_date.unix_timestamp()
        );
        let ended = || backend("the session ended before it was saved");
        (rows == 1).then_some(()).ok_or_else(ended)
    }

    async fn load(&self, id: &Id) -> Result<Option<Record>> {
        let row: Option<(String, i64)> = on_database!(self, pool, sql => {
            let found = sqlx::query_as(sql.load).bind(digest(id)).fetch_optional(pool);
            found.await.map_err(backend)?
        });
        let record = |(data, expires_at): (String, i64)| {
            let decode = |error: &dyn Display| Error::Decode(error.to_string());
            Ok(Record {
                id: *id,
                data: serde_json::from_str(&data).map_err(|error| decode(&error))?,
                expiry_date: OffsetDateTime::from_unix_timestamp(expires_at)
                    .map_err(|error| decode(&error))?,
            })
        };
        row.map(record).transpose()
    }

    async fn delete(&self, id: &Id) -> Result<()> {
        write!(self, "DELETE FROM web_sessions WHERE id = $1", digest(id));
        Ok(())
    }
}

fn data(record: &Record) -> Result<String> {
    serde_json::to_string(&record.data).map_err(|error| Error::Encode(error.to_string()))
}

fn backend(error: impl Display) -> Error {
    Error::Backend(error.to_string())
}

impl SqlStore {
    /// Connects. It makes no table.
    ///
    /// # Errors
    ///
    /// The URL is invalid, or the database is out of reach.
    pub async fn open(url: &str, pins: bool) -> std::result::Result<Self, sqlx::Error> {
        #[cfg(feature = "postgres")]
        if url.starts_with("postgres") {
            let pool = PgPoolOptions::new().max_connections(CONNECTIONS);
            let database = Database::Postgres(pool.connect(url).await?);
            return Ok(Self { database, pins });
        }
        let options: SqliteConnectOptions = url.parse()?;
        let options = options
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(30));
        let pool = SqlitePoolOptions::new().max_connections(CONNECTIONS);
        let database = Database::Sqlite(pool.connect_with(options).await?);
        Ok(Self { database, pins })
    }

    /// Makes the table again, without sessions.
    ///
    /// # Errors
    ///
    /// The database refuses it, or is out of reach.
    pub async fn make_table(&self) -> std::result::Result<(), sqlx::Error> {
        self.remove_table().await?;
        on_database!(self, pool, _sql => sqlx::raw_sql(
            "CREATE TABLE web_sessions (id VARCHAR(64) PRIMARY KEY, data TEXT NOT NULL, expires_at BIGINT NOT NULL)",
        ).execute(pool).await.map(drop))
    }

    /// Removes the table.
    ///
    /// # Errors
    ///
    /// The database refuses it, or is out of reach.
    pub async fn remove_table(&self) -> std::result::Result<(), sqlx::Error> {
        on_database!(self, pool, _sql => {
            sqlx::raw_sql("DROP TABLE IF EXISTS web_sessions").execute(pool).await.map(drop)
        })
    }

    /// Removes the sessions that have expired, and returns how many there were. Call it from time to time.
    ///
    /// # Errors
    ///
    /// The database is out of reach.
    pub async fn remove_expired(&self) -> std::result::Result<u64, sqlx::Error> {
        on_database!(self, pool, sql => {
            let done = sqlx::query(sql.remove_expired).execute(pool).await;
            done.map(|done| done.rows_affected())
        })
    }
}
