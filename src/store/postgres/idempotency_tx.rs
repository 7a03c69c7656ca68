//! Idempotency records in transactions: the statements.

use sqlx::PgConnection;
use uuid::Uuid;

use super::idempotency::lock;
use super::{query, query_as, query_scalar};
use crate::idempotency::{Outcome, RecordKey};
use crate::store::fault::Fault;
use crate::store::record::{ClaimAsk, Claimed, EndColumns, FinishAsk, Finished};
use crate::store::{Told, to_micros};

/// Nothing is written before the outcome is there: the advisory lock is the claim. A caller that does not get it at once gives
/// the transaction up.
const TX_CLAIM_NEW: &str = "
SELECT id, pg_try_advisory_xact_lock($3),
       EXISTS (SELECT FROM rowlock_idempotency WHERE scope = $1 AND idempotency_key = $2)
FROM rowlock_database";

/// Nothing is inserted when somebody has committed between the look and the claim.
const TX_KEEP_NEW: &str = "
INSERT INTO rowlock_idempotency (scope, idempotency_key, state, attempt, tries, max_tries, owner, holder,
                                 fingerprint, bound, content_type, outcome, began_at, attempted_at, lease_until,
                                 done_at, retain_until, clean_at, forget_at)
SELECT $1, $2, 'done', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 0, $3, $4, $5, $6, true, $7, $8,
       now(), now(), now(), now.at, now.at + $9 * interval '1 microsecond', now.at + $9 * interval '1 microsecond',
       now.at + $10 * interval '1 microsecond'
FROM clock_timestamp() AS now (at)
ON CONFLICT DO NOTHING";

const TX_CLAIM_AGAIN: &str = "
UPDATE rowlock_idempotency
SET state = 'running',
    attempt = GREATEST(attempt + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint),
    tries = tries + 1, max_tries = $4, owner = $5, holder = $6, fingerprint = $7,
    attempted_at = clock_timestamp(), lease_until = clock_timestamp() + $8 * interval '1 microsecond',
    forget_at = NULL, clean_at = NULL
WHERE (scope, idempotency_key) = (
    SELECT scope, idempotency_key FROM rowlock_idempotency
    WHERE scope = $1 AND idempotency_key = $2 AND attempt = $3
      AND (state = 'free' OR (state = 'running' AND doubt IS NULL AND lease_until <= clock_timestamp()))
    FOR UPDATE SKIP LOCKED
)
RETURNING (SELECT id FROM rowlock_database), attempt";

const TX_KEEP_AGAIN: &str = "
UPDATE rowlock_idempotency
SET state = 'done', doubt = NULL, tries = 0, content_type = $4, outcome = $5, done_at = clock_timestamp(),
    retain_until = clock_timestamp() + $6 * interval '1 microsecond',
    clean_at = clock_timestamp() + $6 * interval '1 microsecond',
    forget_at = clock_timestamp() + $7 * interval '1 microsecond'
WHERE scope = $1 AND idempotency_key = $2 AND owner = $3 AND state = 'running'";

/// Nothing comes back when the attempt is not the running one.
const TX_COMPLETE: &str = "
UPDATE rowlock_idempotency
SET state = 'done', doubt = NULL, tries = 0, content_type = $5, outcome = $6, done_at = clock_timestamp(),
    retain_until = clock_timestamp() + $7 * interval '1 microsecond',
    clean_at = clock_timestamp() + $7 * interval '1 microsecond',
    forget_at = clock_timestamp() + $8 * interval '1 microsecond'
WHERE scope = $1 AND idempotency_key = $2 AND owner = $3 AND attempt = $4 AND state = 'running'
RETURNING (SELECT id FROM rowlock_database)";

/// Whether a transaction has the advisory lock of a key (its high half is `classid`, its low one `objid`), or that of its row.
const CLAIMED: &str = "
SELECT EXISTS (
    SELECT FROM pg_locks
    WHERE locktype = 'advisory' AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND classid::bigint = ($3::bigint >> 32) & 4294967295 AND objid::bigint = $3::bigint & 4294967295
      AND objsubid = 1
) OR (
    EXISTS (SELECT FROM rowlock_idempotency WHERE scope = $1 AND idempotency_key = $2)
    AND NOT EXISTS (
        SELECT FROM rowlock_idempotency WHERE scope = $1 AND idempotency_key = $2 FOR SHARE SKIP LOCKED
    )
)";

pub(super) async fn is_claimed(
    conn: &mut PgConnection,
    key: &RecordKey,
) -> Result<bool, sqlx::Error> {
    query_scalar(CLAIMED)
        .bind(key.scope())
        .bind(key.key())
        .bind(lock(key))
        .fetch_one(conn)
        .await
}

pub(super) async fn tx_claim(
    conn: &mut PgConnection,
    ask: &ClaimAsk,
) -> Result<Told<Claimed>, Fault> {
    let Some(seen) = ask.seen else {
        return tx_claim_new(conn, ask).await;
    };
    let row: Option<(Option<Uuid>, i64)> = query_as(TX_CLAIM_AGAIN)
        .bind(ask.key.scope())
        .bind(ask.key.key())
        .bind(seen)
        .bind(ask.max_tries)
        .bind(ask.owner)
        .bind(&*ask.holder)
        .bind(&ask.fingerprint.as_bytes()[..])
        .bind(to_micros(ask.lease))
        .fetch_optional(&mut *conn)
        .await?;
    Ok(match row {
        Some((database, attempt)) => Told {
            database,
            found: Claimed::Mine { attempt },
        },
        // Changed, or locked: another look tells. Or in another database.
        None => Told {
            database: query_scalar("SELECT id FROM rowlock_database")
                .fetch_optional(conn)
                .await?,
            found: Claimed::Locked,
        },
    })
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

pub(super) async fn tx_keep(
    conn: &mut PgConnection,
    ask: &ClaimAsk,
    outcome: &Outcome,
) -> Result<Finished, Fault> {
    let (retain, forget) = (to_micros(ask.retain), to_micros(ask.forget));
    let query = if ask.seen.is_some() {
        query(TX_KEEP_AGAIN)
            .bind(ask.key.scope())
            .bind(ask.key.key())
            .bind(ask.owner)
    } else {
        query(TX_KEEP_NEW)
            .bind(ask.key.scope())
            .bind(ask.key.key())
            .bind(ask.max_tries)
            .bind(ask.owner)
            .bind(&*ask.holder)
            .bind(&ask.fingerprint.as_bytes()[..])
    };
    let done = query
        .bind(outcome.content_type())
        .bind(outcome.bytes())
        .bind(retain)
        .bind(forget)
        .execute(conn)
        .await?;
    Ok(match done.rows_affected() {
        0 => Finished::Superseded,
        _ => Finished::Ended,
    })
}

pub(super) async fn tx_complete(
    conn: &mut PgConnection,
    ask: &FinishAsk,
) -> Result<Told<Finished>, Fault> {
    let end = EndColumns::from(&ask.end);
    let row: Option<Option<Uuid>> = query_scalar(TX_COMPLETE)
        .bind(ask.key.scope())
        .bind(ask.key.key())
        .bind(ask.owner)
        .bind(ask.attempt)
        .bind(end.outcome.map(Outcome::content_type))
        .bind(end.outcome.map(Outcome::bytes))
        .bind(end.retain)
        .bind(end.forget)
        .fetch_optional(&mut *conn)
        .await?;
    if let Some(database) = row {
        let found = Finished::Ended;
        return Ok(Told { database, found });
    }
    let database = query_scalar("SELECT id FROM rowlock_database")
        .fetch_optional(conn)
        .await?;
    let found = Finished::Superseded;
    Ok(Told { database, found })
}
