//! SQLite: a JSON array carries a batch, and there is one writer at a time. So a verb that writes begins with
//! [`turn`](crate::store::driver::write_turn::turn) or with [`in_a_transaction`](writing::in_a_transaction).

mod clean;
mod connect;
mod deadlock;
mod fault;
mod file;
mod file_connection;
mod form_token;
mod grant_rule;
mod hold;
mod in_tx;
mod journal;
mod lease;
mod list;
mod listener;
mod lock_row;
mod pause;
mod permit;
mod permit_row;
mod quarantine;
mod queue;
mod record;
mod record_admin;
mod record_in_tx;
mod run;
mod schema;
mod session;
mod step;
mod waiter;
mod writing;

pub(crate) use connect::Sqlite;
pub(crate) use fault::kind as fault_kind;
pub(crate) use schema::{grants, migrations};
#[cfg(test)]
pub(crate) use writing::BEGIN_TO_WRITE;

/// For a test: each key has had another attempt, which has ended.
#[cfg(test)]
pub(crate) const NEXT_ATTEMPT: &str =
    "UPDATE rowlock_idempotency SET attempt = attempt + 1, attempt_id = randomblob(16)";
