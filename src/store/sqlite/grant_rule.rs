//! The rules of a grant, as SQL: one home for each.

/// The fence of the next grant. `$now`: the time, in microseconds.
macro_rules! next_fence {
    ($now:literal) => {
        concat!("max(fence + 1, ", $now, ")")
    };
}
pub(super) use next_fence;

/// Whether no grant of the row is live, and its name is not paused. `$now`: the time.
macro_rules! is_free {
    ($now:literal) => {
        concat!(
            "(expires_at IS NULL OR expires_at <= ",
            $now,
            ") AND ",
            $crate::store::sqlite::grant_rule::is_unpaused!($now)
        )
    };
}
pub(super) use is_free;

/// Whether the name of the row is not paused. `$now`: the time.
macro_rules! is_unpaused {
    () => {
        $crate::store::sqlite::grant_rule::is_unpaused!(
            "CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000"
        )
    };
    ($now:literal) => {
        concat!("(paused_until IS NULL OR paused_until <= ", $now, ")")
    };
}
pub(super) use is_unpaused;

/// What makes a row free.
macro_rules! freed {
    () => {
        "grant_id = NULL, holder = NULL, acquired_at = NULL, expires_at = NULL, session_id = NULL"
    };
}
pub(super) use freed;

/// Whether the database is in no quarantine.
macro_rules! may_grant {
    () => {
        "NOT EXISTS (SELECT 1 FROM rowlock_database q
             WHERE q.quarantine_until > CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)"
    };
}
pub(super) use may_grant;
