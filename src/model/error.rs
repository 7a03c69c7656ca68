//! What can go wrong, as one enum that a caller can match on.

use std::convert::Infallible;
use std::time::Duration;

use super::{
    Busy, Cause, Engine, InvalidKey, InvalidName, Loss, Name, RecordKey, Subject, UnknownEngine,
};

/// What can go wrong. Contention is not among it: see [`TryAcquire`](crate::TryAcquire).
///
/// Each message says what was tried on what, and what to do next. Passwords are never part of one.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name that is refused before the database is asked.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),

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
    #[error("`{setting}` is refused: {reason}")]
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

    /// The server is there, the database is not; or the file is no database of SQLite's.
    #[error(
        "{target} is no database ({cause}): create the database, or name another one in the URL"
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

    /// The server takes no writes: it is a standby, or was set to read only. Nothing was changed. An acquire that may
    /// wait has tried again until its wait was over: a failover ends this.
    #[error(
        "{target} takes no writes ({detail}), and a lock needs the primary: \
         correct the address, or name all servers, as HOST1:PORT1,HOST2:PORT2"
    )]
    ReadOnly {
        /// The database, without its password.
        target: String,
        /// What was seen of each server.
        detail: String,
    },

    /// PostgreSQL's search path names no schema that is there, or none that this user may use.
    #[error(
        "{target}: the search path ({search_path}) names no schema that is there and that this user may use: \
         create one, grant this user USAGE on it, or correct search_path"
    )]
    NoSchema {
        /// The database, without its password.
        target: String,
        /// The session's `search_path`.
        search_path: String,
    },

    /// This user lacks a right on the database, or on rowlock's tables.
    #[error(
        "{doing} on {target}: this user lacks a right ({cause}); rowlock needs SELECT, INSERT, UPDATE and DELETE on its \
         tables, as an administrator grants them after `rowlock migrate` has made the tables (to the user that runs the \
         transaction, if that is not the client's; on MySQL and MariaDB with the account's own host for `%`): {grants}"
    )]
    Denied {
        /// What was tried.
        doing: &'static str,
        /// The database, without its password.
        target: String,
        /// What the server said.
        cause: Cause,
        /// The statements that give the client's user all that rowlock needs at run time. PostgreSQL: and `USAGE` on the
        /// schema of the tables, where not everybody has it. MySQL, MariaDB: for the host `%`.
        grants: String,
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
        "{doing} {on}: the connection to {target} broke, and the outcome is unknown ({detail}): \
         call it again, or look at the lock or record before you go on"
    )]
    OutcomeUnknown {
        /// What was tried (`acquire`, `release`, …).
        doing: &'static str,
        /// The lock, or the record.
        on: Subject,
        /// The database, without its password.
        target: String,
        /// The last error seen.
        detail: String,
    },

    /// A guard that was released before was used.
    #[error("{doing} {name:?}: its guard was released before; acquire it again")]
    Released {
        /// What was tried.
        doing: &'static str,
        /// The lock.
        name: Name,
    },

    /// The transaction belongs to another database, engine or schema than this client. (A copy of a database, or a
    /// restored one, has the id of the first, and is not told from it.)
    #[error(
        "{doing} {on}: the transaction is not one of {target} ({detail}): begin it on a pool of the database that this client was connected to"
    )]
    WrongDatabase {
        /// What was tried.
        doing: &'static str,
        /// The lock, or the record.
        on: Subject,
        /// The client's database, without its password.
        target: String,
        /// How that was seen.
        detail: String,
    },

    /// The transaction had failed or ended before, or its connection broke.
    #[error(
        "{doing} {on}: the transaction has failed or ended before ({detail}): roll it back and begin a new one"
    )]
    TransactionOver {
        /// What was tried.
        doing: &'static str,
        /// The lock, or the record.
        on: Subject,
        /// What the database said.
        detail: String,
    },

    /// The transaction may not write.
    #[error("{doing} {on}: the transaction is read only ({detail}): begin one that may write")]
    ReadOnlyTransaction {
        /// What was tried.
        doing: &'static str,
        /// The lock, or the record.
        on: Subject,
        /// What the database said.
        detail: String,
    },

    /// The transaction has to make way for another one (a deadlock, a serialization failure, a lock that was
    /// waited for in vain, a lease that it would keep from being renewed): roll back and try again, as
    /// [`Retry`](crate::Retry) does.
    #[error("{doing} {on}: the transaction has to be begun again ({detail})")]
    TransactionAborted {
        /// What was tried.
        doing: &'static str,
        /// The lock, or the record.
        on: Subject,
        /// What the database said.
        detail: String,
    },

    /// A connection of rowlock's own got no answer while a transaction, which keeps a connection, waited for it: behind a
    /// pooler (PgBouncer, `ProxySQL`) transactions may have all of the server's connections, and all of them wait.
    ///
    /// Roll back and try again, as [`Retry`](crate::Retry) does: it makes the row that was missing before it
    /// begins again. Or make it before the transaction begins: [`Rowlock::version`](crate::Rowlock::version) does. So that it
    /// does not happen, let the pooler have more connections to the server than transactions run at a time (with 10 more for each client, no look waits for a transaction's end).
    #[error(
        "{doing} {on}: rowlock's own connection to {target} had no answer within {waited:.0?}, while this transaction keeps one: \
         do transactions take up all connections of a pooler? Roll back and try again, as `Retry` does, or behind `rowlock.version(name)`, \
         and let the pooler have more connections than transactions run at a time, by 10 for each client of rowlock"
    )]
    Starved {
        /// What was tried.
        doing: &'static str,
        /// The lock.
        on: Subject,
        /// The database, without its password.
        target: String,
        /// How long was waited.
        waited: Duration,
    },

    /// The same transaction was granted the name before: it holds it until it ends.
    #[error(
        "{name:?} is locked by this very transaction already, until it ends: lock it once, and pass the first grant on"
    )]
    AlreadyLocked {
        /// The lock.
        name: Name,
    },

    /// One call was given the same name twice.
    #[error("{name:?} is given twice in one call: give each name once")]
    DuplicateName {
        /// The lock.
        name: Name,
    },

    /// Somebody else was faster: roll back and try again, as [`Retry`](crate::Retry) does.
    #[error("{what} was changed or is held by somebody else: roll back and try again")]
    Conflict {
        /// What is in conflict: the lock's name, or a row of the application's.
        what: String,
    },

    /// A statement that was to change one row changed several.
    #[error(
        "{rows} rows were changed by a statement that was to change one: is its WHERE clause unique?"
    )]
    NotOneRow {
        /// How many rows it changed.
        rows: u64,
    },

    /// The connection broke while a transaction was being committed: whether it was, is not known, and it
    /// was not tried again.
    #[error(
        "the connection broke under a commit, whose outcome is unknown ({detail}): check whether its work was committed before you do it again"
    )]
    CommitUnknown {
        /// The last error seen.
        detail: String,
    },

    /// A statement of the application's own failed, inside a closure that returns this type.
    #[error("a statement of the application's failed: {cause}")]
    Application {
        /// The driver's error.
        cause: Cause,
    },

    /// A scope, a key or a step that is refused before the database is asked.
    #[error(transparent)]
    InvalidKey(#[from] InvalidKey),

    /// The attempt is not the running one any more: it can neither record nor, in a transaction, commit. Roll back,
    /// and do not answer: whoever has taken over does.
    #[error("{doing} {record}: {reason}; roll back")]
    Superseded {
        /// What was tried.
        doing: &'static str,
        /// The record.
        record: RecordKey,
        /// How that came.
        reason: &'static str,
    },

    /// A step that must not be repeated was begun before, and nobody knows whether it happened. Until that is found out, it is
    /// not run again, and the attempt is not completed.
    #[error(
        "{record}: whether the step {step:?} happened is not known, and it must not be repeated: find out, then say it with \
         `step_happened` or `step_not_done` of this guard, or end the attempt and run `rowlock idempotency resolve`"
    )]
    StepUnknown {
        /// The record.
        record: RecordKey,
        /// The step in doubt.
        step: String,
    },

    /// A step was begun while another one of the same guard was running: at the same time, or inside its work.
    #[error(
        "{record}: its step {step:?} is still running, and an attempt runs one step at a time: await it, then begin the next one"
    )]
    StepRunning {
        /// The record.
        record: RecordKey,
        /// The step that runs.
        step: String,
    },

    /// An outcome that is larger than what is kept: than [`max_outcome`](crate::Idempotency::max_outcome), or than a
    /// statement can carry to `MySQL` or `MariaDB` (a little less than half of `max_allowed_packet`).
    #[error(
        "{what} has {bytes} bytes, and at most {limit} are kept: keep less, or raise the limit \
         (`max_outcome`; on MySQL and MariaDB half of the server's `max_allowed_packet`, too)"
    )]
    OutcomeTooLarge {
        /// What was to be kept.
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },

    /// A response that cannot be kept: its body failed before its end, or has trailers.
    #[error("the response cannot be kept: {detail}; roll back")]
    ResponseFailed {
        /// Why.
        detail: String,
    },

    /// A value that cannot be said in JSON, or JSON that is not such a value.
    #[error("a value cannot be kept as JSON, or read from it: {detail}")]
    Json {
        /// What the parser said.
        detail: String,
    },

    /// A record that was to be changed, and is not there.
    #[error("there is no record {record}: `rowlock idempotency ls` lists those that there are")]
    NoSuchRecord {
        /// The record.
        record: RecordKey,
    },

    /// A record that cannot be changed as an administrator asked.
    #[error("{record}: {reason}")]
    NotDecided {
        /// The record.
        record: RecordKey,
        /// Why not.
        reason: &'static str,
    },

    /// A record that rowlock cannot have written: somebody edited it by hand.
    #[error(
        "the row of {record} in rowlock_idempotency is damaged: {what}; repair or delete it by hand"
    )]
    CorruptRecord {
        /// The record, as far as it can be read.
        record: String,
        /// What is wrong with the row.
        what: &'static str,
    },

    /// The lease was lost while it was needed.
    #[error("the lease of {name:?} was lost: {loss}")]
    Lost {
        /// The lock.
        name: Name,
        /// How it was lost.
        loss: Loss,
    },

    /// The lease was lost after something had pinned it, and the work was cut off: whether its transaction was committed is
    /// not known. (If it was, that was legal: nobody else was granted the name before.)
    #[error(
        "the lease of {name:?} was lost ({loss}) after it had been pinned, and the work was cut off: \
         whether its transaction was committed is not known; look before doing it again"
    )]
    CutOff {
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
            Self::Unreachable { .. }
                | Self::ReadOnly { .. }
                | Self::OutcomeUnknown { .. }
                | Self::WaitTimeout { .. }
                | Self::Starved { .. }
        )
    }
}

impl Error {
    /// Whether a transaction that failed with this may well succeed when it is begun anew: what
    /// [`Retry`](crate::Retry) tries again.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::TransactionAborted { .. } | Self::Conflict { .. } | Self::Starved { .. } => true,
            Self::Application { cause } => cause.kind().is_retryable_in_tx(),
            _ => false,
        }
    }
}

impl From<UnknownEngine> for Error {
    fn from(_: UnknownEngine) -> Self {
        Self::InvalidSetting {
            setting: "engine",
            reason: "postgres, mysql, mariadb and sqlite are allowed",
        }
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
