//! Migrations and functions as one SQL text, for a DBA to apply.

use std::fmt::Write;

use refinery_core::Migration;

use super::engines::migrations;
use super::migrate::{HISTORY_TABLE, Migrations};
use crate::model::{Engine, Error, InvalidError};

/// The SQL that brings a database from the schema version `from` to this library's, for a DBA to apply. An empty
/// database has version 0.
///
/// It also records the migrations as applied, so that rowlock then starts without the right to create tables. For
/// PostgreSQL it makes the functions of this release. Those of other releases stay, so that both can run.
///
/// # Errors
///
/// [`ConnectError::EngineNotBuilt`](crate::ConnectError::EngineNotBuilt) when the crate was built without the engine.
/// [`InvalidError::Setting`] when this release has no such version.
///
/// ```
/// let sql = rowlock::migration_sql(rowlock::Engine::Sqlite, 0)?;
/// assert!(sql.contains("CREATE TABLE IF NOT EXISTS rowlock_lock"));
/// # Ok::<(), rowlock::Error>(())
/// ```
pub fn migration_sql(engine: Engine, from: u32) -> Result<String, Error> {
    let Migrations {
        runner,
        now,
        functions,
    } = migrations(engine)?;
    let mut versions = runner.get_migrations().iter().map(Migration::version);
    if from != 0 && !versions.any(|version| i64::from(version) == i64::from(from)) {
        return Err(Error::Invalid(InvalidError::Setting {
            setting: "from",
            reason: "this release has no such version of the schema; a newer one needs a newer rowlock",
        }));
    }
    let mut sql = format!(
        "-- rowlock: the tables for {}, for {}.\n\
         -- At run time rowlock needs SELECT, INSERT, UPDATE and DELETE on them, EXECUTE on its functions\n\
         -- (PostgreSQL), and no more.\n",
        engine.name(),
        match from {
            0 => "an empty database".to_owned(),
            from => format!("a database with version {from}"),
        }
    );
    if from == 0 {
        let _ = write!(
            sql,
            "\nCREATE TABLE {HISTORY_TABLE} (\n    version int4 NOT NULL PRIMARY KEY,\n    \
             name varchar(255),\n    applied_on varchar(255),\n    checksum varchar(255)\n);\n",
        );
    }
    let after = |version: i32| u32::try_from(version).is_ok_and(|version| version > from);
    for migration in runner.get_migrations() {
        if !after(migration.version()) {
            continue;
        }
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
    if !functions.is_empty() {
        let _ = write!(sql, "\n{functions}\n");
    }
    Ok(sql)
}
