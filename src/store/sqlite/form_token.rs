//! Form tokens: the statements.

use sqlx::SqliteConnection;

use super::in_tx::{database, in_transaction};
use crate::store::fault::Fault;
use crate::store::record::TokenAsk;
use crate::store::{Told, to_micros};

const ISSUE: &str = "
INSERT INTO rowlock_form_token (scope, token, issued_at, expires_at)
SELECT ?1, ?2, now.us, now.us + ?3 FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now";

const CONSUME: &str = "
DELETE FROM rowlock_form_token
WHERE scope = ?1 AND token = ?2
  AND expires_at > CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000";

const CLEAN: &str = "
DELETE FROM rowlock_form_token
WHERE rowid IN (
    SELECT t.rowid FROM rowlock_form_token t
    WHERE t.expires_at <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
    ORDER BY t.expires_at LIMIT ?1
)";

pub(super) async fn issue(conn: &mut SqliteConnection, ask: &TokenAsk) -> Result<(), sqlx::Error> {
    let issue = sqlx::query(ISSUE)
        .bind(&*ask.scope)
        .bind(&ask.digest.as_bytes()[..])
        .bind(to_micros(ask.ttl));
    issue.execute(conn).await.map(|_| ())
}

pub(super) async fn clean(conn: &mut SqliteConnection, limit: u32) -> Result<u64, sqlx::Error> {
    let done = sqlx::query(CLEAN).bind(limit).execute(conn).await?;
    Ok(done.rows_affected())
}

pub(super) async fn tx_issue(
    conn: &mut SqliteConnection,
    ask: &TokenAsk,
) -> Result<Told<()>, Fault> {
    in_transaction(conn).await?;
    issue(conn, ask).await?;
    Ok(Told {
        database: database(conn).await?,
        found: (),
    })
}

pub(super) async fn tx_consume(
    conn: &mut SqliteConnection,
    ask: &TokenAsk,
) -> Result<Told<bool>, Fault> {
    in_transaction(conn).await?;
    let gone = sqlx::query(CONSUME)
        .bind(&*ask.scope)
        .bind(&ask.digest.as_bytes()[..])
        .execute(&mut *conn)
        .await?;
    Ok(Told {
        database: database(conn).await?,
        found: gone.rows_affected() > 0,
    })
}
