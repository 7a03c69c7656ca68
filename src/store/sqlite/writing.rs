//! Transactions that write: they have the write lock from their start.

use sqlx::{Connection, SqliteConnection};

use crate::store::driver::write_turn;
use crate::store::verbs::fault::Fault;

/// Begins a transaction that has the write lock from its start.
pub(crate) const BEGIN_TO_WRITE: &str = "BEGIN IMMEDIATE";

/// Runs the work in a transaction that begins with the write lock.
pub(super) async fn in_a_transaction<T>(
    conn: &mut SqliteConnection,
    work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, sqlx::Error>,
) -> Result<T, Fault> {
    let _turn = write_turn::turn().await;
    let mut tx = conn.begin_with(BEGIN_TO_WRITE).await?;
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

/// Runs `work` in a transaction that is on the disk when it has ended. Other commits of a lane need not be.
pub(super) async fn durably<T>(
    conn: &mut SqliteConnection,
    work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, sqlx::Error>,
) -> Result<T, Fault> {
    let level: i64 = sqlx::query_scalar("PRAGMA synchronous")
        .fetch_one(&mut *conn)
        .await?;
    // Only NORMAL is raised: FULL and EXTRA are durable already, and OFF is the application's choice.
    let raise = level == 1;
    if raise {
        sqlx::raw_sql("PRAGMA synchronous = FULL")
            .execute(&mut *conn)
            .await?;
    }
    let result = in_a_transaction(conn, work).await;
    if raise {
        sqlx::raw_sql("PRAGMA synchronous = NORMAL")
            .execute(conn)
            .await?;
    }
    result
}
