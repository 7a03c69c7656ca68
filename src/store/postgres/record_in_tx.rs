//! Idempotency records in transactions: the statements.

use async_trait::async_trait;
use sqlx::PgConnection;
use uuid::Uuid;

use super::in_tx::prove;
use super::record::lock;
use super::{in_callers, query, query_as, query_scalar, row_security};
use crate::model::Outcome;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::in_tx::Told;
use crate::store::verbs::record::{ClaimAsk, Claimed, EndColumns, FinishAsk, Finished};
use crate::store::verbs::record_in_tx::RecordInTxStore;
use crate::store::verbs::time::to_micros;

/// Writes nothing before the outcome exists: the advisory lock is the claim. A caller that does not get it at once
/// gives the transaction up.
const TX_CLAIM_NEW: &str = "
SELECT id, pg_try_advisory_xact_lock($3),
       EXISTS (SELECT FROM rowlock_idempotency WHERE scope = $1 AND idempotency_key = $2)
FROM rowlock_database";

/// Inserts nothing when another transaction has committed a record between the look and the claim. Inserts nothing
/// either when the transaction of the claim is over: its advisory lock ended with it.
const TX_KEEP_NEW: &str = "
INSERT INTO rowlock_idempotency (scope, idempotency_key, state, attempt, abandoned, max_attempts, attempt_id, holder,
                                 fingerprint, bound, content_type, outcome, began_at, attempted_at, lease_until,
                                 done_at, retain_until, clean_at, forget_at)
SELECT $1, $2, 'done', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 0, $3, $4, $5, $6, true, $7, $8,
       now(), now(), now(), now.at, now.at + $9 * interval '1 microsecond', now.at + $9 * interval '1 microsecond',
       now.at + $10 * interval '1 microsecond'
FROM rowlock_database d, clock_timestamp() AS now (at)
WHERE current_setting('rowlock.here', true) = 'begun' AND d.id = $11
ON CONFLICT DO NOTHING";

const TX_CLAIM_AGAIN: &str = "
UPDATE rowlock_idempotency
SET state = 'running',
    attempt = GREATEST(attempt + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint),
    abandoned = CASE WHEN lease_until > clock_timestamp() - interval '1 hour' THEN abandoned ELSE 0 END + 1, max_attempts = $4, attempt_id = $5, holder = $6, fingerprint = $7,
    attempted_at = clock_timestamp(), lease_until = clock_timestamp() + $8 * interval '1 microsecond',
    forget_at = NULL, clean_at = NULL
WHERE (scope, idempotency_key) = (
    SELECT scope, idempotency_key FROM rowlock_idempotency
    WHERE scope = $1 AND idempotency_key = $2 AND attempt = $3
      AND (state = 'free' OR (state = 'running' AND open_step IS NULL AND lease_until <= clock_timestamp()))
    FOR UPDATE SKIP LOCKED
)
RETURNING (SELECT id FROM rowlock_database), attempt";

const TX_KEEP_AGAIN: &str = "
UPDATE rowlock_idempotency
SET state = 'done', open_step = NULL, abandoned = 0, content_type = $4, outcome = $5, done_at = clock_timestamp(),
    retain_until = clock_timestamp() + $6 * interval '1 microsecond',
    clean_at = clock_timestamp() + $6 * interval '1 microsecond',
    forget_at = clock_timestamp() + $7 * interval '1 microsecond'
WHERE current_setting('rowlock.here', true) = 'begun'
  AND scope = $1 AND idempotency_key = $2 AND attempt_id = $3 AND state = 'running'
  AND EXISTS (SELECT FROM rowlock_database WHERE id = $8)";

/// Returns no row when the attempt is not the running one, or when no transaction is known to be open: an outcome that
/// commits alone would be an outcome without its effect.
const TX_COMPLETE: &str = "
WITH here AS MATERIALIZED (
    SELECT pg_current_xact_id_if_assigned() IS NOT NULL
           OR COALESCE(current_setting('rowlock.here', true), '') <> '' AS proven
)
UPDATE rowlock_idempotency
SET state = 'done', open_step = NULL, abandoned = 0, content_type = $5, outcome = $6, done_at = clock_timestamp(),
    retain_until = clock_timestamp() + $7 * interval '1 microsecond',
    clean_at = clock_timestamp() + $7 * interval '1 microsecond',
    forget_at = clock_timestamp() + $8 * interval '1 microsecond'
WHERE (SELECT proven FROM here)
  AND scope = $1 AND idempotency_key = $2 AND attempt_id = $3 AND attempt = $4 AND state = 'running'
RETURNING (SELECT id FROM rowlock_database)";

/// Whether this is the transaction that rowlock began, and not a later one. And whose tables it finds: the work may
/// have changed the search path.
const BEGUN: &str = "
SELECT COALESCE(current_setting('rowlock.here', true), '') = 'begun', (SELECT id FROM rowlock_database)";

/// Whether a transaction is known to be open; see the head of `in_tx.rs`.
const HERE: &str = "
SELECT id, pg_current_xact_id_if_assigned() IS NOT NULL
           OR COALESCE(current_setting('rowlock.here', true), '') <> ''
FROM rowlock_database";

#[async_trait]
impl RecordInTxStore for PgConnection {
    async fn tx_claim(&mut self, ask: &ClaimAsk) -> Result<Told<Claimed>, Fault> {
        in_callers(async {
            let Some(seen) = ask.seen else {
                return tx_claim_new(self, ask).await;
            };
            let row: Option<(Option<Uuid>, i64)> = query_as(TX_CLAIM_AGAIN)
                .bind(ask.key.scope())
                .bind(ask.key.key())
                .bind(seen)
                .bind(ask.max_attempts)
                .bind(ask.attempt_id)
                .bind(&*ask.holder)
                .bind(&ask.fingerprint.as_bytes()[..])
                .bind(to_micros(ask.lease))
                .fetch_optional(&mut *self)
                .await?;
            if let Some((database, attempt)) = row {
                let found = Claimed::Mine { attempt };
                return Ok(Told { database, found });
            }
            // The record has changed or is locked, and another look finds out which; or it is in another database.
            row_security::check(self).await?;
            let database = query_scalar("SELECT id FROM rowlock_database");
            Ok(Told {
                database: database.fetch_optional(self).await?,
                found: Claimed::Locked,
            })
        })
        .await
    }

    async fn tx_keep(
        &mut self,
        ask: &ClaimAsk,
        outcome: &Outcome,
    ) -> Result<Told<Finished>, Fault> {
        in_callers(async {
            let (retain, remember) = (to_micros(ask.retain), to_micros(ask.remember));
            let query = if ask.seen.is_some() {
                query(TX_KEEP_AGAIN)
                    .bind(ask.key.scope())
                    .bind(ask.key.key())
                    .bind(ask.attempt_id)
            } else {
                query(TX_KEEP_NEW)
                    .bind(ask.key.scope())
                    .bind(ask.key.key())
                    .bind(ask.max_attempts)
                    .bind(ask.attempt_id)
                    .bind(&*ask.holder)
                    .bind(&ask.fingerprint.as_bytes()[..])
            };
            let done = query
                .bind(outcome.content_type())
                .bind(outcome.bytes())
                .bind(retain)
                .bind(remember)
                .bind(ask.database)
                .execute(&mut *self)
                .await?;
            if done.rows_affected() > 0 {
                return Ok(Told {
                    database: Some(ask.database),
                    found: Finished::Ended,
                });
            }
            match query_as(BEGUN).fetch_one(self).await? {
                (true, database) => Ok(Told {
                    database,
                    found: Finished::Superseded,
                }),
                (false, _) => Err(Fault::transaction_over()),
            }
        })
        .await
    }

    async fn tx_complete(&mut self, ask: &FinishAsk) -> Result<Told<Finished>, Fault> {
        in_callers(async {
            if let Some(Completed { id: database }) = complete(self, ask).await? {
                let found = Finished::Ended;
                return Ok(Told { database, found });
            }
            let here = here(&mut *self).await?;
            let told = |database, found| Ok(Told { database, found });
            if let Some((database, false)) = here {
                // The transaction has written nothing yet, or it is over.
                prove(self).await?;
                if let Some(Completed { id: database }) = complete(self, ask).await? {
                    return told(database, Finished::Ended);
                }
                row_security::check(self).await?;
                return told(Some(database), Finished::Superseded);
            }
            row_security::check(self).await?;
            told(here.map(|here| here.0), Finished::Superseded)
        })
        .await
    }
}

async fn tx_claim_new(conn: &mut PgConnection, ask: &ClaimAsk) -> Result<Told<Claimed>, Fault> {
    let lock = lock(&ask.key);
    let row: Option<(Uuid, bool, bool)> = query_as(TX_CLAIM_NEW)
        .bind(ask.key.scope())
        .bind(ask.key.key())
        .bind(lock)
        .fetch_optional(conn)
        .await?;
    let found = match row {
        Some((_, true, false)) => Claimed::Mine { attempt: 0 },
        Some((_, false, _)) => Claimed::Locked,
        _ => Claimed::Missed,
    };
    Ok(Told {
        database: row.map(|row| row.0),
        found,
    })
}

/// The result of completing an attempt in this transaction.
#[derive(Debug)]
struct Completed {
    /// The database's id.
    id: Option<Uuid>,
}

async fn complete(
    conn: &mut PgConnection,
    ask: &FinishAsk,
) -> Result<Option<Completed>, sqlx::Error> {
    let end = EndColumns::from(&ask.end);
    let row: Option<(Option<Uuid>,)> = query_as(TX_COMPLETE)
        .bind(ask.key.scope())
        .bind(ask.key.key())
        .bind(ask.attempt_id)
        .bind(ask.attempt)
        .bind(end.outcome.map(Outcome::content_type))
        .bind(end.outcome.map(Outcome::bytes))
        .bind(end.retain)
        .bind(end.remember)
        .fetch_optional(conn)
        .await?;
    Ok(row.map(|(id,)| Completed { id }))
}

/// Returns the database, and whether a transaction is known to be open.
async fn here(conn: &mut PgConnection) -> Result<Option<(Uuid, bool)>, sqlx::Error> {
    query_as(HERE).fetch_optional(conn).await
}
