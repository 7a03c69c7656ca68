//! One set of failure kinds for all engines. Each `<engine>/fault.rs` maps the vendor's codes to it, and retry reads
//! nothing else.
//!
//! A driver's error is classified once, in `classify.rs`, when it becomes a [`Fault`]. `fault_error.rs` decides which
//! error a caller gets for a fault.

use std::fmt;

use crate::model::{Cause, FaultKind};

/// A failed statement: its kind, and the driver's error.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) cause: Cause,
}

impl Fault {
    /// The statement, or the connection attempt, ran out of time.
    pub(crate) fn timed_out() -> Self {
        let late = std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer in time");
        Self {
            kind: FaultKind::Disconnected,
            cause: Cause::new(sqlx::Error::Io(late), FaultKind::Disconnected),
        }
    }

    /// Whether the server did not answer at all in time.
    pub(crate) fn is_silence(&self) -> bool {
        match self.cause.sqlx() {
            sqlx::Error::Io(error) => error.kind() == std::io::ErrorKind::TimedOut,
            _ => false,
        }
    }

    /// Whether the server answered that it cannot serve us now: it is full, or still starting.
    pub(crate) fn is_no_room(&self) -> bool {
        self.kind == FaultKind::Disconnected
            && matches!(self.cause.sqlx(), sqlx::Error::Database(_))
    }

    /// A fault that rowlock itself reports.
    pub(crate) fn said(kind: FaultKind, what: impl Into<String>) -> Self {
        let error = std::io::Error::other(what.into());
        Self {
            kind,
            cause: Cause::new(sqlx::Error::Io(error), kind),
        }
    }

    /// This one, of a part of a request, when a part before it has committed: as after a broken connection, the next
    /// sending finds what happened.
    pub(crate) fn half_done(self) -> Self {
        if self.kind == FaultKind::Disconnected {
            return self;
        }
        let what = format!("a part was committed, and the next one failed: {self}");
        Self::said(FaultKind::Disconnected, what)
    }

    /// The caller's transaction has already ended.
    pub(crate) fn transaction_over() -> Self {
        let over = "no transaction is open on the connection";
        Self::said(FaultKind::TransactionOver, over)
    }
}

/// The answer of a verb. `None`: a row stayed locked, or the file busy, and nothing has happened.
pub(crate) fn unlocked<T>(answer: Result<T, impl Into<Fault>>) -> Result<Option<T>, Fault> {
    match answer.map_err(Into::into) {
        Ok(answer) => Ok(Some(answer)),
        Err(fault) if fault.kind == FaultKind::LockTimeout => Ok(None),
        Err(fault) => Err(fault),
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.cause, f)
    }
}

impl std::error::Error for Fault {}
