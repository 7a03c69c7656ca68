//! Form tokens: the statements.

use async_trait::async_trait;
use sqlx::PgConnection;
use uuid::Uuid;

use super::in_tx::prove;
use super::{in_callers, query, query_as};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::form_token::{FormTokenStore, TokenParams};
use crate::store::verbs::in_tx::TxReply;
use crate::store::verbs::time::to_micros;

const ISSUE: &str = "
INSERT INTO rowlock_form_token (scope, token, issued_at, expires_at)
VALUES ($1, $2, clock_timestamp(), clock_timestamp() + $3 * interval '1 microsecond')";

/// Reports whether a transaction is known to be open: see the head of `in_tx.rs`.
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

/// Deletes nothing until a transaction is known to be open.
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

#[async_trait]
impl FormTokenStore for PgConnection {
    async fn token_issue(&mut self, params: &TokenParams) -> Result<(), Fault> {
        let issue = query(ISSUE)
            .bind(&*params.scope)
            .bind(&params.digest.as_bytes()[..])
            .bind(to_micros(params.ttl));
        issue.execute(self).await?;
        Ok(())
    }

    async fn tx_token_issue(&mut self, params: &TokenParams) -> Result<TxReply<()>, Fault> {
        in_callers(async {
            let row: Option<(Uuid, bool)> = query_as(TX_ISSUE)
                .bind(&*params.scope)
                .bind(&params.digest.as_bytes()[..])
                .bind(to_micros(params.ttl))
                .fetch_optional(&mut *self)
                .await?;
            if row.is_some_and(|row| !row.1) {
                prove(self).await?;
            }
            Ok(TxReply::of(row.map(|row| row.0), ()))
        })
        .await
    }

    async fn tx_token_consume(&mut self, params: &TokenParams) -> Result<TxReply<bool>, Fault> {
        in_callers(async {
            let mut row = consume(self, params, false).await?;
            if row.is_some_and(|row| !row.2) {
                prove(self).await?;
                row = consume(self, params, true).await?;
            }
            Ok(TxReply::of(
                row.map(|row| row.0),
                row.is_some_and(|row| row.1),
            ))
        })
        .await
    }
}

/// Returns the database, whether the token existed, and whether a transaction is known to be open.
async fn consume(
    conn: &mut PgConnection,
    params: &TokenParams,
    proven: bool,
) -> Result<Option<(Uuid, bool, bool)>, sqlx::Error> {
    query_as(TX_CONSUME)
        .bind(&*params.scope)
        .bind(&params.digest.as_bytes()[..])
        .bind(proven)
        .fetch_optional(conn)
        .await
}
