//! The error numbers of MySQL ("Server Error Message Reference") and MariaDB ("Error Codes") as kinds of failure.
//! Below 1900 and from 3000 to 3060 the two agree; each number elsewhere is used by only one of them.

use sqlx::error::DatabaseError;
use sqlx::mysql::MySqlDatabaseError;

use crate::model::FaultKind;

/// `None` for an error of another engine.
pub(crate) fn kind(error: &dyn DatabaseError) -> Option<FaultKind> {
    let error = error.try_downcast_ref::<MySqlDatabaseError>()?;
    let state = error.code().unwrap_or_default();
    Some(of(error.number(), state, error.message()))
}

/// Whether a statement has waited for a locked row until its limit: `innodb_lock_wait_timeout`, or its own
/// (`ER_QUERY_TIMEOUT`, `ER_STATEMENT_TIMEOUT`).
pub(super) fn is_lock_time_out(error: &sqlx::Error) -> bool {
    number(error).is_some_and(|number| {
        matches!(number, 1969 | 3024) || of_number(number) == FaultKind::LockTimeout
    })
}

/// Whether a column has no value that needs one (`ER_BAD_NULL_ERROR`).
pub(super) fn is_null(error: &sqlx::Error) -> bool {
    number(error) == Some(1048)
}

/// Whether KILL QUERY has ended the statement (`ER_QUERY_INTERRUPTED`).
pub(super) fn is_interrupted(error: &sqlx::Error) -> bool {
    number(error) == Some(1317)
}

fn number(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?;
    let error = error.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(error.number())
}

fn of(number: u16, state: &str, message: &str) -> FaultKind {
    // Galera reports cluster trouble under the number of the statement that met it.
    if message.contains("Primary Component") || message.contains("WSREP has not yet prepared") {
        return FaultKind::Disconnected;
    }
    if number == 1180 && is_of_engine(message, 149) {
        return FaultKind::Deadlock;
    }
    // MariaDB gives a limit of the session's the number of `read_only`.
    if number == 1290 && message.contains("max-session-mem-used") {
        return FaultKind::Other;
    }
    match of_number(number) {
        FaultKind::Other => of_state(state),
        kind => kind,
    }
}

/// Whether the message names this error of a storage engine ("Got error 149 - 'Lock deadlock; Retry transaction'
/// during COMMIT"). With 149 a member of a replication group says at the commit that another member was faster, and
/// has rolled back.
fn is_of_engine(message: &str, number: u16) -> bool {
    let mut words = message.split(|letter: char| !letter.is_ascii_digit());
    words.find_map(|word| word.parse().ok()) == Some(number)
}

fn of_number(number: u16) -> FaultKind {
    match number {
        // ER_CHECKREAD (MariaDB: the record has changed)
        1020 => FaultKind::Conflict,
        1022 | 1062 | 1169 | 1586 | 1859 => FaultKind::Duplicate,
        1213 | 1614 | 3058 => FaultKind::Deadlock,
        // ER_TRANSACTION_ROLLBACK_DURING_COMMIT (group replication: another member was faster)
        3101 => FaultKind::Serialization,
        // ER_LOCK_WAIT_TIMEOUT rolls back the statement only; an autocommitted one is all there is.
        // ER_LOCK_NOWAIT
        1205 | 1613 | 1689 | 3572 => FaultKind::LockTimeout,
        // A kill, a limit on time; no memory, no slot for a transaction at the moment.
        1028 | 1037 | 1041 | 1317 | 1637 | 1969 | 3015 | 3024 => FaultKind::Interrupted,
        // ER_SP_DOES_NOT_EXIST: there is no such savepoint
        1305 => FaultKind::TransactionOver,
        // In turn: the server has no room for another connection, or this host may not connect now. The server is
        // shutting down or offline. The session was ended by a kill or for idleness (4031 is the answer to the next
        // statement). Client and server no longer understand each other (1835). Galera lost its cluster during a
        // commit, or the disk failed (1180).
        1040
        | 1129
        | 1203
        | 1226
        | 1053
        | 1077..=1080
        | 3032
        | 3168
        | 6400
        | 1927
        | 3169
        | 4031
        | 1835
        | 1180 => FaultKind::Disconnected,
        // The server then closes the connection. The next one would refuse the same statement too.
        1153 => FaultKind::TooLarge,
        // ER_OPTION_PREVENTS_STATEMENT (read_only), ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION, ER_READ_ONLY_MODE,
        // ER_INNODB_READ_ONLY; ER_RUN_HOOK_ERROR (a member that leaves its group rolls commits back)
        1290 | 1792 | 1836 | 1874 | 3100 => FaultKind::ReadOnly,
        1045 | 1130 | 1251 | 1524 | 1698 | 1820 | 1862 | 1873 | 3118 | 3159 | 3955 | 4151 => {
            FaultKind::LoginRefused
        }
        1049 => FaultKind::NoSuchDatabase,
        1044 | 1142 | 1143 | 1227 | 1370 => FaultKind::Denied,
        1146 => FaultKind::NoSuchTable,
        1054 => FaultKind::NoSuchColumn,
        _ => FaultKind::Other,
    }
}

/// The kind by the class of the SQLSTATE, for numbers that are not listed.
fn of_state(state: &str) -> FaultKind {
    match state {
        "40001" => FaultKind::Serialization,
        _ if state.starts_with("08") => FaultKind::Disconnected,
        _ if state.starts_with("28") => FaultKind::LoginRefused,
        _ => FaultKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use FaultKind as K;

    /// Number, SQLSTATE, the vendor's name for it.
    const TABLE: &[(u16, &str, &str, FaultKind)] = &[
        (1020, "HY000", "ER_CHECKREAD", K::Conflict),
        (1021, "HY000", "ER_DISK_FULL", K::Other),
        (1022, "23000", "ER_DUP_KEY", K::Duplicate),
        (1028, "HY000", "ER_FILSORT_ABORT", K::Interrupted),
        (1037, "HY001", "ER_OUTOFMEMORY", K::Interrupted),
        (1040, "08004", "ER_CON_COUNT_ERROR", K::Disconnected),
        (1041, "HY000", "ER_OUT_OF_RESOURCES", K::Interrupted),
        (1042, "08S01", "ER_BAD_HOST_ERROR", K::Disconnected),
        (1043, "08S01", "ER_HANDSHAKE_ERROR", K::Disconnected),
        (1044, "42000", "ER_DBACCESS_DENIED_ERROR", K::Denied),
        (1045, "28000", "ER_ACCESS_DENIED_ERROR", K::LoginRefused),
        (1047, "08S01", "ER_UNKNOWN_COM_ERROR", K::Disconnected),
        (1049, "42000", "ER_BAD_DB_ERROR", K::NoSuchDatabase),
        (1053, "08S01", "ER_SERVER_SHUTDOWN", K::Disconnected),
        (1054, "42S22", "ER_BAD_FIELD_ERROR", K::NoSuchColumn),
        (1062, "23000", "ER_DUP_ENTRY", K::Duplicate),
        (1064, "42000", "ER_PARSE_ERROR", K::Other),
        (1077, "HY000", "ER_NORMAL_SHUTDOWN", K::Disconnected),
        (1078, "HY000", "ER_GOT_SIGNAL", K::Disconnected),
        (1079, "HY000", "ER_SHUTDOWN_COMPLETE", K::Disconnected),
        (1080, "08S01", "ER_FORCING_CLOSE", K::Disconnected),
        (1081, "08S01", "ER_IPSOCK_ERROR", K::Disconnected),
        (1105, "HY000", "ER_UNKNOWN_ERROR", K::Other),
        (1114, "HY000", "ER_RECORD_FILE_FULL", K::Other),
        (1129, "HY000", "ER_HOST_IS_BLOCKED", K::Disconnected),
        (1130, "HY000", "ER_HOST_NOT_PRIVILEGED", K::LoginRefused),
        (1142, "42000", "ER_TABLEACCESS_DENIED_ERROR", K::Denied),
        (1143, "42000", "ER_COLUMNACCESS_DENIED_ERROR", K::Denied),
        (1146, "42S02", "ER_NO_SUCH_TABLE", K::NoSuchTable),
        (1152, "08S01", "ER_ABORTING_CONNECTION", K::Disconnected),
        (1153, "08S01", "ER_NET_PACKET_TOO_LARGE", K::TooLarge),
        (
            1154,
            "08S01",
            "ER_NET_READ_ERROR_FROM_PIPE",
            K::Disconnected,
        ),
        (1155, "08S01", "ER_NET_FCNTL_ERROR", K::Disconnected),
        (
            1156,
            "08S01",
            "ER_NET_PACKETS_OUT_OF_ORDER",
            K::Disconnected,
        ),
        (1157, "08S01", "ER_NET_UNCOMPRESS_ERROR", K::Disconnected),
        (1158, "08S01", "ER_NET_READ_ERROR", K::Disconnected),
        (1159, "08S01", "ER_NET_READ_INTERRUPTED", K::Disconnected),
        (1160, "08S01", "ER_NET_ERROR_ON_WRITE", K::Disconnected),
        (1161, "08S01", "ER_NET_WRITE_INTERRUPTED", K::Disconnected),
        (1169, "23000", "ER_DUP_UNIQUE", K::Duplicate),
        (1180, "HY000", "ER_ERROR_DURING_COMMIT", K::Disconnected),
        (1184, "08S01", "ER_NEW_ABORTING_CONNECTION", K::Disconnected),
        (
            1203,
            "42000",
            "ER_TOO_MANY_USER_CONNECTIONS",
            K::Disconnected,
        ),
        (1205, "HY000", "ER_LOCK_WAIT_TIMEOUT", K::LockTimeout),
        (1206, "HY000", "ER_LOCK_TABLE_FULL", K::Other),
        (1213, "40001", "ER_LOCK_DEADLOCK", K::Deadlock),
        (1226, "42000", "ER_USER_LIMIT_REACHED", K::Disconnected),
        (1227, "42000", "ER_SPECIFIC_ACCESS_DENIED_ERROR", K::Denied),
        (1251, "08004", "ER_NOT_SUPPORTED_AUTH_MODE", K::LoginRefused),
        (1290, "HY000", "ER_OPTION_PREVENTS_STATEMENT", K::ReadOnly),
        (1305, "42000", "ER_SP_DOES_NOT_EXIST", K::TransactionOver),
        (1317, "70100", "ER_QUERY_INTERRUPTED", K::Interrupted),
        (1370, "42000", "ER_PROCACCESS_DENIED_ERROR", K::Denied),
        (1524, "HY000", "ER_PLUGIN_IS_NOT_LOADED", K::LoginRefused),
        (1586, "23000", "ER_DUP_ENTRY_WITH_KEY_NAME", K::Duplicate),
        (1613, "XA106", "ER_XA_RBTIMEOUT", K::LockTimeout),
        (1614, "XA102", "ER_XA_RBDEADLOCK", K::Deadlock),
        (1637, "HY000", "ER_TOO_MANY_CONCURRENT_TRXS", K::Interrupted),
        (1689, "HY000", "ER_LOCK_ABORTED", K::LockTimeout),
        (
            1698,
            "28000",
            "ER_ACCESS_DENIED_NO_PASSWORD_ERROR",
            K::LoginRefused,
        ),
        (
            1792,
            "25006",
            "ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION",
            K::ReadOnly,
        ),
        (1820, "HY000", "ER_MUST_CHANGE_PASSWORD", K::LoginRefused),
        (1835, "HY000", "ER_MALFORMED_PACKET", K::Disconnected),
        (1836, "HY000", "ER_READ_ONLY_MODE", K::ReadOnly),
        (1859, "23000", "ER_DUP_UNKNOWN_IN_INDEX", K::Duplicate),
        (
            1862,
            "HY000",
            "ER_MUST_CHANGE_PASSWORD_LOGIN",
            K::LoginRefused,
        ),
        (
            1873,
            "28000",
            "ER_ACCESS_DENIED_CHANGE_USER_ERROR",
            K::LoginRefused,
        ),
        (1874, "HY000", "ER_INNODB_READ_ONLY", K::ReadOnly),
        // MariaDB's own
        (1927, "70100", "ER_CONNECTION_KILLED", K::Disconnected),
        (1969, "70100", "ER_STATEMENT_TIMEOUT", K::Interrupted),
        (4025, "23000", "ER_CONSTRAINT_FAILED", K::Other),
        (4151, "HY000", "ER_ACCOUNT_HAS_BEEN_LOCKED", K::LoginRefused),
        // MySQL's own
        (3015, "HY000", "ER_ENGINE_OUT_OF_MEMORY", K::Interrupted),
        (3024, "HY000", "ER_QUERY_TIMEOUT", K::Interrupted),
        (3032, "HY000", "ER_SERVER_OFFLINE_MODE", K::Disconnected),
        (3058, "HY000", "ER_USER_LOCK_DEADLOCK", K::Deadlock),
        (3100, "HY000", "ER_RUN_HOOK_ERROR", K::ReadOnly),
        (
            3101,
            "40000",
            "ER_TRANSACTION_ROLLBACK_DURING_COMMIT",
            K::Serialization,
        ),
        (3118, "HY000", "ER_ACCOUNT_HAS_BEEN_LOCKED", K::LoginRefused),
        (
            3159,
            "HY000",
            "ER_SECURE_TRANSPORT_REQUIRED",
            K::LoginRefused,
        ),
        (3168, "HY000", "ER_SERVER_ISNT_AVAILABLE", K::Disconnected),
        (3169, "HY000", "ER_SESSION_WAS_KILLED", K::Disconnected),
        (3572, "HY000", "ER_LOCK_NOWAIT", K::LockTimeout),
        (3819, "HY000", "ER_CHECK_CONSTRAINT_VIOLATED", K::Other),
        (
            3955,
            "HY000",
            "ER_USER_ACCESS_DENIED_FOR_USER_ACCOUNT_BLOCKED_BY_PASSWORD_LOCK",
            K::LoginRefused,
        ),
        (
            4031,
            "HY000",
            "ER_CLIENT_INTERACTION_TIMEOUT",
            K::Disconnected,
        ),
        (
            6400,
            "HY000",
            "ER_SERVER_OFFLINE_MODE_REASON",
            K::Disconnected,
        ),
    ];

    #[test]
    fn every_number_is_of_the_kind_that_its_meaning_asks_for() {
        for (number, state, name, kind) in TABLE {
            assert_eq!(of(*number, state, ""), *kind, "{number} {name}");
        }
    }

    #[test]
    fn a_commit_that_lost_against_another_member_is_a_deadlock() {
        let lost = "Got error 149 - 'Lock deadlock; Retry transaction' during COMMIT";
        assert_eq!(of(1180, "HY000", lost), FaultKind::Deadlock);
        let disk = "Got error 28 - 'No space left on device' during COMMIT of 149 rows";
        assert_eq!(of(1180, "HY000", disk), FaultKind::Disconnected);
    }

    #[test]
    fn a_session_without_memory_is_not_on_a_server_that_only_reads() {
        let option = |option| {
            let said = format!(
                "The MariaDB server is running with the --{option} option so it cannot execute this statement"
            );
            of(1290, "HY000", &said)
        };
        assert_eq!(option("read-only"), FaultKind::ReadOnly);
        assert_eq!(option("max-session-mem-used=8192"), FaultKind::Other);
    }

    #[test]
    fn what_galera_says_of_its_cluster_is_a_broken_connection_whatever_its_number() {
        for (number, state, message) in [
            (
                1047,
                "08S01",
                "WSREP has not yet prepared node for application use",
            ),
            (
                1105,
                "HY000",
                "WSREP replication failed. Not connected to Primary Component",
            ),
            (1180, "HY000", "Got error 6 during COMMIT"),
            (1205, "HY000", "Not connected to Primary Component"),
        ] {
            assert_eq!(
                of(number, state, message),
                FaultKind::Disconnected,
                "{message}"
            );
        }
    }
}
