//! The errors that callers match on. What each says stands in [`says`]; whether to try again, in [`retry`].

mod retry;
mod says;

use std::time::Duration;

use super::{Busy, Cause, Engine, InvalidKey, InvalidName, Loss, Name, RecordKey, Subject};

/// What can go wrong. Contention is not among it: see [`TryAcquire`](crate::TryAcquire).
///
/// Each message says what was tried on what, and what to do next. Passwords are never part of one.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Error {
    // Input that is refused before the database is asked.
    /// A name that is refused before the database is asked.
    InvalidName(InvalidName),
    /// A duration that is refused before the database is asked.
    InvalidDuration {
        /// The setting, as it is called in Rust (`ttl`, `wait`, `max_hold`, …).
        setting: &'static str,
        /// What was given.
        given: Duration,
        /// What is allowed.
        bounds: &'static str,
    },
    /// Another setting that is refused before the database is asked.
    InvalidSetting {
        /// The setting, as it is called in Rust.
        setting: &'static str,
        /// Which rule it breaks.
        reason: &'static str,
    },
    /// The database URL cannot be used. It is not printed: it may hold a password.
    InvalidUrl {
        /// What is wrong with it, and what is accepted.
        reason: String,
    },
    /// The crate was built without the engine that the URL names.
    EngineNotBuilt {
        /// The engine that the URL asks for.
        engine: &'static str,
        /// The crate's feature that has it.
        feature: &'static str,
    },

    // A database that cannot be used.
    /// The server refused the credentials.
    LoginRefused {
        /// The database, without its password.
        target: String,
        /// What the server said.
        cause: Cause,
    },
    /// The server is there, the database is not; or the file is no database of SQLite's.
    NoSuchDatabase {
        /// The database, without its password.
        target: String,
        /// What the server said.
        cause: Cause,
    },
    /// The SQLite file cannot be opened or written.
    Unwritable {
        /// The file.
        target: String,
        /// What SQLite said.
        cause: Cause,
    },
    /// The database did not answer in time, or the connection could not be made.
    /// Nothing was changed, or what was changed has been undone or is being undone.
    Unreachable {
        /// The database, without its password.
        target: String,
        /// The last error seen.
        detail: String,
    },
    /// The client was shut down, or its own threads have ended with a panic. Nothing was granted.
    ShutDown {
        /// The database, without its password.
        target: String,
    },
    /// The server takes no writes: it is a standby, or was set to read only. Nothing was changed. An acquire that may
    /// wait has tried again until its wait was over: a failover ends this.
    ReadOnly {
        /// The database, without its password.
        target: String,
        /// What was seen of each server.
        detail: String,
    },
    /// PostgreSQL's search path names no schema that is there, or none that this user may use.
    NoSchema {
        /// The database, without its password.
        target: String,
        /// The session's `search_path`.
        search_path: String,
    },
    /// This user lacks a right on the database, or on rowlock's tables.
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

    // The server's version, and the tables.
    /// The server is older than what rowlock relies on.
    ServerTooOld {
        /// The database, without its password.
        target: String,
        /// The version that the server tells.
        found: String,
        /// The oldest version that is supported.
        needed: &'static str,
    },
    /// The tables are missing and migrating was switched off.
    SchemaMissing {
        /// The database, without its password.
        target: String,
        /// The engine, for the command.
        engine: Engine,
    },
    /// The tables are older than this library and migrating was switched off.
    SchemaOlder {
        /// The database, without its password.
        target: String,
        /// The version found.
        found: i32,
        /// The version needed.
        needed: i32,
    },
    /// The tables were made by a newer rowlock.
    SchemaNewer {
        /// The database, without its password.
        target: String,
        /// The version found.
        found: i32,
        /// The newest version known.
        known: i32,
    },
    /// A migration that was applied differs from the one that this library carries.
    SchemaChanged {
        /// The database, without its password.
        target: String,
        /// The migration (version and name).
        migration: String,
        /// The history table.
        table: &'static str,
    },
    /// This user may not create tables.
    MigrationDenied {
        /// The database, without its password.
        target: String,
        /// The engine, for the command.
        engine: Engine,
        /// What the server said.
        detail: String,
    },
    /// A migration failed for another reason.
    MigrationFailed {
        /// The database, without its password.
        target: String,
        /// What failed.
        detail: String,
    },

    // Leases.
    /// The lock was not free within the time that the caller was willing to wait.
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
    Released {
        /// What was tried.
        doing: &'static str,
        /// The lock.
        name: Name,
    },

    // Transactions.
    /// The transaction belongs to another database, engine or schema than this client. (A copy of a database, or a
    /// restored one, has the id of the first, and is not told from it.)
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
    TransactionOver {
        /// What was tried.
        doing: &'static str,
        /// The lock, or the record.
        on: Subject,
        /// What the database said.
        detail: String,
    },
    /// The transaction may not write.
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
    AlreadyLocked {
        /// The lock.
        name: Name,
    },
    /// One call was given the same name twice.
    DuplicateName {
        /// The lock.
        name: Name,
    },

    // Work in a transaction that `Retry` runs.
    /// Somebody else was faster: roll back and try again, as [`Retry`](crate::Retry) does.
    Conflict {
        /// What is in conflict: the lock's name, or a row of the application's.
        what: String,
    },
    /// A statement that was to change one row changed several.
    NotOneRow {
        /// How many rows it changed.
        rows: u64,
    },
    /// The connection broke while a transaction was being committed: whether it was, is not known, and it
    /// was not tried again.
    CommitUnknown {
        /// The last error seen.
        detail: String,
    },
    /// A statement of the application's own failed, inside a closure that returns this type.
    Application {
        /// The driver's error.
        cause: Cause,
    },

    // Idempotency.
    /// A scope, a key or a step that is refused before the database is asked.
    InvalidKey(InvalidKey),
    /// The attempt is not the running one any more: it can neither record nor, in a transaction, commit. Roll back,
    /// and do not answer: whoever has taken over does.
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
    StepUnknown {
        /// The record.
        record: RecordKey,
        /// The open step.
        step: String,
    },
    /// A step was begun while another one of the same guard was running: at the same time, or inside its work.
    StepRunning {
        /// The record.
        record: RecordKey,
        /// The step that runs.
        step: String,
    },
    /// An outcome that is larger than what is kept: than [`max_outcome`](crate::Idempotency::max_outcome), or than a
    /// statement can carry to `MySQL` or `MariaDB` (a little less than half of `max_allowed_packet`).
    OutcomeTooLarge {
        /// What was to be kept.
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A response that cannot be kept: its body failed before its end, or has trailers.
    ResponseFailed {
        /// Why.
        detail: String,
    },
    /// A value that cannot be said in JSON, or JSON that is not such a value.
    Json {
        /// What the parser said.
        detail: String,
    },
    /// A record that was to be changed, and is not there.
    NoSuchRecord {
        /// The record.
        record: RecordKey,
    },
    /// A record that cannot be changed as an administrator asked.
    NotDecided {
        /// The record.
        record: RecordKey,
        /// Why not.
        reason: &'static str,
    },
    /// A record that rowlock cannot have written: somebody edited it by hand.
    CorruptRecord {
        /// The record, as far as it can be read.
        record: String,
        /// What is wrong with the row.
        what: &'static str,
    },

    // A lost lease, a damaged row, any other failure.
    /// The lease was lost while it was needed.
    Lost {
        /// The lock.
        name: Name,
        /// How it was lost.
        loss: Loss,
    },
    /// The lease was lost after something had pinned it, and the work was cut off: whether its transaction was committed is
    /// not known. (If it was, that was legal: nobody else was granted the name before.)
    CutOff {
        /// The lock.
        name: Name,
        /// How it was lost.
        loss: Loss,
    },
    /// A row that rowlock cannot have written: somebody edited it by hand.
    CorruptRow {
        /// The lock, as far as it can be read.
        name: String,
        /// What is wrong with the row.
        what: &'static str,
    },
    /// The database refused a statement for a reason that rowlock has no name for.
    Database {
        /// What was tried.
        doing: &'static str,
        /// The database, without its password.
        target: String,
        /// What the server said.
        cause: Cause,
    },
}
