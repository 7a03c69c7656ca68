//! The journal of a SQLite file, and how its connections lock it.

use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteConnectOptions;

use crate::model::FaultKind;
use crate::store::verbs::fault::Fault;

/// Refuses a pool whose connections never unlock the file that they have used.
pub(super) async fn check_locking(conn: &mut SqliteConnection) -> Result<(), Fault> {
    let mode: String = sqlx::query_scalar("PRAGMA locking_mode")
        .fetch_one(conn)
        .await?;
    if mode == "normal" {
        return Ok(());
    }
    let what = "the pool's options have locking_mode = EXCLUSIVE, with which one connection keeps the file for itself: leave that out";
    Err(Fault::said(FaultKind::Unwritable, what))
}

/// Whether the options ask for a rollback journal. Each of the pool's new connections would then turn a file in WAL
/// mode back, and fails while others use it. (sqlx does not tell what options ask for. But if they ask for this
/// already, asking again changes nothing.)
fn ask_for_rollback(options: &SqliteConnectOptions) -> bool {
    let given = format!("{options:?}");
    let is_given = |mode| format!("{:?}", options.clone().pragma("journal_mode", mode)) == given;
    ["DELETE", "delete"].into_iter().any(is_given)
}

/// Switches a new, empty file to WAL. The journal mode of a file in use is its owner's choice, and that of a pool's
/// file, if the pool sets it.
pub(super) async fn use_wal(
    conn: &mut SqliteConnection,
    options: &SqliteConnectOptions,
) -> Result<bool, Fault> {
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode")
        .fetch_one(&mut *conn)
        .await?;
    if mode != "delete" || ask_for_rollback(options) {
        return Ok(mode == "wal");
    }
    let tables: i64 = sqlx::query_scalar("SELECT count(*) FROM sqlite_schema")
        .fetch_one(&mut *conn)
        .await?;
    if tables > 0 {
        return Ok(false);
    }
    let changed: Result<String, sqlx::Error> = sqlx::query_scalar("PRAGMA journal_mode = WAL")
        .fetch_one(conn)
        .await;
    match changed.map_err(Fault::from) {
        Ok(mode) => Ok(mode == "wal"),
        // Another process is making the tables right now: the file stays as it is.
        Err(fault) if fault.kind == FaultKind::LockTimeout => Ok(false),
        Err(fault) => Err(fault),
    }
}
