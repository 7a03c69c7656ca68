//! What the compiler says of a `commit()` in a closure that rowlock ends.

use std::future::{Ready, ready};

use sqlx::Database;

use super::RetryTx;
use crate::model::Error;

/// No type implements it.
#[diagnostic::on_unimplemented(
    message = "rowlock ends this transaction: it commits when the closure returns `Ok`, and rolls back when it returns `Err`",
    label = "leave this call out"
)]
pub trait EndedByCaller {}

impl<B: Database> RetryTx<B> {
    /// Does not compile: rowlock commits when the closure returns `Ok`.
    ///
    /// ```compile_fail
    /// # async fn f(rowlock: rowlock::Rowlock, pool: sqlx::SqlitePool) -> Result<(), rowlock::Error> {
    /// rowlock.retry().run(&pool, async |tx| {
    ///     tx.commit().await // "rowlock ends this transaction: it commits when the closure returns `Ok`, …"
    /// }).await
    /// # }
    /// ```
    pub fn commit(self) -> Ready<Result<(), Error>>
    where
        Self: EndedByCaller,
    {
        ready(Ok(()))
    }

    /// Does not compile: rowlock rolls back when the closure returns `Err`.
    pub fn rollback(self) -> Ready<Result<(), Error>>
    where
        Self: EndedByCaller,
    {
        ready(Ok(()))
    }
}
