//! A lock row by hand, through a pool of sqlx: one statement acquires, one releases. (On MySQL and MariaDB a name
//! without a row costs a second statement.)

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::pool::PoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{Connection, Database, MySql, Pool, Postgres, Sqlite};
use uuid::Uuid;

use super::patience::Patience;
use crate::Failure;
use crate::locking::{Contender, Held, POOL_WAIT};
use crate::servers::Place;

pub(crate) const TABLE: &str = "race_lock";

const CREATE_POSTGRES: &str = "CREATE TABLE IF NOT EXISTS race_lock (
    name bytea PRIMARY KEY, grant_id uuid, fence bigint NOT NULL, expires_at timestamptz
) WITH (fillfactor = 50)";
const CREATE_MYSQL: &str = "CREATE TABLE IF NOT EXISTS race_lock (
    name varbinary(255) PRIMARY KEY, grant_id binary(16), fence bigint NOT NULL, expires_at datetime(6)
)";
const CREATE_SQLITE: &str = "CREATE TABLE IF NOT EXISTS race_lock (
    name BLOB PRIMARY KEY, grant_id BLOB, fence INTEGER NOT NULL, expires_at INTEGER
) STRICT, WITHOUT ROWID";

const TAKE_POSTGRES: &str = "INSERT INTO race_lock AS l (name, grant_id, fence, expires_at)
    VALUES ($1, $2, 1, clock_timestamp() + interval '5 minutes')
    ON CONFLICT (name) DO UPDATE SET grant_id = $2, fence = l.fence + 1, expires_at = excluded.expires_at
    WHERE l.expires_at IS NULL OR l.expires_at <= clock_timestamp()";
const TAKE_SQLITE: &str = "INSERT INTO race_lock (name, grant_id, fence, expires_at)
    VALUES (?1, ?2, 1, unixepoch('subsec') * 1000000 + 300000000)
    ON CONFLICT (name) DO UPDATE SET grant_id = ?2, fence = fence + 1, expires_at = excluded.expires_at
    WHERE expires_at IS NULL OR expires_at <= unixepoch('subsec') * 1000000";
const TAKE_MYSQL: &str = "UPDATE race_lock
    SET grant_id = ?, fence = fence + 1, expires_at = SYSDATE(6) + INTERVAL 5 MINUTE
    WHERE name = ? AND (expires_at IS NULL OR expires_at <= SYSDATE(6))";
const MAKE_MYSQL: &str = "INSERT IGNORE INTO race_lock (grant_id, name, fence, expires_at)
    VALUES (?, ?, 1, SYSDATE(6) + INTERVAL 5 MINUTE)";

const FREE_POSTGRES: &str =
    "UPDATE race_lock SET grant_id = NULL, expires_at = NULL WHERE name = $1 AND grant_id = $2";
const FREE_OTHERS: &str =
    "UPDATE race_lock SET grant_id = NULL, expires_at = NULL WHERE name = ? AND grant_id = ?";

/// Makes the table.
pub(crate) async fn prepare(place: Place, url: &str) -> Result<(), Failure> {
    match place {
        Place::Sqlite => {
            // The table is made in WAL mode, so that no client has to change the mode.
            let mut conn = sqlx::SqliteConnection::connect_with(&file(url)?).await?;
            sqlx::raw_sql(CREATE_SQLITE).execute(&mut conn).await?;
            conn.close().await?;
        }
        Place::Postgres => {
            let mut conn = sqlx::PgConnection::connect(url).await?;
            let quiet = sqlx::raw_sql("SET client_min_messages = warning");
            quiet.execute(&mut conn).await?;
            sqlx::raw_sql(CREATE_POSTGRES).execute(&mut conn).await?;
        }
        _ => {
            let mut conn = sqlx::MySqlConnection::connect(url).await?;
            sqlx::raw_sql(CREATE_MYSQL).execute(&mut conn).await?;
        }
    }
    Ok(())
}

pub(crate) async fn connect(
    place: Place,
    url: &str,
    connections: u32,
) -> Result<Arc<dyn Contender>, Failure> {
    Ok(match place {
        Place::Sqlite => Arc::new(Client::<Sqlite> {
            pool: options(connections).connect_with(file(url)?).await?,
        }),
        Place::Postgres => Arc::new(Client::<Postgres> {
            pool: options(connections).connect(url).await?,
        }),
        _ => Arc::new(Client::<MySql> {
            pool: options(connections).connect(url).await?,
        }),
    })
}

fn options<DB: Database>(connections: u32) -> PoolOptions<DB> {
    PoolOptions::new()
        .min_connections(connections)
        .max_connections(connections)
        .acquire_timeout(POOL_WAIT)
        // A ping before every statement would be a round trip more.
        .test_before_acquire(false)
}

/// As safe as rowlock's own connection: WAL, no fsync per commit.
fn file(url: &str) -> Result<SqliteConnectOptions, Failure> {
    let options: SqliteConnectOptions = url.parse()?;
    let options = options
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal);
    let patient = options
        .synchronous(SqliteSynchronous::Normal)
        .busy_timeout(Duration::from_mins(1));
    Ok(patient)
}

struct Client<DB: Database> {
    pool: Pool<DB>,
}

struct Lock<DB: Database> {
    pool: Pool<DB>,
    name: String,
    grant_id: Uuid,
}

/// The statements of one engine.
#[async_trait]
trait Statements: Database {
    /// Whether the name was free.
    async fn take(pool: &Pool<Self>, name: &[u8], grant_id: Uuid) -> sqlx::Result<bool>;

    /// Whether the grant still had the name.
    async fn free(pool: &Pool<Self>, name: &[u8], grant_id: Uuid) -> sqlx::Result<bool>;
}

#[async_trait]
impl Statements for Postgres {
    async fn take(pool: &Pool<Self>, name: &[u8], grant_id: Uuid) -> sqlx::Result<bool> {
        let take = sqlx::query(TAKE_POSTGRES).bind(name).bind(grant_id);
        Ok(take.execute(pool).await?.rows_affected() == 1)
    }

    async fn free(pool: &Pool<Self>, name: &[u8], grant_id: Uuid) -> sqlx::Result<bool> {
        let free = sqlx::query(FREE_POSTGRES).bind(name).bind(grant_id);
        Ok(free.execute(pool).await?.rows_affected() == 1)
    }
}

#[async_trait]
impl Statements for MySql {
    async fn take(pool: &Pool<Self>, name: &[u8], grant_id: Uuid) -> sqlx::Result<bool> {
        for sql in [TAKE_MYSQL, MAKE_MYSQL] {
            let take = sqlx::query(sql).bind(grant_id).bind(name);
            if take.execute(pool).await?.rows_affected() == 1 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn free(pool: &Pool<Self>, name: &[u8], grant_id: Uuid) -> sqlx::Result<bool> {
        let free = sqlx::query(FREE_OTHERS).bind(name).bind(grant_id);
        Ok(free.execute(pool).await?.rows_affected() == 1)
    }
}

#[async_trait]
impl Statements for Sqlite {
    async fn take(pool: &Pool<Self>, name: &[u8], grant_id: Uuid) -> sqlx::Result<bool> {
        let take = sqlx::query(TAKE_SQLITE).bind(name).bind(grant_id);
        Ok(take.execute(pool).await?.rows_affected() == 1)
    }

    async fn free(pool: &Pool<Self>, name: &[u8], grant_id: Uuid) -> sqlx::Result<bool> {
        let free = sqlx::query(FREE_OTHERS).bind(name).bind(grant_id);
        Ok(free.execute(pool).await?.rows_affected() == 1)
    }
}

#[async_trait]
impl<DB: Statements> Contender for Client<DB> {
    async fn acquire(&self, _task: u32, name: &str) -> Result<Box<dyn Held>, Failure> {
        let grant_id = Uuid::new_v4();
        let mut patience = Patience::new();
        while !DB::take(&self.pool, name.as_bytes(), grant_id).await? {
            patience.pause().await;
        }
        let (pool, name) = (self.pool.clone(), name.to_owned());
        Ok(Box::new(Lock {
            pool,
            name,
            grant_id,
        }))
    }
}

#[async_trait]
impl<DB: Statements> Held for Lock<DB> {
    async fn release(self: Box<Self>) -> Result<(), Failure> {
        if DB::free(&self.pool, self.name.as_bytes(), self.grant_id).await? {
            Ok(())
        } else {
            Err(format!("{} was not held at its release", self.name).into())
        }
    }
}
