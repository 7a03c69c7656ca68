//! What can go wrong, as one enum that a caller can match on.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::lock::{Busy, Loss};
use crate::{Engine, Name};

/// The driver's error behind one of ours; prints what the database said.
#[derive(Debug, Clone)]
pub struct Cause(Arc<sqlx::Error>);

impl Cause {
    pub(crate) fn new(error: sqlx::Error) -> Self {
        Self(Arc::new(error))
    }

    /// The error of sqlx.
    #[must_use]
    pub fn sqlx(&self) -> &sqlx::Error {
        &self.0
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&said(&self.0))
    }
}

/// What the database said, without the driver's words around it.
pub(crate) fn said(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(error) => error.message().to_owned(),
        sqlx::Error::Io(error) => error.to_string(),
        other => other.to_string(),
    }
}

/// What can go wrong. Contention is not among it: see [`TryAcquire`](crate::TryAcquire).
///
/// Each message says what was tried on what, and what to do next. Passwords are never part of one.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name that is refused before the database is asked.
    #[error(
        "the lock name {name:?} is refused: {reason}; a name is 1 to 255 bytes of UTF-8 without NUL"
    )]
    InvalidName {
        /// The start of the name.
        name: String,
        /// Which rule it breaks.
        reason: &'static str,
    },

    /// A duration that is refused before the database is asked.
    #[error("{setting} = {given:?} is refused: {bounds}")]
    InvalidDuration {
        /// The setting, as it is called in Rust (`ttl`, `wait`, `max_hold`, …).
        setting: &'static str,
        /// What was given.
        given: Duration,
        /// What is allowed.
        bounds: &'static str,
    },

    /// Another setting that is refused before the database is asked.
    #[error("{setting} is refused: {reason}")]
    InvalidSetting {
        /// The setting, as it is called in Rust.
        setting: &'static str,
        /// Which rule it breaks.
        reason: &'static str,
    },

    /// The database URL cannot be used. It is not printed: it may hold a password.
    #[error("the database URL cannot be used: {reason}")]
    InvalidUrl {
        /// What is wrong with it, and what is accepted.
        reason: String,
    },

    /// The crate was built without the engine that the URL names.
    #[error("this build of rowlock has no {engine} in it: build it with the feature `{feature}`")]
    EngineNotBuilt {
        /// The engine that the URL asks for.
        engine: &'static str,
        /// The crate's feature that has it.
        feature: &'static str,
    },

    /// The server refused the credentials.
    #[error("{target} refused the login ({cause}): check the user and the password in the URL")]
    LoginRefused {
        /// The database, without its password.
        target: String,
        /// What the server said.
        cause: Cause,
    },

    /// The server is there, the database is not.
    #[error(
        "{target} does not exist ({cause}): create the database, or correct its name in the URL"
    )]
    NoSuchDatabase {
        /// The database, without its password.
        target: String,
        /// What the server said.
        cause: Cause,
    },

    /// The SQLite file cannot be opened or written.
    #[error(
        "{target} cannot be opened for writing ({cause}): \
         its folder must exist, and this user must be allowed to write the file and the folder"
    )]
    Unwritable {
        /// The file.
        target: String,
        /// What SQLite said.
        cause: Cause,
    },

    /// The database did not answer in time, or the connection could not be made.
    ///
    /// Nothing was changed, or what was changed has been undone or is being undone.
    #[error(
        "{target} cannot be reached, or did not answer in time ({detail}): \
         is it running, is the address right, does a long transaction hold it up?"
    )]
    Unreachable {
        /// The database, without its password.
        target: String,
        /// The last error seen.
        detail: String,
    },

    /// The server is older than what rowlock relies on.
    #[error("{target} runs {found}, which is too old: rowlock needs {needed}")]
    ServerTooOld {
        /// The database, without its password.
        target: String,
        /// The version that the server tells.
        found: String,
        /// The oldest version that is supported.
        needed: &'static str,
    },

    /// The tables are missing and migrating was switched off.
    #[error(
        "{target} has no rowlock tables: run `rowlock migrate`, or apply the SQL of `rowlock migrate --print {engine}`"
    )]
    SchemaMissing {
        /// The database, without its password.
        target: String,
        /// The engine, for the command.
        engine: Engine,
    },

    /// The tables are older than this library and migrating was switched off.
    #[error(
        "{target} has rowlock's schema version {found}, this library needs {needed}: run `rowlock migrate`"
    )]
    SchemaOlder {
        /// The database, without its password.
        target: String,
        /// The version found.
        found: i32,
        /// The version needed.
        needed: i32,
    },

    /// The tables were made by a newer rowlock.
    #[error(
        "{target} has rowlock's schema version {found}, this library knows {known}: update rowlock here"
    )]
    SchemaNewer {
        /// The database, without its password.
        target: String,
        /// The version found.
        found: i32,
        /// The newest version known.
        known: i32,
    },

    /// A migration that was applied differs from the one that this library carries.
    #[error(
        "{target} has another migration {migration} than this library carries: \
         it was changed after it was applied; use the library that applied it, or restore the table `{table}`"
    )]
    SchemaChanged {
        /// The database, without its password.
        target: String,
        /// The migration (version and name).
        migration: String,
        /// The history table.
        table: &'static str,
    },

    /// This user may not create tables.
    #[error(
        "{target}: this user may not create tables ({detail}): \
         have a DBA apply the SQL of `rowlock migrate --print {engine}`; \
         at run time rowlock needs only SELECT, INSERT, UPDATE and DELETE on its tables"
    )]
    MigrationDenied {
        /// The database, without its password.
        target: String,
        /// The engine, for the command.
        engine: Engine,
        /// What the server said.
        detail: String,
    },

    /// A migration failed for another reason.
    #[error("{target}: migrating failed ({detail})")]
    MigrationFailed {
        /// The database, without its password.
        target: String,
        /// What failed.
        detail: String,
    },

    /// The lock was not free within the time that the caller was willing to wait.
    #[error("{name:?} was not free within {waited:.0?}: {busy}")]
    WaitTimeout {
        /// The lock.
        name: Name,
        /// How long was waited.
        waited: Duration,
        /// Who held it at the last look.
        busy: Box<Busy>,
    },

    /// The connection broke after the statement was sent, and what became of it could not be
    /// found out in time. An acquire that may have happened is being undone.
    #[error(
        "{doing} {name:?}: the connection to {target} broke, and the outcome is unknown ({detail})"
    )]
    OutcomeUnknown {
        /// What was tried (`acquire`, `release`, …).
        doing: &'static str,
        /// The lock.
        name: Name,
        /// The database, without its password.
        target: String,
        /// The last error seen.
        detail: String,
    },

    /// The lease was lost while it was needed.
    #[error("the lease of {name:?} was lost: {loss}")]
    Lost {
        /// The lock.
        name: Name,
        /// How it was lost.
        loss: Loss,
    },

    /// A row that rowlock cannot have written: somebody edited it by hand.
    #[error(
        "the row of {name:?} in rowlock_lock is damaged: {what}; \
         `rowlock release NAME --force` frees it, or delete the row while nobody uses the lock"
    )]
    CorruptRow {
        /// The lock, as far as it can be read.
        name: String,
        /// What is wrong with the row.
        what: &'static str,
    },

    /// The database refused a statement for a reason that rowlock has no name for.
    #[error("{doing} on {target} failed: {cause}")]
    Database {
        /// What was tried.
        doing: &'static str,
        /// The database, without its password.
        target: String,
        /// What the server said.
        cause: Cause,
    },
}

impl Error {
    /// Whether trying again later may well succeed: the database was out of reach, or busy.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. } | Self::OutcomeUnknown { .. } | Self::WaitTimeout { .. }
        )
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
