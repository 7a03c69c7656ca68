//! Form tokens: the statements.

use async_trait::async_trait;
use sqlx::{MySqlConnection, Row};

use super::statement::{NOW, hex, rows};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::form_token::{FormTokenStore, TokenParams};
use crate::store::verbs::in_tx::TxReply;
use crate::store::verbs::time::to_micros;

const ISSUE: &str = "
INSERT INTO rowlock_form_token (scope, token, issued_at, expires_at)
VALUES (?, ?, SYSDATE(6), SYSDATE(6) + INTERVAL ? MICROSECOND)";

fn tx_issue_text(params: &TokenParams) -> String {
    let (scope, token) = (hex(&params.scope), hex(params.digest.as_bytes()));
    let ttl = to_micros(params.ttl);
    format!(
        "SAVEPOINT rowlock_here; RELEASE SAVEPOINT rowlock_here; \
         INSERT INTO rowlock_form_token (scope, token, issued_at, expires_at)
         VALUES ({scope}, {token}, {NOW}, {NOW} + INTERVAL {ttl} MICROSECOND); \
         SELECT MAX(id) FROM rowlock_database LIMIT 1 LOCK IN SHARE MODE"
    )
}

/// The statement reads the clock after it has waited for the row.
fn tx_consume_text(params: &TokenParams) -> String {
    let (scope, token) = (hex(&params.scope), hex(params.digest.as_bytes()));
    format!(
        "SAVEPOINT rowlock_here; RELEASE SAVEPOINT rowlock_here; \
         DELETE t FROM rowlock_form_token t
         WHERE scope = {scope} AND token = {token}
           AND expires_at > {NOW}; \
         SELECT ROW_COUNT(), MAX(id) FROM rowlock_database LIMIT 1 LOCK IN SHARE MODE"
    )
}

#[async_trait]
impl FormTokenStore for MySqlConnection {
    async fn token_issue(&mut self, params: &TokenParams) -> Result<(), Fault> {
        let issue = sqlx::query(ISSUE)
            .bind(&*params.scope)
            .bind(&params.digest.as_bytes()[..])
            .bind(to_micros(params.ttl));
        issue.execute(self).await?;
        Ok(())
    }

    async fn tx_token_issue(&mut self, params: &TokenParams) -> Result<TxReply<()>, Fault> {
        let rows = rows(self, tx_issue_text(params)).await?;
        let database = rows.first().map_or(Ok(None), |row| row.try_get(0))?;
        Ok(TxReply::of(database, ()))
    }

    async fn tx_token_consume(&mut self, params: &TokenParams) -> Result<TxReply<bool>, Fault> {
        let rows = rows(self, tx_consume_text(params)).await?;
        let Some(row) = rows.first() else {
            return Ok(TxReply::of(None, false));
        };
        Ok(TxReply::of(row.try_get(1)?, row.try_get::<i64, _>(0)? > 0))
    }
}
