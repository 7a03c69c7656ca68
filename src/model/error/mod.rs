//! The errors that callers match on. Their messages are in [`says`]; [`retry`] decides which of them may be tried
//! again.

mod groups;
mod groups_say;
mod invalid;
mod retry;
mod says;

pub use groups::{ConnectError, RecordError, SchemaError, TransactionError};
pub use invalid::InvalidError;

use std::time::Duration;

use super::{Blocked, Busy, Cause, Kind, Loss, Name, RecordKey, Subject};

/// Every failure that this crate reports. `try_acquire` on a taken name is none: it returns `None`. A wait that runs
/// out returns [`WaitTimeout`](Self::WaitTimeout). Each message says what was tried on what, and what to do next. No
/// message contains a password. A message is one line: what others have written (holders, servers) is in it without
/// control characters.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Error {
    /// A name, a key or a setting is invalid. The database was not asked.
    Invalid(InvalidError),
    /// The client could not connect, and another try would not help.
    Connect(ConnectError),
    /// The database did not answer in time, or rowlock could not connect. Nothing was changed, or rowlock has undone
    /// or is undoing the change.
    Unreachable {
        /// The database, without its password.
        target: String,
        /// The last error seen.
        detail: String,
    },
    /// The client was shut down, or its threads panicked. Nothing was granted.
    ShutDown {
        /// The database, without its password.
        target: String,
    },
    /// The server takes no writes: it is a standby, or is set to read only. Nothing was changed. An acquire that may
    /// wait tried again until its wait was over, because a failover may end this state.
    ReadOnly {
        /// The database, without its password.
        target: String,
        /// The state of each server, as the client saw it.
        detail: String,
    },
    /// This user lacks a right on the database, or on rowlock's tables. Or row level security (PostgreSQL) hides their
    /// rows from him; then `grants` says how to end that.
    Denied {
        /// The operation that was tried.
        doing: &'static str,
        /// The database, without its password.
        target: String,
        /// The server's message.
        cause: Cause,
        /// The statements that grant the client's user the rights that rowlock needs at run time. PostgreSQL: the user
        /// also needs `USAGE` on the schema of the tables, where PUBLIC lacks it. MySQL, MariaDB: for the host `%`.
        grants: String,
    },
    /// rowlock's tables, or a row in them, are not as this library needs them.
    Schema(SchemaError),
    /// The lock was not free within the caller's wait.
    WaitTimeout {
        /// The lock.
        name: Name,
        /// The time that the call waited.
        waited: Duration,
        /// The holder at the last look.
        busy: Box<Busy>,
    },
    /// As many wait for the lock as the caller's [`queue_limit`](crate::Lock::queue_limit) allows.
    QueueFull {
        /// The lock, its holder, and the number of waiters.
        busy: Box<Busy>,
    },
    /// The wait for the lock is a part of a circle of owners that wait for each other, and joined last. Nothing was
    /// granted.
    Deadlock {
        /// The lock.
        name: Name,
        /// The circle, from this wait on.
        cycle: Vec<Blocked>,
    },
    /// The name is already used for another kind, or for a semaphore of another capacity.
    WrongKind {
        /// The name.
        name: Name,
        /// What it is.
        is: Kind,
        /// What the caller asked for.
        asked: Kind,
    },
    /// The connection broke after the statement was sent, and rowlock could not find out in time whether it happened.
    /// If it was an acquire, rowlock is undoing it.
    OutcomeUnknown {
        /// The operation that was tried (`acquire`, `release`, …).
        doing: &'static str,
        /// The lock, or the record.
        on: Subject,
        /// The database, without its password.
        target: String,
        /// The last error seen.
        detail: String,
    },
    /// The guard was used after its release.
    Released {
        /// The operation that was tried.
        doing: &'static str,
        /// The lock.
        name: Name,
    },
    /// The transaction cannot be used for this call.
    Transaction(TransactionError),
    /// Another transaction or lease was faster, or the transaction must make way for another one: a deadlock, a
    /// serialization failure, a lock wait that timed out, a lease that it would keep from being renewed. Roll back and
    /// try again, as [`Retry`](crate::Retry) does. If that fails, too, answer a request with 503, not with 409: an
    /// idempotency layer keeps a 409 and replays it.
    Conflict {
        /// What happened to which lock, record or row of the application.
        what: String,
    },
    /// A transaction has the row of the lock locked (SQLite: the file): the caller's own, or another one for the whole
    /// [`operation_timeout`](crate::Builder::operation_timeout). Nothing was changed.
    RowLocked {
        /// The operation that was tried.
        doing: &'static str,
        /// The lock.
        name: Name,
    },
    /// One of rowlock's own connections got no answer while the caller's transaction, which keeps its connection,
    /// waited for it. Behind a pooler (PgBouncer, `ProxySQL`) transactions may have all of the server's connections,
    /// and all of them wait.
    ///
    /// Roll back and try again, as [`Retry`](crate::Retry) does: it makes the missing row before it begins again. Or
    /// make the row before the transaction begins, with [`Rowlock::version`](crate::Rowlock::version). To prevent this
    /// error, give the pooler one connection to the server for each transaction that runs at a time, and
    /// [`max_connections`](crate::Builder::max_connections) (4) for each client.
    Starved {
        /// The operation that was tried.
        doing: &'static str,
        /// The lock.
        on: Subject,
        /// The database, without its password.
        target: String,
        /// The time that the call waited.
        waited: Duration,
    },
    /// The connection broke during a commit. The transaction may or may not be committed, and rowlock did not try it
    /// again.
    CommitUnknown {
        /// The last error seen.
        detail: String,
    },
    /// The application's own statement failed, inside a closure that returns this type.
    Application {
        /// The driver's error.
        cause: Cause,
    },
    /// Another attempt has replaced this one. This attempt can no longer record an outcome, and its transaction cannot
    /// commit. Roll back, and do not answer the request: the other attempt answers it.
    Superseded {
        /// The operation that was tried.
        doing: &'static str,
        /// The record.
        record: RecordKey,
        /// How the attempt ended.
        reason: &'static str,
    },
    /// The call does not fit the record, or its outcome cannot be kept.
    Record(RecordError),
    /// The lease was lost while the caller still needed it.
    Lost {
        /// The lock.
        name: Name,
        /// How it was lost.
        loss: Loss,
    },
    /// The lease was lost after a transaction had pinned it, and the work was cut off. The transaction may be
    /// committed, legally.
    CutOff {
        /// The lock.
        name: Name,
        /// How it was lost.
        loss: Loss,
    },
    /// The database refused a statement for a reason that has no variant of its own.
    Database {
        /// The operation that was tried.
        doing: &'static str,
        /// The database, without its password.
        target: String,
        /// The server's message.
        cause: Cause,
    },
}
