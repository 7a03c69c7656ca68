//! SQLite's result codes (sqlite.org/rescode.html) as kinds of failure.

use sqlx::error::DatabaseError;
use sqlx::sqlite::SqliteError;

use crate::store::fault::FaultKind;

/// `None` for an error of another brand.
pub(crate) fn kind(error: &dyn DatabaseError) -> Option<FaultKind> {
    let error = error.try_downcast_ref::<SqliteError>()?;
    let extended: i32 = error.code().and_then(|code| code.parse().ok()).unwrap_or(1);
    if extended == 1 && error.message().starts_with("no such table") {
        return Some(FaultKind::NoSuchTable);
    }
    Some(of_code(extended))
}

fn of_code(extended: i32) -> FaultKind {
    match (extended & 0xff, extended) {
        // SQLITE_BUSY_SNAPSHOT: what the transaction has read is out of date, it cannot write any more
        (5, 517) => FaultKind::Serialization,
        // SQLITE_BUSY, SQLITE_LOCKED
        (5 | 6, _) => FaultKind::LockTimeout,
        // SQLITE_READONLY, SQLITE_CANTOPEN
        (8 | 14, _) => FaultKind::Unwritable,
        // SQLITE_IOERR: opening the file anew may help
        (10, _) => FaultKind::Disconnected,
        // SQLITE_CONSTRAINT_PRIMARYKEY, SQLITE_CONSTRAINT_UNIQUE
        (19, 1555 | 2067) => FaultKind::Duplicate,
        _ => FaultKind::Other,
    }
}
