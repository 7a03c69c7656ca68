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
        "23505" => FaultKind::Conflict,
        "40001" => FaultKind::Serialization,
        "40P01" => FaultKind::Deadlock,
        // lock_not_available; query_canceled, which is how the server's own timeouts end one
        "55P03" | "57014" => FaultKind::LockTimeout,
        // too_many_connections; the shutdown codes
        "53300" | "57P01" | "57P02" | "57P03" | "57P05" => FaultKind::Disconnected,
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
