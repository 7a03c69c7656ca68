//! SQLite's result codes (sqlite.org/rescode.html) as kinds of failure.

use sqlx::error::DatabaseError;
use sqlx::sqlite::SqliteError;

use crate::model::FaultKind;

/// `None` for an error of another engine.
pub(crate) fn kind(error: &dyn DatabaseError) -> Option<FaultKind> {
    let error = error.try_downcast_ref::<SqliteError>()?;
    let extended: i32 = error.code().and_then(|code| code.parse().ok()).unwrap_or(1);
    Some(match error.message() {
        message if extended == 1 && message.starts_with("no such table") => FaultKind::NoSuchTable,
        message if extended == 1 && message.starts_with("no such column") => {
            FaultKind::NoSuchColumn
        }
        _ => of_code(extended),
    })
}

fn of_code(extended: i32) -> FaultKind {
    match (extended & 0xff, extended) {
        // SQLITE_BUSY_SNAPSHOT: the transaction's reads are out of date, so it cannot write any more
        (5, 517) => FaultKind::Serialization,
        // SQLITE_BUSY, SQLITE_LOCKED; SQLITE_PROTOCOL, a race for the locks of the write-ahead log
        (5 | 6 | 15, _) => FaultKind::LockTimeout,
        // SQLITE_ABORT, SQLITE_NOMEM, SQLITE_INTERRUPT
        (4 | 7 | 9, _) => FaultKind::Interrupted,
        // SQLITE_SCHEMA: the tables have changed meanwhile
        (17, _) => FaultKind::Conflict,
        // SQLITE_READONLY_DBMOVED: the file was replaced; SQLITE_IOERR: opening the file again may help
        (8, 1032) | (10, _) => FaultKind::Disconnected,
        // SQLITE_PERM, SQLITE_READONLY, SQLITE_CANTOPEN
        (3 | 8 | 14, _) => FaultKind::Unwritable,
        // SQLITE_CONSTRAINT_PRIMARYKEY, SQLITE_CONSTRAINT_UNIQUE, SQLITE_CONSTRAINT_ROWID
        (19, 1555 | 2067 | 2579) => FaultKind::Duplicate,
        // SQLITE_NOTADB
        (26, _) => FaultKind::NoSuchDatabase,
        // SQLITE_AUTH
        (23, _) => FaultKind::Denied,
        _ => FaultKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use FaultKind as K;

    /// Extended result code, its name.
    const TABLE: &[(i32, &str, FaultKind)] = &[
        (1, "SQLITE_ERROR", K::Other),
        (2, "SQLITE_INTERNAL", K::Other),
        (3, "SQLITE_PERM", K::Unwritable),
        (4, "SQLITE_ABORT", K::Interrupted),
        (5, "SQLITE_BUSY", K::LockTimeout),
        (6, "SQLITE_LOCKED", K::LockTimeout),
        (7, "SQLITE_NOMEM", K::Interrupted),
        (8, "SQLITE_READONLY", K::Unwritable),
        (9, "SQLITE_INTERRUPT", K::Interrupted),
        (10, "SQLITE_IOERR", K::Disconnected),
        (11, "SQLITE_CORRUPT", K::Other),
        (13, "SQLITE_FULL", K::Other),
        (14, "SQLITE_CANTOPEN", K::Unwritable),
        (15, "SQLITE_PROTOCOL", K::LockTimeout),
        (17, "SQLITE_SCHEMA", K::Conflict),
        (18, "SQLITE_TOOBIG", K::Other),
        (19, "SQLITE_CONSTRAINT", K::Other),
        (21, "SQLITE_MISUSE", K::Other),
        (23, "SQLITE_AUTH", K::Denied),
        (26, "SQLITE_NOTADB", K::NoSuchDatabase),
        (261, "SQLITE_BUSY_RECOVERY", K::LockTimeout),
        (262, "SQLITE_LOCKED_SHAREDCACHE", K::LockTimeout),
        (266, "SQLITE_IOERR_READ", K::Disconnected),
        (275, "SQLITE_CONSTRAINT_CHECK", K::Other),
        (516, "SQLITE_ABORT_ROLLBACK", K::Interrupted),
        (517, "SQLITE_BUSY_SNAPSHOT", K::Serialization),
        (773, "SQLITE_BUSY_TIMEOUT", K::LockTimeout),
        (778, "SQLITE_IOERR_WRITE", K::Disconnected),
        (1032, "SQLITE_READONLY_DBMOVED", K::Disconnected),
        (1555, "SQLITE_CONSTRAINT_PRIMARYKEY", K::Duplicate),
        (2067, "SQLITE_CONSTRAINT_UNIQUE", K::Duplicate),
        (2579, "SQLITE_CONSTRAINT_ROWID", K::Duplicate),
    ];

    #[test]
    fn every_code_is_of_the_kind_that_its_meaning_asks_for() {
        for (code, name, kind) in TABLE {
            assert_eq!(of_code(*code), *kind, "{code} {name}");
        }
    }
}
