//! One kind of failure for all brands. `<brand>/fault.rs` maps the vendor's codes to it, and retry
//! reads nothing else.

use std::fmt;

use sqlx::error::DatabaseError;

use crate::model::{Cause, Error, FaultKind};
use crate::store::grants::grants;

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
            cause: Cause::new(sqlx::Error::Io(late), FaultKind::Disconnected),
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
            cause: Cause::new(sqlx::Error::Io(error), kind),
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
        let kind = classify(&error);
        Self {
            kind,
            cause: Cause::new(error, kind),
        }
    }
}

/// So that `?` works on the application's own statements where this is the error.
impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        let kind = classify(&error);
        Self::Application {
            cause: Cause::new(error, kind),
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
