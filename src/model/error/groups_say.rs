//! The messages of the groups, as [`super::says`] has those of the other errors.

use std::fmt::{self, Write as _};

use super::groups::{ConnectError, RecordError, SchemaError, TransactionError};
use crate::model::Printable;

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let f = &mut Printable(f);
        match self {
            Self::InvalidUrl { reason } => write!(f, "the database URL cannot be used: {reason}"),
            Self::EngineNotBuilt { engine, feature } => write!(
                f,
                "this build of rowlock does not support {engine}: build it with the feature `{feature}`"
            ),
            Self::LoginRefused { target, cause } => write!(
                f,
                "{target} refused the login ({cause}): check the user and the password in the URL"
            ),
            Self::NoSuchDatabase { target, cause } => write!(
                f,
                "{target} is no database ({cause}): name another one in the URL, or create this one if nothing is there"
            ),
            Self::Unwritable { target, detail } => {
                write!(f, "{target} cannot be opened for writing: {detail}")
            }
            Self::ServerTooOld {
                target,
                found,
                needed,
            } => write!(
                f,
                "{target} runs {found}, which is too old: rowlock needs {needed}"
            ),
            Self::NoSchema {
                target,
                search_path,
            } => write!(
                f,
                "{target}: the search path ({search_path}) names no existing schema that this user may use: \
                 create one, grant this user USAGE on it, or correct search_path"
            ),
        }
    }
}

impl std::error::Error for ConnectError {}

impl fmt::Display for SchemaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let f = &mut Printable(f);
        match self {
            Self::Missing { target, engine } => write!(
                f,
                "{target} has no rowlock tables: run `rowlock migrate`, or apply the SQL of `rowlock migrate --print {engine}`. If this \
                 database has lost its data, run `rowlock quarantine --for TIME` instead: it makes the tables, too, and grants nothing before every lost lease has run out"
            ),
            Self::Older {
                target,
                found,
                needed,
            } => write!(
                f,
                "{target} has rowlock's schema version {found}, this library needs {needed}: run `rowlock migrate`"
            ),
            Self::FunctionsMissing {
                target,
                functions,
                version,
            } => write!(
                f,
                "{target} lacks functions of this rowlock ({functions}): run `rowlock migrate`, or have a DBA apply the SQL of \
                 `rowlock migrate --print postgres --from {version}`"
            ),
            Self::Newer {
                target,
                found,
                known,
            } => write!(
                f,
                "{target} has rowlock's schema version {found}, this library knows {known}: update rowlock here"
            ),
            Self::Changed {
                target,
                migration,
                table,
            } => write!(
                f,
                "{target} has another migration {migration} than this library carries: \
                 it was changed after it was applied; use the library that applied it, or restore the table `{table}`"
            ),
            Self::Damaged { target, detail } => write!(
                f,
                "{target}: rowlock's tables are not as rowlock made them ({detail}): restore the table that was dropped or changed, \
                 rename another program's table that has its name, or name another database or schema"
            ),
            Self::Denied {
                target,
                engine,
                detail,
            } => write!(
                f,
                "{target}: this user may not create tables or functions ({detail}): \
                 have a DBA apply the SQL of `rowlock migrate --print {engine}`; \
                 at run time rowlock needs only SELECT, INSERT, UPDATE and DELETE on its tables"
            ),
            Self::Failed { target, detail } => {
                write!(
                    f,
                    "{target}: migrating failed ({detail}): mend that, then migrate again"
                )
            }
            Self::Corrupt { table, name, what } => {
                write!(f, "the row of {name:?} in {table} is damaged: {what}; ")?;
                f.write_str(match *table {
                    "rowlock_lock" => {
                        "`rowlock release NAME --force` frees it, or delete the row while nobody uses the lock"
                    }
                    _ => "delete the row",
                })
            }
        }
    }
}

impl std::error::Error for SchemaError {}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let f = &mut Printable(f);
        match self {
            Self::StepUnknown { record, step } => write!(
                f,
                "{record}: the step {step:?} must not be repeated, and may or may not have happened: find out, then report it with \
                 `step_happened` or `step_not_done` of this guard, or end the attempt and run `rowlock idempotency resolve`"
            ),
            Self::StepRunning { record, step } => write!(
                f,
                "{record}: its step {step:?} is still running, and an attempt runs one step at a time: await it, then begin the next one"
            ),
            Self::OutcomeTooLarge { what, bytes, limit } => write!(
                f,
                "{what} has {bytes} bytes, and at most {limit} are kept: keep less, or raise the limit \
                 (`max_outcome`; on MySQL and MariaDB half of the server's `max_allowed_packet`, too)"
            ),
            Self::ResponseFailed { detail } => {
                write!(f, "the response cannot be kept: {detail}; roll back")
            }
            Self::Json { detail } => write!(
                f,
                "a value cannot be written as JSON, or read from it: {detail}"
            ),
            Self::Missing { record } => write!(
                f,
                "there is no record {record}: `rowlock idempotency ls` lists all records"
            ),
            Self::NotDecided { record, reason } => write!(f, "{record}: {reason}"),
            Self::Corrupt { record, what } => write!(
                f,
                "the row of {record} in rowlock_idempotency is damaged: {what}; repair or delete it by hand"
            ),
        }
    }
}

impl std::error::Error for RecordError {}

impl fmt::Display for TransactionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let f = &mut Printable(f);
        match self {
            Self::WrongDatabase {
                doing,
                on,
                target,
                detail,
            } => write!(
                f,
                "{doing} {on}: the transaction is not one of {target} ({detail}): begin it on a pool of the database that this client was connected to"
            ),
            Self::Over { doing, on, detail } => write!(
                f,
                "{doing} {on}: no usable transaction is open on this connection ({detail}): roll back, and begin a new one with `pool.begin()`"
            ),
            Self::ReadOnly { doing, on, detail } => write!(
                f,
                "{doing} {on}: the transaction is read only ({detail}): begin one that may write, on a pool that may (`mode`, `immutable` or `read_only` of its options forbid it)"
            ),
            Self::AlreadyLocked { name } => write!(
                f,
                "this transaction already holds {name:?} until it ends: lock it once, and pass the first grant on"
            ),
            Self::DuplicateName { name } => write!(
                f,
                "{name:?} is given twice in one call: give each name once"
            ),
            Self::NotOneRow { rows } => write!(
                f,
                "a statement that should change one row changed {rows}: is its WHERE clause unique?"
            ),
        }
    }
}

impl std::error::Error for TransactionError {}
