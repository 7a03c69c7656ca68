//! Transactions that write: they have the write lock from their start.

use sqlx::{Connection, SqliteConnection};

use crate::store::driver::write_turn;
use crate::store::verbs::fault::Fault;

/// Begins a transaction that has the write lock from its start.
pub(crate) const BEGIN_TO_WRITE: &str = "BEGIN IMMEDIATE";

tokio::task_local! {
    /// Commits on this connection do not wait for the disk (NORMAL). Otherwise they do (FULL, EXTRA), or that is the
    /// application's choice (OFF).
    pub(super) static IS_RELAXED: bool;
}

/// Runs the work in a transaction that begins with the write lock.
pub(super) async fn in_a_transaction<T>(
    conn: &mut SqliteConnection,
    work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, sqlx::Error>,
) -> Result<T, Fault> {
    let _turn = write_turn::turn().await;
    begun_with(BEGIN_TO_WRITE, conn, work).await
}

/// Runs `work` in a transaction that is on the disk when it has ended. Other commits of a lane need not be.
pub(super) async fn durably<T>(
    conn: &mut SqliteConnection,
    work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, sqlx::Error>,
) -> Result<T, Fault> {
    let is_relaxed = match IS_RELAXED.try_with(|is| *is) {
        Ok(is) => is,
        Err(_) => is_relaxed(conn).await?,
    };
    if !is_relaxed {
        return in_a_transaction(conn, work).await;
    }
    let _turn = write_turn::turn().await;
    let begin = "PRAGMA synchronous = FULL; BEGIN IMMEDIATE";
    let result = begun_with(begin, conn, work).await;
    sqlx::raw_sql("PRAGMA synchronous = NORMAL")
        .execute(conn)
        .await?;
    result
}

pub(super) async fn is_relaxed(conn: &mut SqliteConnection) -> Result<bool, sqlx::Error> {
    let level: i64 = sqlx::query_scalar("PRAGMA synchronous")
        .fetch_one(conn)
        .await?;
    Ok(level == 1)
}

async fn begun_with<T>(
    begin: &'static str,
    conn: &mut SqliteConnection,
    work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, sqlx::Error>,
) -> Result<T, Fault> {
    let mut tx = conn.begin_with(begin).await?;
    match work(&mut tx).await {
        Ok(done) => {
            tx.commit().await?;
            Ok(done)
        }
        Err(error) => {
            // The first error tells more than an error of the rollback.
            let _ = tx.rollback().await;
            Err(error.into())
        }
    }
}
