//! One kind of failure for all brands. `<brand>/fault.rs` maps the vendor's codes to it, and retry
//! reads nothing else.
//!
//! A driver's error is classified once, here, when it becomes a [`Fault`]. What a caller is told of a fault is decided in
//! `fault_error.rs`.

use std::fmt;

use sqlx::error::DatabaseError;

use super::brands;
use crate::model::{Cause, FaultKind, said};

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

    /// The same as of an error that is only lent: what it says is kept, not the error.
    pub(crate) fn seen(error: &sqlx::Error) -> Self {
        Self::said(classify(error), said(error))
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

/// The kind of an error that the application has met, if it is one of a driver's. Behind `#[error(transparent)]`, sqlx's own
/// error is passed over, and the database's is seen.
pub(crate) fn kind_of(error: &(dyn std::error::Error + 'static)) -> Option<FaultKind> {
    if let Some(error) = error.downcast_ref::<sqlx::Error>() {
        return Some(classify(error));
    }
    let error = error.downcast_ref::<Box<dyn DatabaseError>>()?;
    Some(classify_database(error.as_ref()))
}

/// The kind of any driver's error: by the vendor's code where there is one.
fn classify(error: &sqlx::Error) -> FaultKind {
    use sqlx::Error as E;
    match error {
        E::Io(_) | E::Tls(_) | E::Protocol(_) | E::WorkerCrashed | E::BeginFailed => {
            FaultKind::Disconnected
        }
        E::Database(error) => classify_database(error.as_ref()),
        _ => FaultKind::Other,
    }
}

fn classify_database(error: &dyn DatabaseError) -> FaultKind {
    brands::fault_kind(error).unwrap_or(FaultKind::Other)
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.cause, f)
    }
}

impl std::error::Error for Fault {}
