//! Row level security on rowlock's tables (manual, section 5.8): a user who is not exempt sees no row of a table
//! without a policy for him. A verb then finds nothing, which looks like a name that is free, a lease that was taken
//! over, or a database without tables. So where a row is missing, the verbs ask.

use sqlx::PgConnection;

use super::{functions, query_scalar};
use crate::model::FaultKind;
use crate::store::driver::rights::TABLES;
use crate::store::verbs::fault::Fault;

/// The tables of which no policy shows this user a row.
const HIDDEN: &str = "
SELECT string_agg(c.relname, ', ' ORDER BY c.relname) FROM pg_class c
WHERE c.oid IN (SELECT to_regclass(t.name) FROM unnest($1::text[]) AS t (name)) AND row_security_active(c.oid)
  AND NOT EXISTS (
      SELECT FROM pg_policy p
      WHERE p.polrelid = c.oid AND p.polpermissive
        AND (0 = ANY (p.polroles)
             OR EXISTS (SELECT FROM unnest(p.polroles) AS r (id) WHERE r.id <> 0 AND pg_has_role(r.id, 'USAGE'))))";

/// Fails when no policy shows this user a row of one of rowlock's tables.
pub(super) async fn check(conn: &mut PgConnection) -> Result<(), Fault> {
    let tables = [&TABLES[..], &[functions::TABLE]].concat();
    let hidden = query_scalar(HIDDEN).bind(tables);
    let hidden: Option<String> = hidden.fetch_one(conn).await?;
    hidden.map_or(Ok(()), |tables| Err(fault(&tables)))
}

/// For a table that always has a row, and in which this user sees none.
pub(super) async fn check_empty(conn: &mut PgConnection, table: &'static str) -> Result<(), Fault> {
    let is_active = query_scalar("SELECT row_security_active($1::text)").bind(table);
    if is_active.fetch_one(conn).await? {
        return Err(fault(table));
    }
    Ok(())
}

fn fault(tables: &str) -> Fault {
    let what = format!("row level security hides the rows of {tables} from this user");
    Fault::said(FaultKind::RowSecurity, what)
}
