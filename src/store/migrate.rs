//! Refinery over an sqlx connection: the schema's versions, and how they are applied and checked.
//!
//! Refinery has no driver for sqlx and takes no lock of its own. The adapter here is its asynchronous
//! traits on sqlx connections; the lock is each brand's `schema.rs`, which calls [`run`] under it.

use refinery_core::traits::r#async::{AsyncMigrate, AsyncQuery, AsyncTransaction};
use refinery_core::{Migration, Report, Runner, error::Kind};
use sqlx::{AssertSqlSafe, Connection, Row};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::model::{Engine, Error, FaultKind, said};
use crate::store::fault::{Fault, classify};

/// rowlock's own history: an application that uses refinery itself keeps its own.
pub(crate) const HISTORY_TABLE: &str = "rowlock_schema_history";

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

pub(crate) fn newer(target: &str, found: i32, known: i32) -> Error {
    Error::SchemaNewer {
        target: target.into(),
        found,
        known,
    }
}

pub(crate) fn changed(target: &str, migration: String) -> Error {
    Error::SchemaChanged {
        target: target.into(),
        migration,
        table: HISTORY_TABLE,
    }
}

impl MigrateFault {
    /// Whether another process has got in the way.
    pub(crate) fn is_retryable(&self) -> bool {
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
    pub(crate) fn applied(&self) -> Vec<String> {
        match self {
            Self::Refinery(error) => error.report().map(names).unwrap_or_default(),
            Self::Fault(_) | Self::LockNotObtained => Vec::new(),
        }
    }

    pub(crate) fn into_error(self, engine: Engine, target: &str) -> Error {
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
