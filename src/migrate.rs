//! Refinery over an sqlx connection: the schema's versions, and how they are applied and checked.
//!
//! Refinery has no driver for sqlx and takes no lock of its own. The adapter here is its asynchronous
//! traits on sqlx connections; the lock is each brand's `schema.rs`, which calls [`run`] under it.

use std::time::Duration;

use refinery_core::traits::r#async::{AsyncMigrate, AsyncQuery, AsyncTransaction};
use refinery_core::{Migration, Report, Runner, error::Kind};
use sqlx::{AssertSqlSafe, Connection, Row};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::hold::retry;
use crate::hold::timer::sleep_until;
use crate::model::{Engine, Error, FaultKind, Moment, said};
use crate::store::fault::{Fault, classify};
use crate::store::{Applied, Store};

/// rowlock's own history: an application that uses refinery itself keeps its own.
pub(crate) const HISTORY_TABLE: &str = "rowlock_schema_history";

/// How long migrating is tried again.
const PATIENCE: Duration = Duration::from_mins(1);

/// Why migrating failed.
#[derive(Debug)]
pub(crate) enum MigrateFault {
    /// The lock, or the connection.
    Fault(Fault),
    /// Somebody else has been migrating for a minute.
    LockNotObtained,
    /// Refinery, or a statement of a migration.
    Refinery(refinery_core::Error),
}

impl From<sqlx::Error> for MigrateFault {
    fn from(error: sqlx::Error) -> Self {
        Self::Fault(error.into())
    }
}

/// Applies what is missing on `conn`, which the caller has locked, and names what was applied.
pub(crate) async fn run<C>(conn: C, mut runner: Runner) -> Result<Vec<String>, MigrateFault>
where
    Adapter<C>: AsyncMigrate,
{
    runner.set_migration_table_name(HISTORY_TABLE);
    let report = runner
        .run_async(&mut Adapter(conn))
        .await
        .map_err(MigrateFault::Refinery)?;
    Ok(names(&report))
}

fn names(report: &Report) -> Vec<String> {
    let applied = report.applied_migrations().iter();
    applied.map(ToString::to_string).collect()
}

/// Refinery's traits on a connection.
#[derive(Debug)]
pub(crate) struct Adapter<C>(C);

// A generic implementation would have to bound sqlx's executors for every brand; three lines of
// macro say the same.
macro_rules! adapter {
    ($connection:ty) => {
        impl AsyncTransaction for Adapter<&mut $connection> {
            type Error = sqlx::Error;

            async fn execute<'a, T>(&'a mut self, queries: T) -> Result<usize, sqlx::Error>
            where
                T: Iterator<Item = &'a str> + Send + 'a,
            {
                let mut tx = self.0.begin().await?; // a savepoint inside the brand's transaction
                let mut count = 0;
                for query in queries {
                    sqlx::raw_sql(AssertSqlSafe(query))
                        .execute(&mut *tx)
                        .await?;
                    count += 1;
                }
                tx.commit().await?;
                Ok(count)
            }
        }

        impl AsyncQuery<Vec<Migration>> for Adapter<&mut $connection> {
            async fn query<'a>(
                &'a mut self,
                query: &'a str,
            ) -> Result<Vec<Migration>, sqlx::Error> {
                // Not alone: a proxy that splits reads from writes would ask a replica.
                let mut tx = self.0.begin().await?;
                let rows = sqlx::raw_sql(AssertSqlSafe(query))
                    .fetch_all(&mut *tx)
                    .await?;
                tx.commit().await?;
                rows.iter()
                    .map(|row| {
                        applied(
                            row.try_get(0)?,
                            row.try_get(1)?,
                            row.try_get(2)?,
                            row.try_get(3)?,
                        )
                    })
                    .collect()
            }
        }

        impl AsyncMigrate for Adapter<&mut $connection> {}
    };
}

#[cfg(feature = "postgres")]
adapter!(sqlx::PgConnection);
#[cfg(feature = "mysql")]
adapter!(sqlx::MySqlConnection);
#[cfg(feature = "sqlite")]
adapter!(sqlx::SqliteConnection);

fn applied(version: i32, name: String, on: &str, checksum: &str) -> Result<Migration, sqlx::Error> {
    let on = OffsetDateTime::parse(on, &Rfc3339).map_err(|e| sqlx::Error::Decode(e.into()))?;
    let checksum = checksum
        .parse()
        .map_err(|e| sqlx::Error::Decode(Box::new(e)))?;
    Ok(Migration::applied(version, name, on, checksum))
}

/// The migrations of an engine.
pub(crate) fn runner(engine: Engine) -> Result<Runner, Error> {
    match engine {
        #[cfg(feature = "postgres")]
        Engine::Postgres => Ok(crate::store::postgres::runner()),
        #[cfg(feature = "mysql")]
        Engine::MySql | Engine::MariaDb => Ok(crate::store::mysql::runner()),
        #[cfg(feature = "sqlite")]
        Engine::Sqlite => Ok(crate::store::sqlite::runner()),
        #[allow(
            unreachable_patterns,
            reason = "reachable in a build without some engine"
        )]
        _ => Err(Error::EngineNotBuilt {
            engine: engine.name(),
            feature: engine.feature(),
        }),
    }
}

/// How the tables found stand to this library.
#[derive(Debug, PartialEq, Eq)]
enum Schema {
    Current,
    Missing,
    Older { found: i32, needed: i32 },
}

/// Checks the tables, and makes them what this library needs when `migrate` says so. Returns the
/// migrations that were applied here.
///
/// The lock under which migrations run is one of the server, and a cluster has several: whoever loses against a
/// migration through another one of them looks again what is left to do.
pub(crate) async fn prepare<S: Store>(
    conn: &mut S,
    engine: Engine,
    target: &str,
    migrate: bool,
) -> Result<Vec<String>, Error> {
    let give_up = Moment::now() + PATIENCE;
    let mut pauses = retry::reconnect();
    let mut applied = Vec::new();
    loop {
        let history = conn
            .schema_history()
            .await
            .map_err(|fault| fault.into_error("read the schema", target))?;
        // An up-to-date schema is left alone: the rights to create anything are not needed to start.
        match (compare(history, engine, target)?, migrate) {
            (Schema::Current, _) => return Ok(applied),
            (_, true) => {}
            (Schema::Missing, false) => {
                return Err(Error::SchemaMissing {
                    target: target.into(),
                    engine,
                });
            }
            (Schema::Older { found, needed }, false) => {
                return Err(Error::SchemaOlder {
                    target: target.into(),
                    found,
                    needed,
                });
            }
        }
        match conn.migrate().await {
            Ok(more) => {
                applied.extend(more);
                return Ok(applied);
            }
            Err(fault) if fault.is_retryable() && !give_up.has_passed() => {
                tracing::debug!(%target, ?fault, "another process migrates");
                applied.extend(fault.applied());
            }
            Err(fault) => return Err(fault.into_error(engine, target)),
        }
        sleep_until(Moment::now() + pauses.next().unwrap_or_default()).await;
    }
}

fn compare(history: Option<Vec<Applied>>, engine: Engine, target: &str) -> Result<Schema, Error> {
    let runner = runner(engine)?;
    let ours = runner.get_migrations();
    let needed = ours.iter().map(Migration::version).max().unwrap_or(0);
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
    if history.len() < ours.len() {
        return Ok(Schema::Older {
            found: newest.version,
            needed,
        });
    }
    Ok(Schema::Current)
}

fn newer(target: &str, found: i32, known: i32) -> Error {
    Error::SchemaNewer {
        target: target.into(),
        found,
        known,
    }
}

fn changed(target: &str, migration: String) -> Error {
    Error::SchemaChanged {
        target: target.into(),
        migration,
        table: HISTORY_TABLE,
    }
}

impl MigrateFault {
    /// Whether another process has got in the way.
    fn is_retryable(&self) -> bool {
        match self {
            Self::Fault(fault) => fault.kind.is_retryable(),
            Self::LockNotObtained => false,
            Self::Refinery(error) => match error.kind() {
                Kind::Connection(_, cause) => cause
                    .downcast_ref::<sqlx::Error>()
                    .is_some_and(|cause| classify(cause).is_retryable()),
                _ => false,
            },
        }
    }

    /// What was applied before it.
    fn applied(&self) -> Vec<String> {
        match self {
            Self::Refinery(error) => error.report().map(names).unwrap_or_default(),
            Self::Fault(_) | Self::LockNotObtained => Vec::new(),
        }
    }

    fn into_error(self, engine: Engine, target: &str) -> Error {
        let failed = |detail: String| Error::MigrationFailed {
            target: target.into(),
            detail,
        };
        let (kind, detail) = match self {
            Self::Fault(fault) => (fault.kind, fault.to_string()),
            Self::LockNotObtained => {
                return failed("another process has been migrating for 60 s; try again".into());
            }
            Self::Refinery(error) => match error.kind() {
                Kind::DivergentVersion(theirs, _) => return changed(target, theirs.to_string()),
                Kind::MissingVersion(theirs) => {
                    let known = runner(engine).map_or(0, |r| {
                        r.get_migrations()
                            .iter()
                            .map(Migration::version)
                            .max()
                            .unwrap_or(0)
                    });
                    return newer(target, theirs.version(), known);
                }
                Kind::Connection(_, cause) => match cause.downcast_ref::<sqlx::Error>() {
                    Some(cause) => (classify(cause), said(cause)),
                    None => return failed(error.to_string()),
                },
                _ => return failed(error.to_string()),
            },
        };
        match kind {
            FaultKind::Denied => Error::MigrationDenied {
                target: target.into(),
                engine,
                detail,
            },
            FaultKind::Disconnected => Error::Unreachable {
                target: target.into(),
                detail,
            },
            FaultKind::ReadOnly => Error::ReadOnly {
                target: target.into(),
                detail,
            },
            _ => failed(detail),
        }
    }
}

/// The SQL that brings an empty database to this library's schema, for a DBA to apply.
///
/// It also records the migrations as applied, so that rowlock then starts without the right to
/// create anything.
///
/// # Errors
///
/// [`Error::EngineNotBuilt`] when the crate was built without the engine.
///
/// ```
/// let sql = rowlock::migration_sql(rowlock::Engine::Sqlite)?;
/// assert!(sql.contains("CREATE TABLE IF NOT EXISTS rowlock_lock"));
/// # Ok::<(), rowlock::Error>(())
/// ```
pub fn migration_sql(engine: Engine) -> Result<String, Error> {
    use std::fmt::Write;

    let now = match engine {
        Engine::Postgres => {
            "to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')"
        }
        Engine::MySql | Engine::MariaDb => "DATE_FORMAT(UTC_TIMESTAMP(), '%Y-%m-%dT%H:%i:%sZ')",
        Engine::Sqlite => "strftime('%Y-%m-%dT%H:%M:%SZ', 'now')",
    };
    let mut sql = format!(
        "-- rowlock: the tables for {}, for an empty database.\n\
         -- At run time rowlock needs SELECT, INSERT, UPDATE and DELETE on them, and no more.\n\n\
         CREATE TABLE {HISTORY_TABLE} (\n    version int4 NOT NULL PRIMARY KEY,\n    \
         name varchar(255),\n    applied_on varchar(255),\n    checksum varchar(255)\n);\n",
        engine.name()
    );
    for migration in runner(engine)?.get_migrations() {
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

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;

    fn row_of(migration: &Migration) -> Applied {
        Applied {
            version: migration.version(),
            name: migration.name().into(),
            checksum: migration.checksum().to_string(),
        }
    }

    fn current() -> Vec<Applied> {
        runner(Engine::Sqlite)
            .unwrap()
            .get_migrations()
            .iter()
            .map(row_of)
            .collect()
    }

    #[test]
    fn a_history_is_missing_current_changed_or_newer() {
        let compare = |history| compare(history, Engine::Sqlite, "sqlite:x");
        assert_eq!(compare(None).unwrap(), Schema::Missing);
        assert_eq!(compare(Some(vec![])).unwrap(), Schema::Missing);
        assert_eq!(compare(Some(current())).unwrap(), Schema::Current);

        let mut edited = current();
        edited[0].checksum = "1".into();
        assert!(matches!(
            compare(Some(edited)),
            Err(Error::SchemaChanged { .. })
        ));

        let mut ahead = current();
        let mut next = ahead[0].clone();
        next.version = 9_999;
        ahead.push(next);
        assert!(matches!(
            compare(Some(ahead)),
            Err(Error::SchemaNewer { found: 9_999, .. })
        ));
    }
}
