//! Maps a fault to the error that a caller gets, in this one place.
//!
//! The same kind of fault means different things on a connection of rowlock's own, in a transaction of the caller's,
//! while migrating, and under a commit.

use super::migrate::{changed, newer};
use super::rights::grants;
use crate::model::{
    ConnectError, Engine, Error, FaultKind, SchemaError, Subject, TransactionError,
};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::schema::MigrateFault;

/// What gives a user the rows that row level security keeps from him.
const ROW_SECURITY: &str = "ALTER TABLE … DISABLE ROW LEVEL SECURITY for each of these tables, or ALTER ROLE … BYPASSRLS, or CREATE POLICY … USING (true) on each";

impl Fault {
    /// On a connection of rowlock's own, for a caller that tried `doing`.
    pub(crate) fn into_error(self, doing: &'static str, target: &str) -> Error {
        let (target, cause) = (target.to_owned(), self.cause);
        match self.kind {
            FaultKind::LoginRefused => Error::Connect(ConnectError::LoginRefused { target, cause }),
            FaultKind::NoSuchDatabase => {
                Error::Connect(ConnectError::NoSuchDatabase { target, cause })
            }
            FaultKind::Unwritable => Error::Connect(ConnectError::Unwritable {
                target,
                detail: format!(
                    "{cause}: its folder must exist, and this user must be allowed to write the file and the folder"
                ),
            }),
            FaultKind::TwoNames => Error::Connect(ConnectError::Unwritable {
                target,
                detail: cause.to_string(),
            }),
            FaultKind::ReadOnly => Error::ReadOnly {
                target,
                detail: cause.to_string(),
            },
            FaultKind::NoSchema => Error::Connect(ConnectError::NoSchema {
                target,
                search_path: cause.to_string(),
            }),
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
            FaultKind::RowSecurity => Error::Denied {
                grants: ROW_SECURITY.into(),
                doing,
                target,
                cause,
            },
            FaultKind::NoSuchTable | FaultKind::NoSuchColumn => {
                Error::Schema(SchemaError::Damaged {
                    target,
                    detail: cause.to_string(),
                })
            }
            FaultKind::TooLarge | FaultKind::TransactionOver | FaultKind::Other => {
                Error::Database {
                    doing,
                    target,
                    cause,
                }
            }
        }
    }

    /// In a transaction of the caller's, which tried `doing` on the lock or record `on`. `target` is the client's
    /// database.
    pub(crate) fn into_error_in_tx(self, doing: &'static str, on: &Subject, target: &str) -> Error {
        let (detail, on) = (self.to_string(), on.clone());
        match self.kind {
            kind if kind.may_begin_anew() => Error::Conflict {
                what: format!("{doing} {on}: {detail}"),
            },
            FaultKind::TransactionOver | FaultKind::Disconnected | FaultKind::Interrupted => {
                Error::Transaction(TransactionError::Over { doing, on, detail })
            }
            FaultKind::ReadOnly | FaultKind::Unwritable => {
                Error::Transaction(TransactionError::ReadOnly { doing, on, detail })
            }
            FaultKind::NoSuchTable => Error::Transaction(TransactionError::WrongDatabase {
                doing,
                on,
                target: target.to_owned(),
                detail: format!("its database has no rowlock tables: {detail}"),
            }),
            _ => self.into_error(doing, target),
        }
    }

    /// While migrating.
    pub(crate) fn into_migration_error(self, engine: Engine, target: &str) -> Error {
        let (target, detail) = (target.to_owned(), self.to_string());
        match self.kind {
            FaultKind::Denied => Error::Schema(SchemaError::Denied {
                target,
                engine,
                detail,
            }),
            FaultKind::Disconnected => Error::Unreachable { target, detail },
            FaultKind::ReadOnly => Error::ReadOnly { target, detail },
            _ => Error::Schema(SchemaError::Failed { target, detail }),
        }
    }
}

impl MigrateFault {
    /// `known` is the newest schema version of this library.
    pub(crate) fn into_error(self, engine: Engine, known: i32, target: &str) -> Error {
        match self {
            Self::Fault { fault, .. } => fault.into_migration_error(engine, target),
            Self::Changed(migration) => changed(target, migration),
            Self::Newer(found) => newer(target, found, known),
            Self::LockNotObtained => Error::Schema(SchemaError::Failed {
                target: target.into(),
                detail: "another process has been migrating for 60 s; try again".into(),
            }),
            Self::Refused(detail) => Error::Schema(SchemaError::Failed {
                target: target.into(),
                detail,
            }),
        }
    }
}

/// Lets `?` convert the application's own statement errors into this error.
impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        let cause = Fault::from(error).cause;
        Self::Application { cause }
    }
}

/// The error after a failed commit of the application's transaction whose connection broke before the answer: the
/// outcome is unknown. `None`: the commit was refused, and the driver's error says why.
pub(crate) fn commit_unknown(error: &sqlx::Error) -> Option<Error> {
    let fault = Fault::seen(error);
    (fault.kind == FaultKind::Disconnected).then(|| Error::CommitUnknown {
        detail: error.to_string(),
    })
}
