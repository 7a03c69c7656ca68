//! PostgreSQL: `unnest` arrays carry a batch, and `FOR UPDATE SKIP LOCKED` skips locked rows.
//!
//! The verbs run on any connection. A [`OwnConnection`](own_connection::OwnConnection) sends those of the lanes.

mod clean;
mod connect;
mod deadlock;
mod exchange;
mod fault;
mod form_token;
mod functions;
mod grant_rule;
mod hold;
mod in_tx;
mod lease;
mod list;
mod listener;
mod lock_row;
mod look;
mod own_connection;
mod pause;
mod permit;
mod pooler;
mod quarantine;
mod queue;
mod record;
mod record_admin;
mod record_claim;
mod record_in_tx;
mod row_security;
mod run;
mod schema;
mod session;
mod step;
mod tx_wait;

pub(crate) use connect::Postgres;
pub(crate) use fault::kind as fault_kind;
pub(crate) use schema::{grants, migrations};

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::{Query, QueryAs, QueryScalar};
use sqlx::{FromRow, Postgres as Driver};

use super::verbs::fault::Fault;

tokio::task_local! {
    /// Whether the statements of the running verb are prepared under a name, so that the next call need not send their
    /// text.
    static NAMED: bool;
}

fn is_named() -> bool {
    NAMED.try_with(|named| *named).unwrap_or(true)
}

/// [`sqlx::query()`], but without a name where a pooler mixes names up. The next two functions do the same.
fn query<'q>(sql: &'static str) -> Query<'q, Driver, PgArguments> {
    sqlx::query(sql).persistent(is_named())
}

fn query_as<'q, T>(sql: &'static str) -> QueryAs<'q, Driver, T, PgArguments>
where
    T: for<'r> FromRow<'r, PgRow>,
{
    sqlx::query_as(sql).persistent(is_named())
}

fn query_scalar<'q, T>(sql: &'static str) -> QueryScalar<'q, Driver, T, PgArguments>
where
    (T,): for<'r> FromRow<'r, PgRow>,
{
    sqlx::query_scalar(sql).persistent(is_named())
}

/// A value of each, for an array.
fn each<'a, A, T>(all: &'a [A], value: impl Fn(&'a A) -> T) -> Vec<T> {
    all.iter().map(value).collect()
}

/// Runs a verb in a caller's transaction. Its connection comes from a pool of the caller's, and probably takes the
/// same way to the server as the clients of this process.
async fn in_callers<T>(verb: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    NAMED.scope(!pooler::names_are_mixed(), verb).await
}
