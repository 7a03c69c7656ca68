//! The groups of errors that need the same answer: their variants. (Their messages are in `groups_say.rs`.)

use crate::model::{Cause, Engine, Name, RecordKey, Subject};

/// Why a client could not connect: the URL, the login, the server or the file.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ConnectError {
    /// The database URL cannot be used. The message omits the URL, because it may contain a password.
    InvalidUrl {
        /// The mistake in the URL, and the accepted forms.
        reason: String,
    },
    /// This build of the crate lacks the engine that the URL names.
    EngineNotBuilt {
        /// The engine that the URL asks for.
        engine: &'static str,
        /// The feature of this crate that adds the engine.
        feature: &'static str,
    },
    /// The server refused the credentials.
    LoginRefused {
        /// The database, without its password.
        target: String,
        /// The server's message.
        cause: Cause,
    },
    /// The server has no such database, or the file is not a SQLite database.
    NoSuchDatabase {
        /// The database, without its password.
        target: String,
        /// The server's message.
        cause: Cause,
    },
    /// The SQLite file cannot be opened or written, or must not be: it has two names, and SQLite would keep a log for
    /// each.
    Unwritable {
        /// The file.
        target: String,
        /// The reason, and what to do.
        detail: String,
    },
    /// The server is older than the oldest version that rowlock supports.
    ServerTooOld {
        /// The database, without its password.
        target: String,
        /// The version that the server reports.
        found: String,
        /// The oldest supported version.
        needed: &'static str,
    },
    /// PostgreSQL's search path names no existing schema that this user may use.
    NoSchema {
        /// The database, without its password.
        target: String,
        /// The session's `search_path`.
        search_path: String,
    },
}

impl From<ConnectError> for super::Error {
    fn from(error: ConnectError) -> Self {
        Self::Connect(error)
    }
}

/// What is wrong with rowlock's tables, or with a row in them.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum SchemaError {
    /// The tables are missing, and the client does not migrate.
    Missing {
        /// The database, without its password.
        target: String,
        /// The engine, for the command.
        engine: Engine,
    },
    /// The tables are older than this library needs, and the client does not migrate.
    Older {
        /// The database, without its password.
        target: String,
        /// The version found.
        found: i32,
        /// The version needed.
        needed: i32,
    },
    /// Functions of this release are missing (PostgreSQL), and the client does not migrate.
    FunctionsMissing {
        /// The database, without its password.
        target: String,
        /// Their names.
        functions: String,
        /// The version of the tables.
        version: i32,
    },
    /// A newer rowlock made the tables.
    Newer {
        /// The database, without its password.
        target: String,
        /// The version found.
        found: i32,
        /// The newest version known.
        known: i32,
    },
    /// An applied migration differs from this library's migration of the same version.
    Changed {
        /// The database, without its password.
        target: String,
        /// The migration (version and name).
        migration: String,
        /// The history table.
        table: &'static str,
    },
    /// A table or a column of rowlock's is missing, or another program's table has the name of one of them.
    Damaged {
        /// The database, without its password.
        target: String,
        /// What differs.
        detail: String,
    },
    /// This user may not create tables or functions.
    Denied {
        /// The database, without its password.
        target: String,
        /// The engine, for the command.
        engine: Engine,
        /// The server's message.
        detail: String,
    },
    /// A migration failed for a reason that has no variant of its own.
    Failed {
        /// The database, without its password.
        target: String,
        /// The failure.
        detail: String,
    },
    /// A row is damaged: rowlock cannot have written it, so it was edited by hand.
    Corrupt {
        /// Its table.
        table: &'static str,
        /// Its lock or session, as far as it can be read.
        name: String,
        /// The damage.
        what: &'static str,
    },
}

impl super::Error {
    /// The row of `name` in `table` cannot be read.
    pub(crate) fn damaged(table: &'static str, name: &[u8], what: &'static str) -> Self {
        Self::Schema(SchemaError::Corrupt {
            table,
            name: String::from_utf8_lossy(name).into_owned(),
            what,
        })
    }
}

impl From<SchemaError> for super::Error {
    fn from(error: SchemaError) -> Self {
        Self::Schema(error)
    }
}

/// What is wrong with a record, a step or an outcome.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum RecordError {
    /// A step that must not be repeated began earlier, and may or may not have happened. Until that is found out, the
    /// step cannot run again, and the attempt cannot complete.
    StepUnknown {
        /// The record.
        record: RecordKey,
        /// The open step.
        step: String,
    },
    /// A step began while another step of the same guard was running: at the same time, or inside its work.
    StepRunning {
        /// The record.
        record: RecordKey,
        /// The step that runs.
        step: String,
    },
    /// The outcome is larger than [`max_outcome`](crate::Idempotency::max_outcome), or than a statement can carry to
    /// `MySQL` or `MariaDB` (a little less than half of `max_allowed_packet`).
    OutcomeTooLarge {
        /// The value that rowlock should keep.
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The response cannot be kept: its body failed before its end, or has trailers.
    ResponseFailed {
        /// The reason.
        detail: String,
    },
    /// JSON cannot represent the value, or the JSON does not represent a value of this type.
    Json {
        /// The parser's message.
        detail: String,
    },
    /// The record to be changed does not exist.
    Missing {
        /// The record.
        record: RecordKey,
    },
    /// The record's state does not allow the change that an administrator asked for.
    NotDecided {
        /// The record.
        record: RecordKey,
        /// The reason.
        reason: &'static str,
    },
    /// The record is damaged: rowlock cannot have written it, so it was edited by hand.
    Corrupt {
        /// The record, as far as it can be read.
        record: String,
        /// The damage.
        what: &'static str,
    },
}

impl From<RecordError> for super::Error {
    fn from(error: RecordError) -> Self {
        Self::Record(error)
    }
}

/// Why a call in the application's transaction was refused.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum TransactionError {
    /// The transaction belongs to another database, engine or schema than this client. (A copied or restored database
    /// has the id of the original, so rowlock cannot tell them apart.)
    WrongDatabase {
        /// The operation that was tried.
        doing: &'static str,
        /// The lock, or the record.
        on: Subject,
        /// The client's database, without its password.
        target: String,
        /// The difference that rowlock found.
        detail: String,
    },
    /// The transaction has failed or ended earlier, or its connection broke.
    Over {
        /// The operation that was tried.
        doing: &'static str,
        /// The lock, or the record.
        on: Subject,
        /// The database's message.
        detail: String,
    },
    /// The transaction may not write.
    ReadOnly {
        /// The operation that was tried.
        doing: &'static str,
        /// The lock, or the record.
        on: Subject,
        /// The database's message.
        detail: String,
    },
    /// This transaction already holds the name, and keeps it until it ends.
    AlreadyLocked {
        /// The lock.
        name: Name,
    },
    /// The call names the same lock twice.
    DuplicateName {
        /// The lock.
        name: Name,
    },
    /// A statement that should change one row changed several.
    NotOneRow {
        /// How many rows it changed.
        rows: u64,
    },
}

impl From<TransactionError> for super::Error {
    fn from(error: TransactionError) -> Self {
        Self::Transaction(error)
    }
}
