//! The schema: checks whether the tables fit this library, and migrates them.

use std::cmp::Ordering;
use std::time::Duration;

use refinery_core::Migration;

use crate::model::{Engine, Error, FaultKind, Moment, SchemaError};
use crate::runtime::base::backoff;
use crate::runtime::base::settings::Preparing;
use crate::runtime::base::timer::sleep_until;
use crate::store::driver::connector::Connection;
use crate::store::driver::engines::migrations;
use crate::store::driver::migrate::{DATABASE, HISTORY_TABLE, changed, newer};
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::quarantine::Limit;
use crate::store::verbs::schema::{AppliedMigration, MigrateUntil};

/// The caller limits the time of all verbs together.
const UNBOUNDED: Duration = Duration::MAX;

/// How long to keep trying to migrate.
const PATIENCE: Duration = Duration::from_mins(1);

/// How the tables in the database compare with this library.
#[derive(Debug, PartialEq, Eq)]
enum Schema {
    Current,
    Missing,
    /// The row that can have a quarantine is there, and no table of locks yet.
    Begun,
    Older {
        found: i32,
        needed: i32,
    },
}

/// Checks the tables, and migrates them if that is wanted. Returns the migrations that this call applied.
///
/// The migration lock is local to a server, and a cluster has several servers. A process that loses against a
/// migration through another server checks again what is left to apply.
pub(crate) async fn prepare(
    connection: &mut dyn Connection,
    engine: Engine,
    target: &str,
    preparing: Preparing,
) -> Result<Vec<String>, Error> {
    let mut quarantine = preparing.quarantine;
    let give_up = Moment::now() + PATIENCE;
    let mut pauses = backoff::reconnect();
    let mut applied = Vec::new();
    loop {
        let history = read_history(connection, give_up, target).await;
        let history = history.map_err(|fault| fault.into_error("read the schema", target))??;
        // An up-to-date schema is left alone: starting does not need the right to create tables.
        let schema = compare(history, engine, target)?;
        match (&schema, preparing.migrate) {
            (Schema::Current, _) => break,
            (_, true) => {}
            (Schema::Missing | Schema::Begun, false) => {
                return Err(Error::Schema(SchemaError::Missing {
                    target: target.into(),
                    engine,
                }));
            }
            (&Schema::Older { found, needed }, false) => {
                return Err(Error::Schema(SchemaError::Older {
                    target: target.into(),
                    found,
                    needed,
                }));
            }
        }
        let until = match schema {
            Schema::Missing if quarantine.is_some() => MigrateUntil::Database,
            _ => MigrateUntil::Now,
        };
        if until == MigrateUntil::Now {
            begin_quarantine(connection, &mut quarantine, give_up, target).await?;
        }
        match connection.migrate(until).await {
            Ok(more) if until == MigrateUntil::Database => {
                applied.extend(more);
                continue;
            }
            Ok(more) => {
                applied.extend(more);
                break;
            }
            Err(fault) if fault.may_be_tried_again() && !give_up.has_passed() => {
                tracing::debug!(%target, ?fault, "another process migrates, will look again");
                applied.extend(fault.applied());
            }
            Err(fault) => {
                let known = newest(migrations(engine)?.runner.get_migrations());
                return Err(fault.into_error(engine, known, target));
            }
        }
        sleep_until(Moment::now() + pauses.next().unwrap_or_default()).await;
    }
    begin_quarantine(connection, &mut quarantine, give_up, target).await?;
    let check = async |store: &mut dyn Store| store.check_tables().await;
    match insist(connection, give_up, check).await {
        Ok(true) => return Ok(applied),
        Ok(false) => {}
        // A right on some of the tables is enough for a program that uses only these.
        Err(fault) if fault.kind == FaultKind::Denied => {}
        Err(fault) => return Err(fault.into_error("read the schema", target)),
    }
    let keep = async |store: &mut dyn Store| store.keep_functions(preparing.migrate).await;
    let missing = insist(connection, give_up, keep).await;
    let missing = missing.map_err(|fault| fault.into_migration_error(engine, target))?;
    if missing.is_empty() || preparing.migrate {
        applied.extend(missing);
        return Ok(applied);
    }
    Err(Error::Schema(SchemaError::FunctionsMissing {
        target: target.into(),
        functions: missing.join(", "),
        version: newest(migrations(engine)?.runner.get_migrations()),
    }))
}

/// Sends a verb until it is answered, or no time is left.
async fn insist<T>(
    connection: &mut dyn Connection,
    give_up: Moment,
    mut verb: impl AsyncFnMut(&mut dyn Store) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let mut pauses = backoff::reconnect();
    loop {
        match connection.call(UNBOUNDED, &mut verb).await {
            Err(fault) if fault.kind.may_be_sent_again() && !give_up.has_passed() => {
                sleep_until(Moment::now() + pauses.next().unwrap_or_default()).await;
            }
            answer => return answer,
        }
    }
}

/// Puts the database in quarantine, if that has not happened yet.
async fn begin_quarantine(
    connection: &mut dyn Connection,
    quarantine: &mut Option<Duration>,
    give_up: Moment,
    target: &str,
) -> Result<(), Error> {
    let Some(time) = quarantine.take() else {
        return Ok(());
    };
    let mut limit = Limit::new();
    let begin = async |store: &mut dyn Store| store.quarantine_begin(time, limit.next()).await;
    let begun = insist(connection, give_up, begin).await;
    begun.map_err(|fault| fault.into_error("begin the quarantine", target))?;
    Ok(())
}

/// Reads the history. The inner error: there is none, but a table with the name of rowlock's, which must not be taken
/// for ours.
async fn read_history(
    connection: &mut dyn Connection,
    give_up: Moment,
    target: &str,
) -> Result<Result<Option<Vec<AppliedMigration>>, Error>, Fault> {
    let read = async |store: &mut dyn Store| {
        if let Some(history) = store.schema_history().await? {
            return Ok(Ok(Some(history)));
        }
        match store.find_lock_table().await {
            // The history is made first. So a table that another process has just made has a history now.
            Ok(()) => Ok(match store.schema_history().await? {
                Some(history) => Ok(Some(history)),
                None => Err(Error::Schema(SchemaError::Damaged {
                    target: target.into(),
                    detail: format!("there is a table rowlock_lock, and no table {HISTORY_TABLE}"),
                })),
            }),
            Err(fault) if fault.kind == FaultKind::NoSuchTable => Ok(Ok(None)),
            Err(fault) => Err(fault),
        }
    };
    insist(connection, give_up, read).await
}

fn newest(migrations: &[Migration]) -> i32 {
    migrations.iter().map(Migration::version).max().unwrap_or(0)
}

fn compare(
    history: Option<Vec<AppliedMigration>>,
    engine: Engine,
    target: &str,
) -> Result<Schema, Error> {
    let runner = migrations(engine)?.runner;
    let ours = runner.get_migrations();
    let needed = newest(ours);
    let history = history.unwrap_or_default();
    let Some(newest) = history.last() else {
        return Ok(Schema::Missing);
    };
    if newest.version > needed {
        return Err(newer(target, newest.version, needed));
    }
    for theirs in &history {
        let same = ours.iter().any(|mine| {
            mine.version() == theirs.version
                && mine.name() == theirs.name
                && mine.checksum().to_string() == theirs.checksum
        });
        if !same {
            return Err(changed(
                target,
                format!("V{}__{}", theirs.version, theirs.name),
            ));
        }
    }
    match newest.version.cmp(&DATABASE) {
        Ordering::Less => return Ok(Schema::Missing),
        Ordering::Equal => return Ok(Schema::Begun),
        Ordering::Greater => {}
    }
    if history.len() < ours.len() {
        return Ok(Schema::Older {
            found: newest.version,
            needed,
        });
    }
    Ok(Schema::Current)
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;

    fn row_of(migration: &Migration) -> AppliedMigration {
        AppliedMigration {
            version: migration.version(),
            name: migration.name().into(),
            checksum: migration.checksum().to_string(),
        }
    }

    fn current() -> Vec<AppliedMigration> {
        let runner = migrations(Engine::Sqlite).unwrap().runner;
        let mut rows: Vec<_> = runner.get_migrations().iter().map(row_of).collect();
        rows.sort_by_key(|row| row.version);
        rows
    }

    #[test]
    fn a_history_is_missing_current_changed_or_newer() {
        let compare = |history| compare(history, Engine::Sqlite, "sqlite:x");
        assert_eq!(compare(None).unwrap(), Schema::Missing);
        assert_eq!(compare(Some(vec![])).unwrap(), Schema::Missing);
        assert_eq!(compare(Some(current())).unwrap(), Schema::Current);
        // A row that may have a quarantine, and no table of locks yet.
        let first = |count| Some(current()[..count].to_vec());
        assert_eq!(compare(first(1)).unwrap(), Schema::Begun);
        let older = compare(first(2)).unwrap();
        assert!(matches!(older, Schema::Older { found: 2, .. }));

        let mut edited = current();
        edited[0].checksum = "1".into();
        assert!(matches!(
            compare(Some(edited)),
            Err(Error::Schema(SchemaError::Changed { .. }))
        ));

        let mut ahead = current();
        let mut next = ahead[0].clone();
        next.version = 9_999;
        ahead.push(next);
        assert!(matches!(
            compare(Some(ahead)),
            Err(Error::Schema(SchemaError::Newer { found: 9_999, .. }))
        ));
    }
}
