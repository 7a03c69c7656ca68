//! Releases and takes in one transaction, with the statements of `lease.rs`.
//!
//! The transaction is one text. sqlx hands it to SQLite's thread as a whole, and keeps its four statements prepared:
//! it costs one hop to that thread, as a single statement does.

use sqlx::SqliteConnection;

use super::grant_rule::{freed, is_free, may_grant, next_fence};
use super::lease_text::{Done, release_all, take_all};
use crate::model::FaultKind;
use crate::store::driver::{json, write_turn};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::lease::TakeParams;
use crate::store::verbs::release::ReleaseParams;

/// BEGIN takes the write lock, and each statement reads the clock after that.
const EXCHANGE: &str = concat!(
    "BEGIN IMMEDIATE;",
    release_all!(),
    ";",
    take_all!(),
    ";COMMIT"
);

const ROLLBACK: &str = "ROLLBACK";

/// Frees the names of the releases that have no waiters, and grants the free names of the takes. Does nothing if it
/// fails. If the future is dropped, the transaction may stay open.
pub(super) async fn exchange(
    conn: &mut SqliteConnection,
    releases: &[ReleaseParams],
    takes: &[TakeParams],
) -> Result<Done, Fault> {
    let _turn = write_turn::turn().await;
    let exchanged = sqlx::query_as(EXCHANGE)
        .bind(json::releases(releases))
        .bind(json::takes(takes))
        .fetch_all(&mut *conn)
        .await;
    match exchanged {
        Ok(rows) => Ok(rows.into_iter().collect()),
        Err(error) => Err(undone(conn, error.into()).await),
    }
}

/// Ends the transaction of a text that has failed, if it has begun one that is still open.
async fn undone(conn: &mut SqliteConnection, fault: Fault) -> Fault {
    let Err(error) = sqlx::raw_sql(ROLLBACK).execute(conn).await else {
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

#[cfg(test)]
#[path = "exchange_tests.rs"]
mod tests;
