//! Form tokens: the statements.

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::in_tx::{database, in_transaction};
use crate::store::driver::write_turn;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::form_token::{FormTokenStore, TokenParams};
use crate::store::verbs::in_tx::TxReply;
use crate::store::verbs::time::to_micros;

const ISSUE: &str = "
INSERT INTO rowlock_form_token (scope, token, issued_at, expires_at)
SELECT ?1, ?2, now.us, now.us + ?3 FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now";

const CONSUME: &str = "
DELETE FROM rowlock_form_token
WHERE scope = ?1 AND token = ?2
  AND expires_at > CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000";

#[async_trait]
impl FormTokenStore for SqliteConnection {
    async fn token_issue(&mut self, params: &TokenParams) -> Result<(), Fault> {
        let issue = sqlx::query(ISSUE)
            .bind(&*params.scope)
            .bind(&params.digest.as_bytes()[..])
            .bind(to_micros(params.ttl));
        let _turn = write_turn::turn().await;
        issue.execute(self).await?;
        Ok(())
    }

    async fn tx_token_issue(&mut self, params: &TokenParams) -> Result<TxReply<()>, Fault> {
        in_transaction(self).await?;
        self.token_issue(params).await?;
        Ok(TxReply::of(database(self).await?, ()))
    }

    async fn tx_token_consume(&mut self, params: &TokenParams) -> Result<TxReply<bool>, Fault> {
        in_transaction(self).await?;
        let gone = sqlx::query(CONSUME)
            .bind(&*params.scope)
            .bind(&params.digest.as_bytes()[..])
            .execute(&mut *self)
            .await?;
        Ok(TxReply::of(database(self).await?, gone.rows_affected() > 0))
    }
}
