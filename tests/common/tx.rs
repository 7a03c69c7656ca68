//! A transaction of the application's own, on whichever engine.

use std::time::Duration;

use rowlock::{Advance, Error, Held, Locked, Rowlock, TryLock, Version};
use sqlx::AssertSqlSafe;

/// An open transaction of the application's own.
#[derive(Debug)]
pub(crate) enum Tx {
    Postgres(sqlx::Transaction<'static, sqlx::Postgres>),
    MySql(sqlx::Transaction<'static, sqlx::MySql>),
    Sqlite(sqlx::Transaction<'static, sqlx::Sqlite>),
}

/// Runs the same on whichever transaction it is.
macro_rules! on_tx {
    ($tx:expr, $inner:ident => $body:expr) => {
        match $tx {
            $crate::common::Tx::Postgres($inner) => $body,
            $crate::common::Tx::MySql($inner) => $body,
            $crate::common::Tx::Sqlite($inner) => $body,
        }
    };
}
pub(crate) use on_tx;

impl Tx {
    pub(crate) async fn commit(self) -> Result<(), sqlx::Error> {
        on_tx!(self, tx => tx.commit().await)
    }

    /// Rolls back.
    pub(crate) async fn release(self) {
        on_tx!(self, tx => tx.rollback().await.unwrap());
    }

    pub(crate) async fn execute(&mut self, sql: &str) -> Result<u64, sqlx::Error> {
        let sql = AssertSqlSafe(sql.to_owned());
        on_tx!(self, tx => {
            let done = sqlx::raw_sql(sql).execute(&mut **tx).await?;
            Ok(done.rows_affected())
        })
    }

    pub(crate) async fn number(&mut self, sql: &str) -> i64 {
        let sql = AssertSqlSafe(sql.to_owned());
        on_tx!(self, tx => sqlx::query_scalar(sql).fetch_one(&mut **tx).await.unwrap())
    }

    pub(crate) async fn pin(&mut self, held: &Held) -> Result<(), Error> {
        on_tx!(self, tx => held.pin(tx).await)
    }

    pub(crate) async fn try_lock(
        &mut self,
        rowlock: &Rowlock,
        name: &str,
    ) -> Result<TryLock, Error> {
        on_tx!(self, tx => rowlock.in_tx(tx).lock(name).try_acquire().await)
    }

    /// Locks what must be free.
    pub(crate) async fn lock(&mut self, rowlock: &Rowlock, name: &str) -> Locked {
        let lock = self.try_lock(rowlock, name).await.unwrap();
        lock.locked().expect("the name is free")
    }

    pub(crate) async fn acquire(
        &mut self,
        rowlock: &Rowlock,
        name: &str,
        wait: Duration,
    ) -> Result<Locked, Error> {
        on_tx!(self, tx => rowlock.in_tx(tx).lock(name).wait(wait).acquire().await)
    }

    pub(crate) async fn lock_all(
        &mut self,
        rowlock: &Rowlock,
        names: &[&str],
    ) -> Result<TryLock, Error> {
        on_tx!(self, tx => rowlock.in_tx(tx).lock_all(names.iter().copied()).try_acquire().await)
    }

    pub(crate) async fn acquire_all(
        &mut self,
        rowlock: &Rowlock,
        names: &[&str],
    ) -> Result<Locked, Error> {
        on_tx!(self, tx => rowlock.in_tx(tx).lock_all(names.iter().copied()).acquire().await)
    }

    pub(crate) async fn version(
        &mut self,
        rowlock: &Rowlock,
        name: &str,
    ) -> Result<Version, Error> {
        on_tx!(self, tx => rowlock.in_tx(tx).version(name).await)
    }

    pub(crate) async fn advance(
        &mut self,
        rowlock: &Rowlock,
        version: &Version,
    ) -> Result<Advance, Error> {
        on_tx!(self, tx => rowlock.in_tx(tx).advance(version).await)
    }
}
