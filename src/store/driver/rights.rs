//! The tables with their columns, and the GRANT statements with which an administrator gives a user the rights that
//! rowlock needs.

use super::engines;

/// Every table of rowlock's.
pub(crate) const TABLES: [&str; 10] = [
    "rowlock_lock",
    "rowlock_database",
    "rowlock_idempotency",
    "rowlock_idempotency_step",
    "rowlock_form_token",
    "rowlock_session",
    "rowlock_waiter",
    "rowlock_waiting_owner",
    "rowlock_run",
    "rowlock_schema_history",
];

/// Reads every column of every table that all engines have, without a row: one statement for each table. (PostgreSQL
/// planned a join of them for 9 ms.)
pub(crate) const EVERY_COLUMN: &str = concat!(
    "SELECT l.name, l.grant_id, l.fence, l.holder, l.acquired_at, l.expires_at, l.session_id, l.waiters, \
            l.next_position, l.passed, l.capacity, l.used, l.weight, l.reclaim_at, \
            l.paused_until, l.paused_by, l.paused_why FROM rowlock_lock l WHERE 1 = 0; \
     SELECT d.one, d.id, d.quarantine_until FROM rowlock_database d WHERE 1 = 0; \
     SELECT ",
    crate::store::verbs::record_row::every_record_column!(),
    " FROM rowlock_idempotency r WHERE 1 = 0; \
     SELECT s.scope, s.idempotency_key, s.step, s.attempt, s.content_type, s.outcome, s.done_at \
     FROM rowlock_idempotency_step s WHERE 1 = 0; \
     SELECT t.scope, t.token, t.issued_at, t.expires_at FROM rowlock_form_token t WHERE 1 = 0; \
     SELECT o.id, o.holder, o.opened_at, o.expires_at, o.forced FROM rowlock_session o WHERE 1 = 0; \
     SELECT w.name, w.position, w.grant_id, w.session_id, w.holder, w.joined_at, w.weight \
     FROM rowlock_waiter w WHERE 1 = 0; \
     SELECT x.grant_id, x.held_grant, x.name, x.position, x.owner FROM rowlock_waiting_owner x WHERE 1 = 0; \
     SELECT q.name, q.grant_id, q.fence, q.holder, q.began_at, q.ended_at, q.succeeded, q.message \
     FROM rowlock_run q WHERE 1 = 0"
);

pub(crate) const RIGHTS: &str = "SELECT, INSERT, UPDATE, DELETE";

/// The statements that give the user of `target` (made by [`Connector::target`](super::connector::Connector::target))
/// all rights that rowlock needs at run time.
pub(crate) fn grants(target: &str) -> String {
    let of_driver = || {
        let (scheme, rest) = target.split_once(':')?;
        let rest = rest.trim_start_matches('/');
        let (login, database) = rest.rsplit_once('/').unwrap_or((rest, ""));
        let user = login.rsplit_once('@').map_or(login, |(user, _)| user);
        engines::grants(scheme, user, database)
    };
    of_driver().unwrap_or_else(|| RIGHTS.to_owned())
}

/// An identifier, quoted where it would mean something else without quotes.
pub(crate) fn identifier(name: &str, quote: char) -> String {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if name.chars().all(is_plain) && !name.starts_with(|c: char| c.is_ascii_digit()) {
        return name.to_owned();
    }
    let doubled = name.replace(quote, &format!("{quote}{quote}"));
    format!("{quote}{doubled}{quote}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "sqlite")]
    #[test]
    fn they_are_on_every_table() {
        let sql = crate::migration_sql(crate::model::Engine::Sqlite, 0).unwrap();
        let made = sql.matches("CREATE TABLE").count();
        assert_eq!(made, TABLES.len(), "{sql}");
        for table in TABLES {
            assert!(sql.contains(&format!("{table} (")), "{table}");
        }
    }
}
