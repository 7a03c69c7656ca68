//! One kind of failure for all brands. `<brand>/fault.rs` maps the vendor's codes to it, and retry
//! reads nothing else.

use std::fmt;

use sqlx::error::DatabaseError;

use crate::cause::Cause;
use crate::error::Error;
use crate::store::grants::grants;

/// What a failed statement means for whoever sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// Another transaction was faster (MariaDB's 1020): rolled back.
    Conflict,
    /// A duplicate key.
    Duplicate,
    /// Chosen as the victim of a deadlock: rolled back.
    Deadlock,
    /// A serialization failure: rolled back.
    Serialization,
    /// A lock was waited for in vain: the statement is rolled back.
    LockTimeout,
    /// Somebody, or a limit of the server's, ended the statement: rolled back.
    Interrupted,
    /// The transaction that the statement was meant for has failed before, or has ended.
    TransactionOver,
    /// The connection is of no use any more. If a statement was under way, its outcome is unknown.
    Disconnected,
    /// The server takes no writes, because it is not the primary any more: nothing was done, and
    /// another connection may find the one that is.
    ReadOnly,
    /// The search path names no schema that is there. (The cause is the path.)
    NoSchema,
    /// The server refuses the login.
    LoginRefused,
    /// There is no such database.
    NoSuchDatabase,
    /// The file cannot be opened, or not be written.
    Unwritable,
    /// This user lacks a right.
    Denied,
    /// A table is missing.
    NoSuchTable,
    /// The statement is larger than the server takes. Nothing was done, and the connection is closed.
    TooLarge,
    /// Something else: rolled back, and the same statement would fail again.
    Other,
}

impl FaultKind {
    /// Whether the connection is of no use any more, or another one may find a better server.
    pub(crate) fn ends_connection(self) -> bool {
        matches!(self, Self::Disconnected | Self::ReadOnly | Self::TooLarge)
    }

    /// Whether the statement was rolled back and may simply be sent again.
    pub(crate) fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::Conflict
                | Self::Duplicate
                | Self::Deadlock
                | Self::Serialization
                | Self::LockTimeout
                | Self::Interrupted
        )
    }

    /// Whether a whole transaction that failed with it may well succeed when it is begun anew. (A
    /// duplicate key would be one again.)
    pub(crate) fn is_retryable_in_tx(self) -> bool {
        matches!(
            self,
            Self::Conflict | Self::Deadlock | Self::Serialization | Self::LockTimeout
        )
    }
}

/// A failed statement: its kind, and what the driver said.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) cause: Cause,
}

impl Fault {
    /// The statement, or the connecting, was not done in time.
    pub(crate) fn timed_out() -> Self {
        let late = std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer in time");
        Self {
            kind: FaultKind::Disconnected,
            cause: Cause::new(sqlx::Error::Io(late)),
        }
    }

    /// Whether nothing was heard of the server at all, in time.
    pub(crate) fn is_silence(&self) -> bool {
        match self.cause.sqlx() {
            sqlx::Error::Io(error) => error.kind() == std::io::ErrorKind::TimedOut,
            _ => false,
        }
    }

    /// Whether the server has answered, and said that it cannot serve us now: it has no room, or starts.
    pub(crate) fn is_no_room(&self) -> bool {
        self.kind == FaultKind::Disconnected
            && matches!(self.cause.sqlx(), sqlx::Error::Database(_))
    }

    /// What we say ourselves.
    pub(crate) fn said(kind: FaultKind, what: impl Into<String>) -> Self {
        let error = std::io::Error::other(what.into());
        Self {
            kind,
            cause: Cause::new(sqlx::Error::Io(error)),
        }
    }

    /// The caller's transaction has ended already.
    pub(crate) fn transaction_over() -> Self {
        let over = "there is no transaction open on the connection";
        Self::said(FaultKind::TransactionOver, over)
    }

    /// The error for a caller, who tried `doing`.
    pub(crate) fn into_error(self, doing: &'static str, target: &str) -> Error {
        let (target, cause) = (target.to_owned(), self.cause);
        match self.kind {
            FaultKind::LoginRefused => Error::LoginRefused { target, cause },
            FaultKind::NoSuchDatabase => Error::NoSuchDatabase { target, cause },
            FaultKind::Unwritable => Error::Unwritable { target, cause },
            FaultKind::ReadOnly => Error::ReadOnly {
                target,
                detail: cause.to_string(),
            },
            FaultKind::NoSchema => Error::NoSchema {
                target,
                search_path: cause.to_string(),
            },
            FaultKind::Disconnected
            | FaultKind::Conflict
            | FaultKind::Duplicate
            | FaultKind::Deadlock
            | FaultKind::Serialization
            | FaultKind::LockTimeout
            | FaultKind::Interrupted => Error::Unreachable {
                target,
                detail: cause.to_string(),
            },
            FaultKind::Denied => Error::Denied {
                grants: grants(&target),
                doing,
                target,
                cause,
            },
            FaultKind::NoSuchTable
            | FaultKind::TooLarge
            | FaultKind::TransactionOver
            | FaultKind::Other => Error::Database {
                doing,
                target,
                cause,
            },
        }
    }
}

impl From<sqlx::Error> for Fault {
    fn from(error: sqlx::Error) -> Self {
        Self {
            kind: classify(&error),
            cause: Cause::new(error),
        }
    }
}

/// The kind of any driver's error: by the vendor's code where there is one.
pub(crate) fn classify(error: &sqlx::Error) -> FaultKind {
    use sqlx::Error as E;
    match error {
        E::Io(_) | E::Tls(_) | E::Protocol(_) | E::WorkerCrashed | E::BeginFailed => {
            FaultKind::Disconnected
        }
        E::Database(error) => classify_database(error.as_ref()),
        _ => FaultKind::Other,
    }
}

/// The kind of what a database said.
pub(crate) fn classify_database(error: &dyn DatabaseError) -> FaultKind {
    of_vendor(error).unwrap_or(FaultKind::Other)
}

fn of_vendor(error: &dyn DatabaseError) -> Option<FaultKind> {
    let brands: &[fn(&dyn DatabaseError) -> Option<FaultKind>] = &[
        #[cfg(feature = "postgres")]
        super::postgres::fault_kind,
        #[cfg(feature = "mysql")]
        super::mysql::fault_kind,
        #[cfg(feature = "sqlite")]
        super::sqlite::fault_kind,
    ];
    brands.iter().find_map(|kind| kind(error))
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.cause, f)
    }
}

impl std::error::Error for Fault {}
