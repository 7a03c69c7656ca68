//! Form tokens: the statements.

use sqlx::PgConnection;
use uuid::Uuid;

use super::in_tx::prove;
use super::{query, query_as};
use crate::store::fault::Fault;
use crate::store::record::TokenAsk;
use crate::store::{Told, to_micros};

const ISSUE: &str = "
INSERT INTO rowlock_form_token (scope, token, issued_at, expires_at)
VALUES ($1, $2, clock_timestamp(), clock_timestamp() + $3 * interval '1 microsecond')";

/// Whether it is known that there is a transaction: see the head of `in_tx.rs`.
const TX_ISSUE: &str = "
WITH here AS MATERIALIZED (
    SELECT pg_current_xact_id_if_assigned() IS NOT NULL
           OR COALESCE(current_setting('rowlock.here', true), '') <> '' AS proven
), made AS (
    INSERT INTO rowlock_form_token (scope, token, issued_at, expires_at)
    SELECT $1, $2, clock_timestamp(), clock_timestamp() + $3 * interval '1 microsecond'
    WHERE (SELECT proven FROM here) IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT id, (SELECT proven FROM here) FROM rowlock_database";

/// Deletes nothing before it is known that there is a transaction.
const TX_CONSUME: &str = "
WITH here AS MATERIALIZED (
    SELECT $3 OR pg_current_xact_id_if_assigned() IS NOT NULL
           OR COALESCE(current_setting('rowlock.here', true), '') <> '' AS proven
), gone AS (
    DELETE FROM rowlock_form_token
    WHERE (SELECT proven FROM here)
      AND scope = $1 AND token = $2 AND expires_at > clock_timestamp()
    RETURNING 1
)
SELECT d.id, EXISTS (SELECT FROM gone), (SELECT proven FROM here) FROM rowlock_database d";

const CLEAN: &str = "
DELETE FROM rowlock_form_token t
USING (
    SELECT scope, token FROM rowlock_form_token
    WHERE expires_at <= now()
    ORDER BY expires_at LIMIT $1
    FOR UPDATE SKIP LOCKED
) o
WHERE t.scope = o.scope AND t.token = o.token";

pub(super) async fn issue(conn: &mut PgConnection, ask: &TokenAsk) -> Result<(), sqlx::Error> {
    let issue = query(ISSUE)
        .bind(&*ask.scope)
        .bind(&ask.digest.as_bytes()[..])
        .bind(to_micros(ask.ttl));
    issue.execute(conn).await.map(|_| ())
}

pub(super) async fn clean(conn: &mut PgConnection, limit: u32) -> Result<u64, sqlx::Error> {
    let done = query(CLEAN).bind(i64::from(limit)).execute(conn);
    Ok(done.await?.rows_affected())
}

pub(super) async fn tx_issue(conn: &mut PgConnection, ask: &TokenAsk) -> Result<Told<()>, Fault> {
    let row: Option<(Uuid, bool)> = query_as(TX_ISSUE)
        .bind(&*ask.scope)
        .bind(&ask.digest.as_bytes()[..])
        .bind(to_micros(ask.ttl))
        .fetch_optional(&mut *conn)
        .await?;
    if row.is_some_and(|row| !row.1) {
        prove(conn).await?;
    }
    Ok(Told {
        database: row.map(|row| row.0),
        found: (),
    })
}

pub(super) async fn tx_consume(
    conn: &mut PgConnection,
    ask: &TokenAsk,
) -> Result<Told<bool>, Fault> {
    let mut row = consume(conn, ask, false).await?;
    if row.is_some_and(|row| !row.2) {
        prove(conn).await?;
        row = consume(conn, ask, true).await?;
    }
    Ok(Told {
        database: row.map(|row| row.0),
        found: row.is_some_and(|row| row.1),
    })
}

/// The database, whether there was such a token, and whether it is known that there is a transaction.
async fn consume(
    conn: &mut PgConnection,
    ask: &TokenAsk,
    proven: bool,
) -> Result<Option<(Uuid, bool, bool)>, sqlx::Error> {
    query_as(TX_CONSUME)
        .bind(&*ask.scope)
        .bind(&ask.digest.as_bytes()[..])
        .bind(proven)
        .fetch_optional(conn)
        .await
}
