//! The grants that an administrator gives a user of rowlock.

/// Every table of rowlock's.
const TABLES: [&str; 6] = [
    "rowlock_lock",
    "rowlock_database",
    "rowlock_idempotency",
    "rowlock_idempotency_step",
    "rowlock_form_token",
    "rowlock_schema_history",
];

const RIGHTS: &str = "SELECT, INSERT, UPDATE, DELETE";

/// The statements that give the user of `target` (which [`Connector::target`](super::Connector::target) has made) all that
/// rowlock needs at run time.
///
/// An account of MySQL and MariaDB has a host, too. The server tells it only to those whom it lets in: `%` stands there,
/// as CREATE USER does without one.
pub(super) fn grants(target: &str) -> String {
    let Some((scheme, rest)) = target.split_once("://") else {
        return RIGHTS.to_owned();
    };
    let (login, database) = rest.rsplit_once('/').unwrap_or((rest, ""));
    let user = login.rsplit_once('@').map_or(login, |(user, _)| user);
    if scheme == "postgres" {
        let (user, database) = (name(user, '"'), name(database, '"'));
        let tables = TABLES.join(", ");
        return format!(
            "GRANT CONNECT ON DATABASE {database} TO {user}; GRANT {RIGHTS} ON {tables} TO {user};"
        );
    }
    let (user, database) = (user.replace('\'', "''"), name(database, '`'));
    let grants =
        TABLES.map(|table| format!("GRANT {RIGHTS} ON {database}.{table} TO '{user}'@'%';"));
    grants.join(" ")
}

/// An identifier, in quotes where it would be another one without.
fn name(name: &str, quote: char) -> String {
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

    #[test]
    fn they_are_for_the_user_and_the_database_of_the_url() {
        let text = grants("postgres://Shop App@a:1,b:2/shop");
        let tables = TABLES.join(", ");
        assert_eq!(
            text,
            format!(
                "GRANT CONNECT ON DATABASE shop TO \"Shop App\"; \
                 GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO \"Shop App\";"
            )
        );
        let text = grants("mysql://o'neil@db:3306/my-shop");
        let first = "GRANT SELECT, INSERT, UPDATE, DELETE ON `my-shop`.rowlock_lock TO 'o''neil'@'%'; GRANT";
        assert!(text.starts_with(first), "{text}");
        assert_eq!(text.matches("GRANT").count(), TABLES.len());
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn they_are_on_every_table() {
        let sql = crate::migration_sql(crate::model::Engine::Sqlite).unwrap();
        let made = sql.matches("CREATE TABLE").count();
        assert_eq!(made, TABLES.len(), "{sql}");
        for table in TABLES {
            assert!(sql.contains(&format!("{table} (")), "{table}");
        }
    }
}
