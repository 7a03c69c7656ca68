//! The rules of a grant, as SQL: one home for each. A prefix such as `l.` says of which row. (Statements that keep
//! what they compute in variables have the fence's formula once more: `in_tx.rs`, `permit_text.rs`.)

/// The fence of the next grant.
macro_rules! next_fence {
    ($of:literal) => {
        concat!(
            "GREATEST(",
            $of,
            "fence + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)))"
        )
    };
}
pub(super) use next_fence;

/// Whether no grant of the row is live, and its name is not paused.
macro_rules! is_free {
    ($of:literal) => {
        is_free!($of, "SYSDATE(6)")
    };
    ($of:literal, $now:expr) => {
        concat!(
            "(",
            $of,
            "expires_at IS NULL OR ",
            $of,
            "expires_at <= ",
            $now,
            ") AND (",
            $of,
            "paused_until IS NULL OR ",
            $of,
            "paused_until <= ",
            $now,
            ")"
        )
    };
}
pub(super) use is_free;

/// Whether none of the rows of a SELECT with aggregates has a name that is paused. (Without a row, too.)
macro_rules! none_paused {
    () => {
        "NOT COALESCE(MAX(paused_until > SYSDATE(6)), FALSE)"
    };
}
pub(super) use none_paused;

/// What makes a row free.
macro_rules! freed {
    ($of:literal) => {
        concat!(
            $of,
            "grant_id = NULL, ",
            $of,
            "holder = NULL, ",
            $of,
            "acquired_at = NULL, ",
            $of,
            "expires_at = NULL, ",
            $of,
            "session_id = NULL"
        )
    };
}
pub(super) use freed;

/// Whether the database is in no quarantine.
///
/// A subquery that KILL QUERY or a time limit of the server cuts is empty, and the statement goes on without an error
/// if nothing after it reads a row (seen on MariaDB 10.11, and on MySQL 9.7). NOT EXISTS would be true then. The count
/// is NULL then, which counts as a quarantine.
macro_rules! may_grant {
    () => {
        may_grant!("SYSDATE(6)", "")
    };
    ($now:expr, $lock:literal) => {
        concat!(
            "COALESCE((SELECT COUNT(*) FROM rowlock_database q WHERE q.quarantine_until > ",
            $now,
            $lock,
            ") = 0, FALSE)"
        )
    };
}
pub(super) use may_grant;
