//! All migrations as one SQL text, for a DBA to apply.

use std::fmt::Write;

use super::engines::migrations;
use super::migrate::{HISTORY_TABLE, Migrations};
use crate::model::{Engine, Error};

/// The SQL that brings an empty database to this library's schema, for a DBA to apply.
///
/// It also records the migrations as applied, so that rowlock then starts without the right to
/// create tables.
///
/// # Errors
///
/// [`ConnectError::EngineNotBuilt`](crate::ConnectError::EngineNotBuilt) when the crate was built without the engine.
///
/// ```
/// let sql = rowlock::migration_sql(rowlock::Engine::Sqlite)?;
/// assert!(sql.contains("CREATE TABLE IF NOT EXISTS rowlock_lock"));
/// # Ok::<(), rowlock::Error>(())
/// ```
pub fn migration_sql(engine: Engine) -> Result<String, Error> {
    let Migrations { runner, now } = migrations(engine)?;
    let mut sql = format!(
        "-- rowlock: the tables for {}, for an empty database.\n\
         -- At run time rowlock needs SELECT, INSERT, UPDATE and DELETE on them, EXECUTE on its functions (PostgreSQL), and no more.\n\n\
         CREATE TABLE {HISTORY_TABLE} (\n    version int4 NOT NULL PRIMARY KEY,\n    \
         name varchar(255),\n    applied_on varchar(255),\n    checksum varchar(255)\n);\n",
        engine.name()
    );
    for migration in runner.get_migrations() {
        let text = migration.sql().unwrap_or_default().trim_end();
        let _ = write!(
            sql,
            "\n-- {migration}\n{text}\n\
             INSERT INTO {HISTORY_TABLE} (version, name, applied_on, checksum)\n\
             VALUES ({}, '{}', {now}, '{}');\n",
            migration.version(),
            migration.name(),
            migration.checksum(),
        );
    }
    Ok(sql)
}
