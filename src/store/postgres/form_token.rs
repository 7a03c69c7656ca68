//! Form tokens: the statements.

use sqlx::PgConnection;
use uuid::Uuid;

use super::{query, query_as, query_scalar};
use crate::store::fault::Fault;
use crate::store::record::TokenAsk;
use crate::store::{Told, to_micros};

const ISSUE: &str = "
INSERT INTO rowlock_form_token (scope, token, issued_at, expires_at)
VALUES ($1, $2, clock_timestamp(), clock_timestamp() + $3 * interval '1 microsecond')";

const TX_ISSUE: &str = "
WITH made AS (
    INSERT INTO rowlock_form_token (scope, token, issued_at, expires_at)
    VALUES ($1, $2, clock_timestamp(), clock_timestamp() + $3 * interval '1 microsecond')
    ON CONFLICT DO NOTHING
)
SELECT id FROM rowlock_database";

const TX_CONSUME: &str = "
WITH gone AS (
    DELETE FROM rowlock_form_token
    WHERE scope = $1 AND token = $2 AND expires_at > clock_timestamp()
    RETURNING 1
)
SELECT d.id, EXISTS (SELECT FROM gone) FROM rowlock_database d";

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
    let database: Option<Uuid> = query_scalar(TX_ISSUE)
        .bind(&*ask.scope)
        .bind(&ask.digest.as_bytes()[..])
        .bind(to_micros(ask.ttl))
        .fetch_optional(conn)
        .await?;
    Ok(Told {
        database,
        found: (),
    })
}

pub(super) async fn tx_consume(
    conn: &mut PgConnection,
    ask: &TokenAsk,
) -> Result<Told<bool>, Fault> {
    let row: Option<(Uuid, bool)> = query_as(TX_CONSUME)
        .bind(&*ask.scope)
        .bind(&ask.digest.as_bytes()[..])
        .fetch_optional(conn)
        .await?;
    Ok(Told {
        database: row.map(|row| row.0),
        found: row.is_some_and(|row| row.1),
    })
}
