//! MySQL and MariaDB: a JSON array carries a batch, and a locking derived table skips locked rows.

mod clean;
mod connect;
mod deadlock;
mod exchange;
mod fault;
mod form_token;
mod grant_rule;
mod hold;
mod in_tx;
mod lease;
mod lease_text;
mod list;
mod listener;
mod lock_row;
mod pause;
mod permit;
mod permit_reclaim;
mod permit_text;
mod quarantine;
mod queue;
mod record;
mod record_admin;
mod record_claim;
mod record_end;
mod record_exchange;
mod record_in_tx;
mod record_probe;
mod row_wait;
mod run;
mod schema;
mod session;
mod statement;
mod step;

pub(crate) use connect::MySql;
pub(crate) use fault::kind as fault_kind;
pub(crate) use schema::{grants, migrations};
