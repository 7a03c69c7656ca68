//! The rules of a grant, as SQL: one home for each. A prefix such as `l.` says of which row. (The functions of the
//! queue have their own: `functions/`.)

/// The fence of the next grant. (`date_part` costs less than `extract`. Its numbers have 53 bits: until 2106 that is
/// exact to the microsecond.)
macro_rules! next_fence {
    ($of:literal) => {
        concat!(
            "GREATEST(",
            $of,
            "fence + 1, (date_part('epoch', clock_timestamp()) * 1000000)::bigint)"
        )
    };
}
pub(super) use next_fence;

/// Whether no grant of the row is live, and its name is not paused.
macro_rules! is_free {
    ($of:literal) => {
        concat!(
            "(",
            $of,
            "expires_at IS NULL OR ",
            $of,
            "expires_at <= clock_timestamp()) AND ",
            $crate::store::postgres::grant_rule::is_unpaused!($of)
        )
    };
}
pub(super) use is_free;

/// Whether the name of the row is not paused.
macro_rules! is_unpaused {
    ($of:literal) => {
        concat!(
            "(",
            $of,
            "paused_until IS NULL OR ",
            $of,
            "paused_until <= clock_timestamp())"
        )
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
        "NOT EXISTS (SELECT FROM rowlock_database q WHERE q.quarantine_until > clock_timestamp())"
    };
}
pub(super) use may_grant;
