//! The server, the database's id, and the schema.

use async_trait::async_trait;
use uuid::Uuid;

use super::columns::read_columns;
use super::fault::Fault;
use crate::model::Engine;

/// The verbs that need no lock row: for the server and for the schema.
#[async_trait]
pub(crate) trait SchemaStore {
    /// The server's kind and version. Asked once, when the client starts.
    async fn server(&mut self) -> Result<Server, Fault>;

    /// The applied migrations, oldest first; `None` when there is no history table.
    async fn schema_history(&mut self) -> Result<Option<Vec<AppliedMigration>>, Fault>;

    /// Reads no row of the table that has the name of rowlock's lock table: fails when there is none.
    async fn find_lock_table(&mut self) -> Result<(), Fault>;

    /// Reads every column of every table, and no row: fails when a table or a column is missing. Returns whether
    /// nothing is to be done for [`keep_functions`](Self::keep_functions).
    async fn check_tables(&mut self) -> Result<bool, Fault>;

    /// Notes that this client uses the functions of its release, and makes those that are missing if it may. Returns
    /// the names of the missing ones. Drops those that no client uses. Only for PostgreSQL: the other engines have no
    /// functions.
    async fn keep_functions(&mut self, makes: bool) -> Result<Vec<String>, Fault> {
        let _ = makes;
        Ok(Vec::new())
    }

    /// Applies the missing migrations, under a lock in the database, and makes the missing functions. Returns their
    /// names.
    async fn migrate(&mut self, until: MigrateUntil) -> Result<Vec<String>, MigrateFault>;

    /// What the settings of the database cost its users: sentences for the log.
    async fn warnings(&mut self) -> Result<Vec<String>, Fault>;

    /// The database's own id, which differs from that of every other database.
    async fn database_id(&mut self) -> Result<Uuid, Fault>;
}

/// The warning about the settings (`name = value`) with which a crash of the server may lose commits that it has
/// confirmed.
pub(crate) fn relaxed(settings: &[String]) -> Vec<String> {
    if settings.is_empty() {
        return Vec::new();
    }
    let warning = format!(
        "{}: a crash of this server may lose leases that it has granted: make commits durable, or put the database in quarantine after each crash \
         (`rowlock quarantine`)",
        settings.join(", ")
    );
    vec![warning]
}

/// What the server reports about itself.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) engine: Engine,
    pub(crate) version: String,
    /// The oldest supported version, when this one is older.
    pub(crate) too_old: Option<&'static str>,
    /// Other servers of its cluster take writes too. A lock on one server does not exist on the others. When two
    /// transactions write the same row through two servers, the second one to commit fails.
    pub(crate) multi_writer: bool,
    /// A text of the database can have every character.
    pub(crate) every_character: bool,
}

/// A row of the history table.
#[derive(Debug, Clone)]
pub(crate) struct AppliedMigration {
    pub(crate) version: i32,
    pub(crate) name: String,
    pub(crate) checksum: String,
}

read_columns! {
    AppliedMigration: (i32, String, String) => |(version, name, checksum)| Self {
        version,
        name,
        checksum,
    };
}

/// Why migrating failed.
#[derive(Debug)]
pub(crate) enum MigrateFault {
    /// A statement or the connection failed.
    Fault {
        fault: Fault,
        /// The migrations that were applied before the failure.
        applied: Vec<String>,
    },
    /// Another process has been migrating for a minute.
    LockNotObtained,
    /// An applied migration differs from this library's.
    Changed(String),
    /// An applied migration has a version that this library does not know.
    Newer(i32),
    /// Refinery refuses for another reason.
    Refused(String),
}

impl From<Fault> for MigrateFault {
    fn from(fault: Fault) -> Self {
        Self::Fault {
            fault,
            applied: Vec::new(),
        }
    }
}

impl From<sqlx::Error> for MigrateFault {
    fn from(error: sqlx::Error) -> Self {
        Fault::from(error).into()
    }
}

/// How far to migrate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MigrateUntil {
    /// All migrations.
    Now,
    /// Only `rowlock_database`: a new database can be put in quarantine before it has a table in which anything is
    /// granted.
    Database,
}
