//! PostgreSQL's SQLSTATE codes (manual, appendix A) as kinds of failure.

use sqlx::error::DatabaseError;
use sqlx::postgres::PgDatabaseError;

use crate::model::FaultKind;

/// `None` for an error of another engine.
pub(crate) fn kind(error: &dyn DatabaseError) -> Option<FaultKind> {
    let error = error.try_downcast_ref::<PgDatabaseError>()?;
    // A policy has the code of a missing right. The server's language does not change the names of its functions.
    let by_policy = matches!(
        error.routine(),
        Some("ExecWithCheckOptions" | "check_enable_rls")
    );
    match of_code(error.code()) {
        FaultKind::Denied if by_policy => Some(FaultKind::RowSecurity),
        kind => Some(kind),
    }
}

fn of_code(code: &str) -> FaultKind {
    match code {
        "23505" => FaultKind::Duplicate,
        // serialization_failure; transaction_rollback, which gives no reason; snapshot_too_old
        "40001" | "40000" | "72000" => FaultKind::Serialization,
        "40P01" => FaultKind::Deadlock,
        // lock_not_available
        "55P03" => FaultKind::LockTimeout,
        // query_canceled, also from the server's own timeouts; out of memory for now
        "57014" | "53200" => FaultKind::Interrupted,
        // in_failed_sql_transaction, no_active_sql_transaction; there is no such savepoint
        "25P02" | "25P01" | "3B001" => FaultKind::TransactionOver,
        // too_many_connections; the shutdown codes, and database_dropped; idle_session_timeout,
        // idle_in_transaction_session_timeout and transaction_timeout, which end the session;
        // statement_completion_unknown
        "53300" | "57P01" | "57P02" | "57P03" | "57P04" | "57P05" | "25P03" | "25P04" | "40003" => {
            FaultKind::Disconnected
        }
        // read_only_sql_transaction
        "25006" => FaultKind::ReadOnly,
        "3D000" => FaultKind::NoSuchDatabase,
        "42P01" => FaultKind::NoSuchTable,
        // undefined_column, undefined_function: rowlock has functions of its own
        "42703" | "42883" => FaultKind::NoSuchColumn,
        // insufficient_privilege; invalid_schema_name, when there is no schema to create in
        "42501" | "3F000" => FaultKind::Denied,
        _ if code.starts_with("08") => FaultKind::Disconnected,
        _ if code.starts_with("28") => FaultKind::LoginRefused,
        _ => FaultKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use FaultKind as K;

    /// SQLSTATE, the manual's name for it.
    const TABLE: &[(&str, &str, FaultKind)] = &[
        ("08000", "connection_exception", K::Disconnected),
        ("08003", "connection_does_not_exist", K::Disconnected),
        ("08006", "connection_failure", K::Disconnected),
        ("08P01", "protocol_violation", K::Disconnected),
        ("0A000", "feature_not_supported", K::Other),
        ("22001", "string_data_right_truncation", K::Other),
        ("23502", "not_null_violation", K::Other),
        ("23505", "unique_violation", K::Duplicate),
        ("23514", "check_violation", K::Other),
        ("25006", "read_only_sql_transaction", K::ReadOnly),
        ("25P01", "no_active_sql_transaction", K::TransactionOver),
        ("25P02", "in_failed_sql_transaction", K::TransactionOver),
        (
            "25P03",
            "idle_in_transaction_session_timeout",
            K::Disconnected,
        ),
        ("25P04", "transaction_timeout", K::Disconnected),
        (
            "28000",
            "invalid_authorization_specification",
            K::LoginRefused,
        ),
        ("28P01", "invalid_password", K::LoginRefused),
        (
            "3B001",
            "invalid_savepoint_specification",
            K::TransactionOver,
        ),
        ("3D000", "invalid_catalog_name", K::NoSuchDatabase),
        ("3F000", "invalid_schema_name", K::Denied),
        ("40000", "transaction_rollback", K::Serialization),
        ("40001", "serialization_failure", K::Serialization),
        ("40003", "statement_completion_unknown", K::Disconnected),
        ("40P01", "deadlock_detected", K::Deadlock),
        ("42501", "insufficient_privilege", K::Denied),
        ("42601", "syntax_error", K::Other),
        ("42703", "undefined_column", K::NoSuchColumn),
        ("42883", "undefined_function", K::NoSuchColumn),
        ("42P01", "undefined_table", K::NoSuchTable),
        ("53100", "disk_full", K::Other),
        ("53200", "out_of_memory", K::Interrupted),
        ("53300", "too_many_connections", K::Disconnected),
        ("53400", "configuration_limit_exceeded", K::Other),
        ("54000", "program_limit_exceeded", K::Other),
        ("55000", "object_not_in_prerequisite_state", K::Other),
        ("55P03", "lock_not_available", K::LockTimeout),
        ("57014", "query_canceled", K::Interrupted),
        ("57P01", "admin_shutdown", K::Disconnected),
        ("57P02", "crash_shutdown", K::Disconnected),
        ("57P03", "cannot_connect_now", K::Disconnected),
        ("57P04", "database_dropped", K::Disconnected),
        ("57P05", "idle_session_timeout", K::Disconnected),
        ("58030", "io_error", K::Other),
        ("72000", "snapshot_too_old", K::Serialization),
        ("XX000", "internal_error", K::Other),
        ("XX001", "data_corrupted", K::Other),
    ];

    #[test]
    fn every_code_is_of_the_kind_that_its_meaning_asks_for() {
        for (code, name, kind) in TABLE {
            assert_eq!(of_code(code), *kind, "{code} {name}");
        }
    }
}
