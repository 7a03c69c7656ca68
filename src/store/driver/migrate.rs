//! Refinery over an sqlx connection: applies the schema's migrations.
//!
//! Refinery has no driver for sqlx and takes no lock of its own. The adapter here implements refinery's asynchronous
//! traits on sqlx connections. Each engine's `schema.rs` takes the lock and calls [`run`] under it.

use refinery_core::traits::r#async::AsyncMigrate;
use refinery_core::{Migration, Report, Runner, Target, error::Kind};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::model::{Error, SchemaError};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::schema::{MigrateFault, MigrateUntil};

/// rowlock's own history table: an application that uses refinery itself keeps its own.
pub(crate) const HISTORY_TABLE: &str = "rowlock_schema_history";

/// The migrations of an engine.
pub(crate) struct Migrations {
    pub(crate) runner: Runner,
    /// The database's time in the format of the history table: an SQL expression for the migrations that a DBA
    /// applies.
    pub(crate) now: &'static str,
    /// The statements that make the functions (PostgreSQL).
    pub(crate) functions: String,
}

/// Refinery's runner with the files of `migrations/<engine>`. With refinery's macro, cargo would build its parsers
/// twice.
macro_rules! embedded {
    ($engine:literal) => {
        $crate::store::driver::migrate::embedded!($engine: "V1__database" "V2__lock" "V3__idempotency")
    };
    ($engine:literal: $($name:literal)+) => {
        $crate::store::driver::migrate::runner(&[$((
            $name,
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/", $engine, "/", $name, ".sql")),
        )),+])
    };
}
pub(crate) use embedded;

/// The runner of these pairs of a file's name, without its ending, and its text.
pub(crate) fn runner(files: &[(&str, &str)]) -> Runner {
    let migrations = files.iter().map(|(name, text)| {
        Migration::unapplied(name, text)
            .expect("a file of `migrations` has a name of refinery's form")
    });
    Runner::new(&migrations.collect::<Vec<_>>())
}

impl From<refinery_core::Error> for MigrateFault {
    fn from(error: refinery_core::Error) -> Self {
        match error.kind() {
            Kind::DivergentVersion(theirs, _) => Self::Changed(theirs.to_string()),
            Kind::MissingVersion(theirs) => Self::Newer(theirs.version()),
            Kind::Connection(_, cause) => match cause.downcast_ref::<sqlx::Error>() {
                Some(cause) => Self::Fault {
                    fault: Fault::seen(cause),
                    applied: error.report().map(names).unwrap_or_default(),
                },
                None => Self::Refused(error.to_string()),
            },
            _ => Self::Refused(error.to_string()),
        }
    }
}

/// The version that makes the row of `rowlock_database`.
pub(crate) const DATABASE: i32 = 1;

/// Applies the missing migrations on `conn`, under the caller's lock, and returns their names.
pub(crate) async fn run<C>(
    conn: C,
    mut runner: Runner,
    until: MigrateUntil,
) -> Result<Vec<String>, MigrateFault>
where
    Adapter<C>: AsyncMigrate,
{
    if until == MigrateUntil::Database {
        runner = runner.set_target(Target::Version(DATABASE));
    }
    runner.set_migration_table_name(HISTORY_TABLE);
    let report = runner.run_async(&mut Adapter(conn)).await?;
    Ok(names(&report))
}

fn names(report: &Report) -> Vec<String> {
    let applied = report.applied_migrations().iter();
    applied.map(ToString::to_string).collect()
}

/// Refinery's traits on a connection.
#[derive(Debug)]
pub(crate) struct Adapter<C>(pub(crate) C);

// A generic implementation would have to bound sqlx's executors. Each engine's `schema.rs` calls this for its
// connection.
macro_rules! adapter {
    ($connection:ty) => {
        const _: () = {
            use refinery_core::Migration;
            use refinery_core::traits::r#async::{AsyncMigrate, AsyncQuery, AsyncTransaction};
            use sqlx::{AssertSqlSafe, Connection, Row};
            use $crate::store::driver::migrate::{Adapter, applied};

            impl AsyncTransaction for Adapter<&mut $connection> {
                type Error = sqlx::Error;

                async fn execute<'a, T>(&'a mut self, queries: T) -> Result<usize, sqlx::Error>
                where
                    T: Iterator<Item = &'a str> + Send + 'a,
                {
                    let mut tx = self.0.begin().await?; // a savepoint inside the engine's transaction
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
                    // In a transaction: a proxy that splits reads from writes would send a lone read to a replica.
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
    };
}
pub(crate) use adapter;

pub(crate) fn applied(
    version: i32,
    name: String,
    on: &str,
    checksum: &str,
) -> Result<Migration, sqlx::Error> {
    let on = OffsetDateTime::parse(on, &Rfc3339).map_err(|e| sqlx::Error::Decode(e.into()))?;
    let checksum = checksum
        .parse()
        .map_err(|e| sqlx::Error::Decode(Box::new(e)))?;
    Ok(Migration::applied(version, name, on, checksum))
}

pub(crate) fn newer(target: &str, found: i32, known: i32) -> Error {
    Error::Schema(SchemaError::Newer {
        target: target.into(),
        found,
        known,
    })
}

pub(crate) fn changed(target: &str, migration: String) -> Error {
    Error::Schema(SchemaError::Changed {
        target: target.into(),
        migration,
        table: HISTORY_TABLE,
    })
}

impl MigrateFault {
    /// Whether another process got in the way, so that another try may succeed.
    pub(crate) fn may_be_tried_again(&self) -> bool {
        matches!(self, Self::Fault { fault, .. } if fault.kind.may_be_sent_again())
    }

    /// The migrations that were applied before the failure.
    pub(crate) fn applied(self) -> Vec<String> {
        match self {
            Self::Fault { applied, .. } => applied,
            _ => Vec::new(),
        }
    }
}
