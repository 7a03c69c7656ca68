//! A transaction of the application, on any engine.

use std::time::Duration;

use rowlock::{Advance, Busy, Error, Held, Locked, MultiHeld, Rowlock, Version};
use sqlx::AssertSqlSafe;

/// What asking once came to.
#[derive(Debug)]
pub enum TryLock {
    Locked(Locked),
    Busy(Busy),
}

impl TryLock {
    fn of(locked: Result<Locked, Error>) -> Result<Self, Error> {
        match locked {
            Ok(locked) => Ok(Self::Locked(locked)),
            Err(Error::WaitTimeout { busy, .. }) => Ok(Self::Busy(*busy)),
            Err(error) => Err(error),
        }
    }

    pub fn locked(self) -> Option<Locked> {
        match self {
            Self::Locked(locked) => Some(locked),
            Self::Busy(_) => None,
        }
    }
}

/// An open transaction of the application.
#[derive(Debug)]
pub enum Tx {
    Postgres(sqlx::Transaction<'static, sqlx::Postgres>),
    MySql(sqlx::Transaction<'static, sqlx::MySql>),
    Sqlite(sqlx::Transaction<'static, sqlx::Sqlite>),
}

/// Runs the same code in a transaction of any engine.
#[macro_export]
macro_rules! on_tx {
    ($tx:expr, $inner:ident => $body:expr) => {
        match $tx {
            $crate::Tx::Postgres($inner) => $body,
            $crate::Tx::MySql($inner) => $body,
            $crate::Tx::Sqlite($inner) => $body,
        }
    };
}
impl Tx {
    pub async fn commit(self) -> Result<(), sqlx::Error> {
        on_tx!(self, tx => tx.commit().await)
    }

    /// Rolls back.
    pub async fn release(self) {
        on_tx!(self, tx => tx.rollback().await.unwrap());
    }

    pub async fn execute(&mut self, sql: &str) -> Result<u64, sqlx::Error> {
        let sql = AssertSqlSafe(sql.to_owned());
        on_tx!(self, tx => {
            let done = sqlx::raw_sql(sql).execute(&mut **tx).await?;
            Ok(done.rows_affected())
        })
    }

    pub async fn number(&mut self, sql: &str) -> i64 {
        let sql = AssertSqlSafe(sql.to_owned());
        on_tx!(self, tx => sqlx::query_scalar(sql).fetch_one(&mut **tx).await.unwrap())
    }

    pub async fn pin(&mut self, held: &Held) -> Result<(), Error> {
        on_tx!(self, tx => held.pin(tx).await)
    }

    pub async fn pin_all(&mut self, held: &MultiHeld) -> Result<(), Error> {
        on_tx!(self, tx => held.pin(tx).await)
    }

    pub async fn try_lock(&mut self, rowlock: &Rowlock, name: &str) -> Result<TryLock, Error> {
        let once = Duration::ZERO;
        let locked = on_tx!(self, tx => rowlock.in_tx(tx).lock(name).wait(once).acquire().await);
        TryLock::of(locked)
    }

    /// Locks a name that must be free.
    pub async fn lock(&mut self, rowlock: &Rowlock, name: &str) -> Locked {
        let lock = self.try_lock(rowlock, name).await.unwrap();
        lock.locked().expect("the name is free")
    }

    pub async fn acquire(
        &mut self,
        rowlock: &Rowlock,
        name: &str,
        wait: Duration,
    ) -> Result<Locked, Error> {
        on_tx!(self, tx => rowlock.in_tx(tx).lock(name).wait(wait).acquire().await)
    }

    pub async fn lock_all(&mut self, rowlock: &Rowlock, names: &[&str]) -> Result<TryLock, Error> {
        let (names, once) = (names.iter().copied(), Duration::ZERO);
        let locked =
            on_tx!(self, tx => rowlock.in_tx(tx).lock_all(names).wait(once).acquire().await);
        TryLock::of(locked)
    }

    pub async fn acquire_all(
        &mut self,
        rowlock: &Rowlock,
        names: &[&str],
    ) -> Result<Locked, Error> {
        on_tx!(self, tx => rowlock.in_tx(tx).lock_all(names.iter().copied()).acquire().await)
    }

    pub async fn version(&mut self, rowlock: &Rowlock, name: &str) -> Result<Version, Error> {
        on_tx!(self, tx => rowlock.in_tx(tx).version(name).await)
    }

    pub async fn advance(
        &mut self,
        rowlock: &Rowlock,
        version: &Version,
    ) -> Result<Advance, Error> {
        on_tx!(self, tx => rowlock.in_tx(tx).advance(version).await)
    }
}
