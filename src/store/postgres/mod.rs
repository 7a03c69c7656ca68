//! PostgreSQL: `unnest` arrays carry a batch, `FOR UPDATE SKIP LOCKED` passes locked rows over.
//!
//! The verbs are on any connection. Those of the lanes are sent by a [`PgSession`](session::PgSession).

mod clean;
mod connect;
mod fault;
mod form_token;
mod in_tx;
mod lease;
mod look;
mod pooler;
mod record;
mod record_admin;
mod record_in_tx;
mod schema;
mod session;
mod step;

pub(crate) use connect::Postgres;
pub(crate) use fault::kind as fault_kind;
pub(crate) use schema::{grants, migrations};

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::{Query, QueryAs, QueryScalar};
use sqlx::{FromRow, Postgres as Brand};

use crate::store::fault::Fault;

tokio::task_local! {
    /// Whether the statements of the verb that runs are prepared under a name, to be sent again without their text.
    static NAMED: bool;
}

fn is_named() -> bool {
    NAMED.try_with(|named| *named).unwrap_or(true)
}

/// Like [`sqlx::query`]; without a name, where names are not kept apart. So for the other two.
fn query<'q>(sql: &'static str) -> Query<'q, Brand, PgArguments> {
    sqlx::query(sql).persistent(is_named())
}

fn query_as<'q, T>(sql: &'static str) -> QueryAs<'q, Brand, T, PgArguments>
where
    T: for<'r> FromRow<'r, PgRow>,
{
    sqlx::query_as(sql).persistent(is_named())
}

fn query_scalar<'q, T>(sql: &'static str) -> QueryScalar<'q, Brand, T, PgArguments>
where
    (T,): for<'r> FromRow<'r, PgRow>,
{
    sqlx::query_scalar(sql).persistent(is_named())
}

/// A verb in a caller's transaction, whose connection comes from a pool of the caller's own: probably by the way on
/// which the clients of this process came.
async fn in_callers<T>(verb: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    NAMED.scope(!pooler::names_are_mixed(), verb).await
}
