//! PostgreSQL's SQLSTATE codes (manual, appendix A) as kinds of failure.

use sqlx::error::DatabaseError;
use sqlx::postgres::PgDatabaseError;

use crate::store::fault::FaultKind;

/// `None` for an error of another brand.
pub(crate) fn kind(error: &dyn DatabaseError) -> Option<FaultKind> {
    let error = error.try_downcast_ref::<PgDatabaseError>()?;
    Some(of_code(error.code()))
}

fn of_code(code: &str) -> FaultKind {
    match code {
        "23505" => FaultKind::Duplicate,
        "40001" => FaultKind::Serialization,
        "40P01" => FaultKind::Deadlock,
        // lock_not_available
        "55P03" => FaultKind::LockTimeout,
        // query_canceled, which is how the server's own timeouts end one
        "57014" => FaultKind::Interrupted,
        // in_failed_sql_transaction, no_active_sql_transaction
        "25P02" | "25P01" => FaultKind::TransactionOver,
        // too_many_connections; the shutdown codes; idle_in_transaction_session_timeout and
        // transaction_timeout, which end the session
        "53300" | "57P01" | "57P02" | "57P03" | "57P05" | "25P03" | "25P04" => {
            FaultKind::Disconnected
        }
        // read_only_sql_transaction
        "25006" => FaultKind::ReadOnly,
        "3D000" => FaultKind::NoSuchDatabase,
        "42P01" => FaultKind::NoSuchTable,
        // insufficient_privilege; invalid_schema_name, when there is no schema to create in
        "42501" | "3F000" => FaultKind::Denied,
        _ if code.starts_with("08") => FaultKind::Disconnected,
        _ if code.starts_with("28") => FaultKind::LoginRefused,
        _ => FaultKind::Other,
    }
}
