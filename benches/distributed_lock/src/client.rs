//! The crate distributed-lock-postgres: advisory locks in a session.

use async_trait::async_trait;
use distributed_lock_core::traits::{DistributedLock, LockHandle, LockProvider};
use distributed_lock_postgres::PostgresLockProvider;
use distributed_lock_postgres::handle::PostgresLockHandle;
use sqlx::postgres::PgPoolOptions;

use crate::Failure;
use crate::locking::{Contender, Held, POOL_WAIT};

pub(crate) struct Client {
    provider: PostgresLockProvider,
}

impl Client {
    /// With a pool as large as that of the other contenders that need a connection for each lock.
    pub(crate) async fn connect(url: &str, connections: u32) -> Result<Self, Failure> {
        let pool = PgPoolOptions::new()
            .min_connections(connections)
            .max_connections(connections)
            .acquire_timeout(POOL_WAIT)
            .test_before_acquire(false);
        let pool = pool.connect(url).await?;
        let provider = PostgresLockProvider::builder().pool(pool).build().await?;
        Ok(Self { provider })
    }
}

#[async_trait]
impl Contender for Client {
    async fn acquire(&self, _task: u32, name: &str) -> Result<Box<dyn Held>, Failure> {
        let lock = self.provider.create_lock(name);
        Ok(Box::new(lock.acquire(None).await?))
    }
}

#[async_trait]
impl Held for PostgresLockHandle {
    /// The crate does not tell whether the lock was held.
    async fn release(self: Box<Self>) -> Result<(), Failure> {
        Ok(LockHandle::release(*self).await?)
    }
}
