//! Transactions that write: they have the write lock from their start.

use std::future::poll_fn;

use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Connection, Either, Executor, QueryBuilder, Sqlite, SqliteConnection};

use crate::model::FaultKind;
use crate::store::driver::writers;
use crate::store::verbs::fault::Fault;

/// Begins a transaction that has the write lock from its start.
pub(crate) const BEGIN_TO_WRITE: &str = "BEGIN IMMEDIATE";

/// Runs the work in a transaction that begins with the write lock.
pub(super) async fn in_a_transaction<T>(
    conn: &mut SqliteConnection,
    work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, sqlx::Error>,
) -> Result<T, Fault> {
    let _turn = writers::turn().await;
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
    let level = read_level(conn).await?;
    if level == NORMAL {
        sqlx::raw_sql(RAISE).execute(&mut *conn).await?;
    }
    let result = in_a_transaction(conn, work).await;
    if level == NORMAL {
        set_level(conn, level).await?;
    }
    result
}

/// Runs statements in a transaction that is on the disk when it has ended. Returns the rows of each statement.
///
/// `push` writes the statements, each with its semicolon, and returns how many there are. They are one text, so a
/// call takes two hops to SQLite's thread instead of eight. sqlx does not know of the transaction: a connection whose
/// call is cut off is dropped (`runtime/batch/link.rs`).
pub(super) async fn rows_durably(
    conn: &mut SqliteConnection,
    push: impl FnOnce(&mut QueryBuilder<Sqlite>) -> usize,
) -> Result<Vec<Vec<SqliteRow>>, Fault> {
    let level = read_level(conn).await?;
    let _turn = writers::turn().await;
    let (raise, before) = if level == NORMAL { (RAISE, 2) } else { ("", 1) };
    let mut text = QueryBuilder::new(raise);
    text.push(BEGIN_TO_WRITE).push(";");
    let statements = push(&mut text);
    text.push("COMMIT; PRAGMA synchronous = ").push(level);
    match rows(conn, text).await {
        // The answers of COMMIT and PRAGMA follow.
        Ok(mut rows) if rows.len() >= before + statements + 2 => {
            Ok(rows.drain(before..before + statements).collect())
        }
        // SQLite's thread has ended.
        Ok(_) => Err(Fault::said(
            FaultKind::Disconnected,
            "a statement has no answer",
        )),
        Err(error) => {
            let fault = undone(conn, error.into()).await;
            // If it fails, later commits are durable, too.
            let _ = set_level(conn, level).await;
            Err(fault)
        }
    }
}

/// Ends the transaction of a text that has failed, if it has begun one that is still open.
pub(super) async fn undone(conn: &mut SqliteConnection, fault: Fault) -> Fault {
    let Err(error) = sqlx::raw_sql("ROLLBACK").execute(conn).await else {
        return fault;
    };
    match Fault::from(error) {
        // SQLITE_ERROR: "cannot rollback - no transaction is active". BEGIN has failed, or SQLite has rolled back by
        // itself.
        rollback if rollback.kind == FaultKind::Other => fault,
        // The transaction may be open: this connection is of no use.
        rollback => Fault::said(FaultKind::Disconnected, format!("{fault}; {rollback}")),
    }
}

/// The only level of `PRAGMA synchronous` that is raised. FULL and EXTRA are durable, and OFF is the application's
/// choice.
pub(super) const NORMAL: i64 = 1;

const RAISE: &str = "PRAGMA synchronous = FULL;";

async fn read_level(conn: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("PRAGMA synchronous")
        .fetch_one(conn)
        .await
}

pub(super) async fn set_level(conn: &mut SqliteConnection, level: i64) -> Result<(), sqlx::Error> {
    let set = AssertSqlSafe(format!("PRAGMA synchronous = {level}"));
    sqlx::raw_sql(set).execute(conn).await?;
    Ok(())
}

/// The rows of each statement of a text that was run to its end. It is not kept: sqlx keeps 100 texts, and there are
/// as many as sizes of a batch.
async fn rows(
    conn: &mut SqliteConnection,
    mut text: QueryBuilder<Sqlite>,
) -> Result<Vec<Vec<SqliteRow>>, sqlx::Error> {
    let mut rows = vec![Vec::new()];
    let mut answers = conn.fetch_many(text.build().persistent(false));
    while let Some(answer) = poll_fn(|cx| answers.as_mut().poll_next(cx)).await {
        match (answer?, rows.last_mut()) {
            (Either::Right(row), Some(last)) => last.push(row),
            _ => rows.push(Vec::new()),
        }
    }
    Ok(rows)
}
