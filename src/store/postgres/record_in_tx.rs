//! Idempotency records in transactions: the statements.

use async_trait::async_trait;
use sqlx::PgConnection;
use uuid::Uuid;

use super::in_tx::prove;
use super::record_claim::{key_lock, lock};
use super::{in_callers, query, query_as, query_scalar, row_security};
use crate::model::Outcome;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::in_tx::TxReply;
use crate::store::verbs::record::{
    ClaimOutcome, ClaimParams, EndColumns, FinishOutcome, FinishParams,
};
use crate::store::verbs::record_in_tx::RecordInTxStore;
use crate::store::verbs::time::to_micros;

/// Writes nothing before the outcome exists: the advisory lock is the claim. A caller that does not get it at once
/// gives the transaction up.
const TX_CLAIM_NEW: &str = concat!(
    "
SELECT id, pg_try_advisory_xact_lock",
    key_lock!("$3::bigint"),
    ",
       EXISTS (SELECT FROM rowlock_idempotency WHERE scope = $1 AND idempotency_key = $2)
FROM rowlock_database"
);

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
    async fn tx_claim(&mut self, params: &ClaimParams) -> Result<TxReply<ClaimOutcome>, Fault> {
        in_callers(async {
            let Some(seen) = params.seen else {
                return tx_claim_new(self, params).await;
            };
            let row: Option<(Option<Uuid>, i64)> = query_as(TX_CLAIM_AGAIN)
                .bind(params.key.scope())
                .bind(params.key.key())
                .bind(seen)
                .bind(params.max_attempts)
                .bind(params.attempt_id)
                .bind(&*params.holder)
                .bind(&params.fingerprint.as_bytes()[..])
                .bind(to_micros(params.lease))
                .fetch_optional(&mut *self)
                .await?;
            if let Some((database, attempt)) = row {
                return Ok(TxReply::of(database, ClaimOutcome::Mine { attempt }));
            }
            // The record has changed or is locked, and another look finds out which; or it is in another database.
            row_security::check(self).await?;
            let database = query_scalar("SELECT id FROM rowlock_database");
            let database = database.fetch_optional(self).await?;
            Ok(TxReply::of(database, ClaimOutcome::Locked))
        })
        .await
    }

    async fn tx_keep(
        &mut self,
        params: &ClaimParams,
        outcome: &Outcome,
    ) -> Result<TxReply<FinishOutcome>, Fault> {
        in_callers(async {
            let (retain, remember) = (to_micros(params.retain), to_micros(params.remember));
            let query = if params.seen.is_some() {
                query(TX_KEEP_AGAIN)
                    .bind(params.key.scope())
                    .bind(params.key.key())
                    .bind(params.attempt_id)
            } else {
                query(TX_KEEP_NEW)
                    .bind(params.key.scope())
                    .bind(params.key.key())
                    .bind(params.max_attempts)
                    .bind(params.attempt_id)
                    .bind(&*params.holder)
                    .bind(&params.fingerprint.as_bytes()[..])
            };
            let done = query
                .bind(outcome.content_type())
                .bind(outcome.bytes())
                .bind(retain)
                .bind(remember)
                .bind(params.database)
                .execute(&mut *self)
                .await?;
            if done.rows_affected() > 0 {
                return Ok(TxReply::of(Some(params.database), FinishOutcome::Ended));
            }
            match query_as(BEGUN).fetch_one(self).await? {
                (true, database) => Ok(TxReply::of(database, FinishOutcome::Superseded)),
                (false, _) => Err(Fault::transaction_over()),
            }
        })
        .await
    }

    async fn tx_complete(
        &mut self,
        params: &FinishParams,
    ) -> Result<TxReply<FinishOutcome>, Fault> {
        in_callers(async {
            if let Some((database,)) = complete(self, params).await? {
                return Ok(TxReply::of(database, FinishOutcome::Ended));
            }
            let here = here(&mut *self).await?;
            let told = |database, found| Ok(TxReply::of(database, found));
            if let Some((database, false)) = here {
                // The transaction has written nothing yet, or it is over.
                prove(self).await?;
                if let Some((database,)) = complete(self, params).await? {
                    return told(database, FinishOutcome::Ended);
                }
                row_security::check(self).await?;
                return told(Some(database), FinishOutcome::Superseded);
            }
            row_security::check(self).await?;
            told(here.map(|here| here.0), FinishOutcome::Superseded)
        })
        .await
    }
}

async fn tx_claim_new(
    conn: &mut PgConnection,
    params: &ClaimParams,
) -> Result<TxReply<ClaimOutcome>, Fault> {
    let lock = lock(&params.key);
    let row: Option<(Uuid, bool, bool)> = query_as(TX_CLAIM_NEW)
        .bind(params.key.scope())
        .bind(params.key.key())
        .bind(lock)
        .fetch_optional(conn)
        .await?;
    let found = match row {
        Some((_, true, false)) => ClaimOutcome::Mine { attempt: 0 },
        Some((_, false, _)) => ClaimOutcome::Locked,
        _ => ClaimOutcome::Missed,
    };
    Ok(TxReply::of(row.map(|row| row.0), found))
}

/// Completes an attempt in this transaction. Returns the database's id.
async fn complete(
    conn: &mut PgConnection,
    params: &FinishParams,
) -> Result<Option<(Option<Uuid>,)>, sqlx::Error> {
    let end = EndColumns::from(&params.end);
    query_as(TX_COMPLETE)
        .bind(params.key.scope())
        .bind(params.key.key())
        .bind(params.attempt_id)
        .bind(params.attempt)
        .bind(end.outcome.map(Outcome::content_type))
        .bind(end.outcome.map(Outcome::bytes))
        .bind(end.retain)
        .bind(end.remember)
        .fetch_optional(conn)
        .await
}

/// Returns the database, and whether a transaction is known to be open.
async fn here(conn: &mut PgConnection) -> Result<Option<(Uuid, bool)>, sqlx::Error> {
    query_as(HERE).fetch_optional(conn).await
}
