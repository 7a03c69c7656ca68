//! PostgreSQL's advisory locks, in a session: a held lock has a connection to itself.

use async_trait::async_trait;
use sqlx::PgPool;
use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgPoolOptions;

use crate::Failure;
use crate::locking::{Contender, Held, POOL_WAIT};

pub(crate) struct Client {
    pool: PgPool,
}

impl Client {
    pub(crate) async fn connect(url: &str, connections: u32) -> Result<Self, Failure> {
        let pool = PgPoolOptions::new()
            .min_connections(connections)
            .max_connections(connections)
            .acquire_timeout(POOL_WAIT)
            // A ping before every statement would be a round trip more.
            .test_before_acquire(false);
        let pool = pool.connect(url).await?;
        Ok(Self { pool })
    }
}

struct Lock {
    conn: PoolConnection<Postgres>,
    name: String,
}

#[async_trait]
impl Contender for Client {
    async fn acquire(&self, _task: u32, name: &str) -> Result<Box<dyn Held>, Failure> {
        let mut conn = self.pool.acquire().await?;
        let lock = sqlx::query("SELECT pg_advisory_lock(hashtextextended($1, 0))");
        lock.bind(name).execute(&mut *conn).await?;
        let name = name.to_owned();
        Ok(Box::new(Lock { conn, name }))
    }
}

#[async_trait]
impl Held for Lock {
    async fn release(mut self: Box<Self>) -> Result<(), Failure> {
        let unlock = sqlx::query_scalar("SELECT pg_advisory_unlock(hashtextextended($1, 0))");
        let was_held: bool = unlock.bind(&self.name).fetch_one(&mut *self.conn).await?;
        if was_held {
            Ok(())
        } else {
            Err(format!("{} was not held at its release", self.name).into())
        }
    }
}
