//! Bare SQL, as an application would write it by hand: one prepared statement per operation, on a separate connection.

use rowlock::Engine;
use sqlx::mysql::MySqlConnection;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::SqliteConnection;
use sqlx::{ConnectOptions, Connection};
use uuid::Uuid;

/// A connection to any engine.
#[derive(Debug)]
pub(crate) enum Bare {
    Postgres(PgConnection),
    MySql(MySqlConnection),
    Sqlite(SqliteConnection),
}

type Result<T> = std::result::Result<T, sqlx::Error>;

const CREATE_POSTGRES: &str = "CREATE TABLE IF NOT EXISTS bare_lock (
    name bytea PRIMARY KEY, grant_id uuid, fence bigint NOT NULL, expires_at timestamptz
) WITH (fillfactor = 50)";
const CREATE_MYSQL: &str = "CREATE TABLE IF NOT EXISTS bare_lock (
    name varbinary(255) PRIMARY KEY, grant_id binary(16), fence bigint NOT NULL, expires_at datetime(6)
)";
const CREATE_SQLITE: &str = "CREATE TABLE IF NOT EXISTS bare_lock (
    name BLOB PRIMARY KEY, grant_id BLOB, fence INTEGER NOT NULL, expires_at INTEGER
) STRICT, WITHOUT ROWID";

const UPSERT_POSTGRES: &str = "INSERT INTO bare_lock AS l (name, grant_id, fence, expires_at)
    VALUES ($1, $2, 1, clock_timestamp() + interval '30 seconds')
    ON CONFLICT (name) DO UPDATE SET grant_id = $2, fence = l.fence + 1,
        expires_at = clock_timestamp() + interval '30 seconds'
    WHERE l.expires_at IS NULL OR l.expires_at <= clock_timestamp()
    RETURNING fence";
const UPSERT_MYSQL: &str = "INSERT INTO bare_lock (name, grant_id, fence, expires_at)
    VALUES (?, ?, 1, SYSDATE(6) + INTERVAL 30 SECOND)
    ON DUPLICATE KEY UPDATE grant_id = VALUES(grant_id), fence = fence + 1, expires_at = VALUES(expires_at)";
const UPSERT_SQLITE: &str = "INSERT INTO bare_lock (name, grant_id, fence, expires_at)
    VALUES (?1, ?2, 1, unixepoch('subsec') * 1000000 + 30000000)
    ON CONFLICT (name) DO UPDATE SET grant_id = ?2, fence = fence + 1, expires_at = excluded.expires_at
    WHERE expires_at IS NULL OR expires_at <= unixepoch('subsec') * 1000000
    RETURNING fence";

const READ_BACK_MYSQL: &str = "SELECT fence FROM bare_lock WHERE name = ? AND grant_id = ?";

const FREE_POSTGRES: &str =
    "UPDATE bare_lock SET grant_id = NULL, expires_at = NULL WHERE name = $1 AND grant_id = $2";
const FREE_OTHERS: &str =
    "UPDATE bare_lock SET grant_id = NULL, expires_at = NULL WHERE name = ? AND grant_id = ?";

impl Bare {
    pub(crate) async fn connect(engine: Engine, url: &str) -> Result<Self> {
        Ok(match engine {
            Engine::Postgres => {
                let mut conn = PgConnection::connect(url).await?;
                sqlx::raw_sql("SET client_min_messages = warning")
                    .execute(&mut conn)
                    .await?;
                sqlx::raw_sql(CREATE_POSTGRES).execute(&mut conn).await?;
                Self::Postgres(conn)
            }
            Engine::Sqlite => {
                let options: sqlx::sqlite::SqliteConnectOptions = url.parse()?;
                // The same safety as rowlock's own connection: WAL, no fsync per commit.
                let options = options
                    .create_if_missing(true)
                    .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
                    .synchronous(sqlx::sqlite::SqliteSynchronous::Normal)
                    .busy_timeout(std::time::Duration::from_mins(1));
                let mut conn = options.connect().await?;
                sqlx::raw_sql(CREATE_SQLITE).execute(&mut conn).await?;
                Self::Sqlite(conn)
            }
            _ => {
                let mut conn = MySqlConnection::connect(url).await?;
                sqlx::raw_sql(CREATE_MYSQL).execute(&mut conn).await?;
                Self::MySql(conn)
            }
        })
    }

    /// One single-row upsert.
    pub(crate) async fn acquire(&mut self, name: &[u8], grant_id: Uuid) -> Result<()> {
        match self {
            Self::Postgres(conn) => {
                let upsert = sqlx::query(UPSERT_POSTGRES).bind(name).bind(grant_id);
                upsert.fetch_one(conn).await.map(drop)
            }
            Self::MySql(conn) => sqlx::query(UPSERT_MYSQL)
                .bind(name)
                .bind(grant_id)
                .execute(conn)
                .await
                .map(drop),
            Self::Sqlite(conn) => sqlx::query(UPSERT_SQLITE)
                .bind(name)
                .bind(grant_id)
                .fetch_all(conn)
                .await
                .map(drop),
        }
    }

    /// The second round trip on engines without RETURNING: who has the lock, and with which fence?
    pub(crate) async fn read_back(&mut self, name: &[u8], grant_id: Uuid) -> Result<()> {
        let Self::MySql(conn) = self else {
            return Ok(());
        };
        sqlx::query(READ_BACK_MYSQL)
            .bind(name)
            .bind(grant_id)
            .fetch_one(conn)
            .await
            .map(drop)
    }

    /// One single-row update.
    pub(crate) async fn release(&mut self, name: &[u8], grant_id: Uuid) -> Result<()> {
        match self {
            Self::Postgres(conn) => sqlx::query(FREE_POSTGRES)
                .bind(name)
                .bind(grant_id)
                .execute(conn)
                .await
                .map(drop),
            Self::MySql(conn) => sqlx::query(FREE_OTHERS)
                .bind(name)
                .bind(grant_id)
                .execute(conn)
                .await
                .map(drop),
            Self::Sqlite(conn) => sqlx::query(FREE_OTHERS)
                .bind(name)
                .bind(grant_id)
                .execute(conn)
                .await
                .map(drop),
        }
    }
}
