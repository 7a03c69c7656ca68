//! The error numbers of MySQL and MariaDB (server error reference) as kinds of failure.

use sqlx::error::DatabaseError;
use sqlx::mysql::MySqlDatabaseError;

use crate::store::fault::FaultKind;

/// `None` for an error of another brand.
pub(crate) fn kind(error: &dyn DatabaseError) -> Option<FaultKind> {
    let error = error.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(of_number(error.number()))
}

fn of_number(number: u16) -> FaultKind {
    match number {
        // ER_CHECKREAD (MariaDB: the record has changed)
        1020 => FaultKind::Conflict,
        1022 | 1062 | 1586 => FaultKind::Duplicate,
        1213 => FaultKind::Deadlock,
        // ER_LOCK_WAIT_TIMEOUT rolls back the statement only; an autocommitted one is all there is.
        // ER_LOCK_NOWAIT
        1205 | 3572 => FaultKind::LockTimeout,
        // ER_QUERY_INTERRUPTED; ER_QUERY_TIMEOUT; MariaDB's ER_STATEMENT_TIMEOUT
        1317 | 3024 | 1969 => FaultKind::Interrupted,
        // ER_SP_DOES_NOT_EXIST: there is no such savepoint
        1305 => FaultKind::TransactionOver,
        // too many connections (of this user); shutdown; killed; Galera's node is not ready
        1040 | 1203 | 1226 | 1053 | 1927 | 1047 => FaultKind::Disconnected,
        // ER_OPTION_PREVENTS_STATEMENT (read_only), ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION,
        // ER_READ_ONLY_MODE, ER_SERVER_OFFLINE_MODE
        1290 | 1792 | 1836 | 3032 => FaultKind::ReadOnly,
        1045 | 1251 | 1524 | 1698 => FaultKind::LoginRefused,
        1049 => FaultKind::NoSuchDatabase,
        1044 | 1142 | 1143 | 1227 | 1370 => FaultKind::Denied,
        1146 => FaultKind::NoSuchTable,
        _ => FaultKind::Other,
    }
}
