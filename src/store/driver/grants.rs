//! The GRANT statements with which an administrator gives a user the rights that rowlock needs.

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

pub(crate) const RIGHTS: &str = "SELECT, INSERT, UPDATE, DELETE";

/// The statements that give the user of `target` (made by [`Connector::target`](super::connect::Connector::target))
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
