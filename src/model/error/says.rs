//! The message of each error: what was tried on what, and what to do next. No message contains a password. Texts of
//! others are in some of them, so all of them are [`Printable`].

use std::fmt::{self, Write as _};

use super::Error;
use crate::model::{Kind, Printable};

impl fmt::Display for Error {
    #[allow(clippy::too_many_lines, reason = "one message for each variant")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let f = &mut Printable(f);
        match self {
            Self::Invalid(error) => write!(f, "{error}"),
            Self::Connect(error) => write!(f, "{error}"),
            Self::ShutDown { target } => write!(
                f,
                "this client of {target} was shut down: make another one (`Rowlock::connect`)"
            ),
            Self::Unreachable { target, detail } if target.starts_with("sqlite:") => write!(
                f,
                "{target} did not answer in time ({detail}): does a long transaction, or another program, keep the file locked?"
            ),
            Self::Unreachable { target, detail } => write!(
                f,
                "{target} cannot be reached, or did not answer in time ({detail}): \
                 is it running, is the address right, does a long transaction hold it up?"
            ),
            Self::ReadOnly { target, detail } => write!(
                f,
                "{target} takes no writes ({detail}), and a lock needs the primary: \
                 correct the address, or name all servers, as HOST1:PORT1,HOST2:PORT2"
            ),
            Self::Denied {
                doing,
                target,
                cause,
                grants,
            } => write!(
                f,
                "{} on {target}: this user lacks a right ({cause}); rowlock needs SELECT, INSERT, UPDATE and DELETE on its \
                 tables, as an administrator grants them after `rowlock migrate` has made the tables (to the user that runs the \
                 transaction, if that is not the client's; on MySQL and MariaDB with the account's own host for `%`): {grants}",
                alone(doing)
            ),
            Self::Schema(error) => write!(f, "{error}"),
            Self::WaitTimeout { name, waited, busy } if waited.is_zero() => {
                write!(f, "{name:?} is not free: {busy}")
            }
            Self::WaitTimeout { name, waited, busy } => {
                write!(f, "{name:?} was not free within {waited:.0?}: {busy}")
            }
            Self::QueueFull { busy } => {
                write!(
                    f,
                    "the queue for {:?} is full: {busy}; try again later, or allow more (`queue_limit`)",
                    busy.name
                )
            }
            Self::Deadlock { name, cycle } => {
                write!(f, "waiting for {name:?} is a deadlock: ")?;
                let holders = cycle.iter().cycle().skip(1);
                for (at, (blocked, next)) in cycle.iter().zip(holders).enumerate() {
                    let and = if at == 0 { "" } else { "; " };
                    write!(f, "{and}{blocked}, which {:?} holds", next.owner)?;
                }
                f.write_str(". Release what you hold, and begin anew")
            }
            Self::WrongKind { name, is, asked } => match (is, asked) {
                (Kind::Semaphore { .. }, Kind::Semaphore { .. }) => write!(
                    f,
                    "{name:?} is {is}, and {asked} was asked for: ask for {} everywhere, or change what it is \
                     (`Semaphore::set_capacity`; command: `rowlock set-capacity {name:?} {}`)",
                    is.capacity(),
                    asked.capacity()
                ),
                _ => write!(
                    f,
                    "{name:?} is {is}, and {asked} was asked for: \
                     use another name, or remove this one with `rowlock forget {name:?}` (`Admin::forget`)"
                ),
            },
            Self::OutcomeUnknown {
                doing,
                on,
                target,
                detail,
            } => write!(
                f,
                "{doing} {on}: the connection to {target} broke or stayed silent, and the outcome is unknown ({detail}): \
                 call it again, or look at the lock or record before you go on"
            ),
            Self::Released { doing, name } => write!(
                f,
                "{doing} {name:?}: its guard was released before; acquire it again"
            ),
            Self::Transaction(error) => write!(f, "{error}"),
            Self::RowLocked { doing, name } => write!(
                f,
                "{doing} {name:?}: a transaction has its row locked (SQLite: the file). \
                 If it is yours, or has pinned this lock, end it; then try again"
            ),
            Self::Starved {
                doing,
                on,
                target,
                waited,
            } => write!(
                f,
                "{doing} {on}: rowlock's own connection to {target} had no answer within {waited:.0?}, while this transaction keeps one: \
                 do transactions take up all connections of a pooler? Roll back, and try again after `rowlock.version(name)` or with `Retry`; \
                 and give the pooler a connection for each transaction at a time, and 4 (`Builder::max_connections`) for each client of rowlock"
            ),
            Self::Conflict { what } => {
                write!(f, "{what}: roll back and try again, as `Retry` does")
            }
            Self::CommitUnknown { detail } => write!(
                f,
                "the connection broke during a commit, whose outcome is unknown ({detail}): check whether its work was committed before you do it again"
            ),
            Self::Application { cause } => {
                write!(f, "a statement of the application's failed: {cause}")
            }
            Self::Superseded {
                doing,
                record,
                reason,
            } => write!(
                f,
                "{doing} {record}: {reason}; if a transaction is open, roll it back"
            ),
            Self::Record(error) => write!(f, "{error}"),
            Self::Lost { name, loss } => write!(
                f,
                "the lease of {name:?} was lost: {loss}; stop the work, and undo what is not committed"
            ),
            Self::CutOff { name, loss } => write!(
                f,
                "the lease of {name:?} was lost ({loss}) after a pin, and the work was cut off: its transaction may or may not be \
                 committed; look before you do it again"
            ),
            Self::Database {
                doing,
                target,
                cause,
            } => write!(f, "{} on {target} failed: {cause}", alone(doing)),
        }
    }
}

/// The verb without its preposition (`keep a step of`: `keep a step`): the message names the target next.
fn alone(doing: &str) -> &str {
    let object = |word| doing.strip_suffix(word);
    let verb = [" of", " for", " in"].into_iter().find_map(object);
    verb.unwrap_or(doing)
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Cause, FaultKind};
    use crate::model::{ConnectError, RecordError, SchemaError};

    #[test]
    fn a_verb_stands_alone_before_the_target() {
        for (doing, says) in [
            ("keep a step of", "keep a step on sqlite:a failed: "),
            (
                "issue a form token for",
                "issue a form token on sqlite:a failed: ",
            ),
            ("renew", "renew on sqlite:a failed: "),
        ] {
            let error = Error::Database {
                doing,
                target: "sqlite:a".into(),
                cause: Cause::new(sqlx::Error::PoolClosed, FaultKind::Other),
            };
            assert!(error.to_string().starts_with(says), "{error}");
        }
    }

    #[test]
    fn what_keeps_a_file_is_another_program_and_no_server() {
        let said = |target: &str| {
            let (target, detail) = (target.into(), "database is locked".into());
            Error::Unreachable { target, detail }.to_string()
        };
        assert!(said("sqlite:/a.db").ends_with("keep the file locked?"));
        assert!(said("postgres://a/b").contains("is it running"));
    }

    #[test]
    fn texts_of_others_stay_in_the_line_of_the_message() {
        let text = || String::from("x\n\x1b[31my");
        let target = text;
        for error in [
            Error::Unreachable {
                target: target(),
                detail: text(),
            },
            Error::Connect(ConnectError::NoSchema {
                target: target(),
                search_path: text(),
            }),
            Error::Connect(ConnectError::ServerTooOld {
                target: target(),
                found: text(),
                needed: "",
            }),
            Error::Schema(SchemaError::Changed {
                target: target(),
                migration: text(),
                table: "",
            }),
            Error::Conflict { what: text() },
            Error::Record(RecordError::ResponseFailed { detail: text() }),
            Error::Record(RecordError::Corrupt {
                record: text(),
                what: "",
            }),
            Error::Connect(ConnectError::InvalidUrl { reason: text() }),
        ] {
            let said = error.to_string();
            assert!(!said.contains(char::is_control), "{said:?}");
            assert!(said.contains(r"x\n\u{1b}[31my"), "{said}");
        }
    }
}
