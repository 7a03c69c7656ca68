//! Claiming keys: the statements. See [`record`](super::record).

use sqlx::PgConnection;
use sqlx::postgres::PgArguments;
use sqlx::query::QueryAs;

use super::grant_rule::may_grant;
use super::{Driver, each, query_as};
use crate::model::RecordKey;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::record::{
    ClaimOutcome, ClaimParams, KeyNumber, RecordStore, claim_outcomes, unclaimed,
};
use crate::store::verbs::time::to_micros;

/// The advisory lock of a key: its digest, and the table. Another schema of the database has a table of its own.
macro_rules! key_lock {
    ($digest:literal) => {
        concat!(
            "(",
            $digest,
            " # 'rowlock_idempotency'::regclass::oid::bigint)"
        )
    };
}
pub(super) use key_lock;

/// Claims keys without a record. (An insert of a key whose record another transaction has changed would wait for it.)
macro_rules! claim_new {
    ($asks:literal, $keys:literal) => {
        concat!(
            "INSERT INTO rowlock_idempotency (scope, idempotency_key, state, attempt, abandoned, max_attempts, attempt_id, holder,
                                 fingerprint, bound, began_at, attempted_at, lease_until, forget_at, clean_at)
SELECT a.scope, a.key, 'running', (extract(epoch FROM now.at) * 1000000)::bigint, 1, a.max_attempts,
       a.attempt_id, a.holder, a.fingerprint, false, now.at, now.at, now.at + a.lease * interval '1 microsecond',
       now.at + a.remember_begun * interval '1 microsecond', now.at + a.remember_begun * interval '1 microsecond'
FROM (
         SELECT * FROM unnest(",
            $asks,
            ") AS u (scope, key, lock, max_attempts, attempt_id, holder, fingerprint, lease, remember_begun)
         LIMIT cardinality(",
            $keys,
            ")
     ) a,
     clock_timestamp() AS now (at)
WHERE ",
            may_grant!(),
            " AND pg_try_advisory_xact_lock",
            key_lock!("a.lock"),
            "
  AND NOT EXISTS (SELECT FROM rowlock_idempotency r WHERE r.scope = a.scope AND r.idempotency_key = a.key)
ON CONFLICT DO NOTHING
RETURNING scope, idempotency_key, attempt"
        )
    };
}
pub(super) use claim_new;

pub(super) const CLAIM_NEW: &str = claim_new!(
    "$1::bytea[], $2::bytea[], $3::bigint[], $4::integer[], $5::uuid[], $6::text[], $7::bytea[], $8::bigint[], $9::bigint[]",
    "$1"
);

const CLAIM_AGAIN: &str = concat!(
    "
WITH mine AS (
    SELECT a.*
    FROM (
        SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::integer[], $5::uuid[], $6::text[],
                             $7::bytea[], $8::bigint[], $9::bigint[])
                      AS u (scope, key, seen, max_attempts, attempt_id, holder, fingerprint, lease, remember_begun)
        LIMIT cardinality($1)
    ) a
    JOIN rowlock_idempotency r ON r.scope = a.scope AND r.idempotency_key = a.key
    WHERE r.attempt = a.seen
      AND (r.state = 'free'
           OR (r.state = 'running' AND r.open_step IS NULL AND r.lease_until <= clock_timestamp()))
      AND ",
    may_grant!(),
    "
    ORDER BY a.scope, a.key
    FOR UPDATE OF r SKIP LOCKED
)
UPDATE rowlock_idempotency r
SET state = 'running', bound = r.bound OR r.state = 'running',
    attempt = GREATEST(r.attempt + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint),
    abandoned = CASE WHEN r.lease_until > clock_timestamp() - interval '1 hour' THEN r.abandoned ELSE 0 END + 1,
    max_attempts = m.max_attempts, attempt_id = m.attempt_id, holder = m.holder,
    fingerprint = m.fingerprint, attempted_at = clock_timestamp(),
    lease_until = clock_timestamp() + m.lease * interval '1 microsecond',
    forget_at = clock_timestamp() + m.remember_begun * interval '1 microsecond',
    clean_at = clock_timestamp() + m.remember_begun * interval '1 microsecond'
FROM mine m
WHERE r.scope = m.scope AND r.idempotency_key = m.key
RETURNING r.scope, r.idempotency_key, r.attempt"
);

/// The digest in the [advisory lock](key_lock) of a key that is being inserted.
pub(super) fn lock(key: &RecordKey) -> i64 {
    key.digest("rowlock.record", &[])
        .as_u64_pair()
        .0
        .cast_signed()
}

pub(super) type NumberQuery<'q> = QueryAs<'q, Driver, KeyNumber, PgArguments>;

pub(super) fn bind_claims<'q>(
    sql: NumberQuery<'q>,
    all: &[&'q ClaimParams],
    third: Vec<i64>,
) -> NumberQuery<'q> {
    sql.bind(each(all, |params| params.key.scope()))
        .bind(each(all, |params| params.key.key()))
        .bind(third)
        .bind(each(all, |params| params.max_attempts))
        .bind(each(all, |params| params.attempt_id))
        .bind(each(all, |params| &*params.holder))
        .bind(each(all, |params| &params.fingerprint.as_bytes()[..]))
        .bind(each(all, |params| to_micros(params.lease)))
        .bind(each(all, |params| to_micros(params.remember_begun)))
}

/// The claims of keys that had no record.
pub(super) fn unseen(all: &[ClaimParams]) -> Vec<&ClaimParams> {
    all.iter().filter(|params| params.seen.is_none()).collect()
}

pub(super) fn locks(new: &[&ClaimParams]) -> Vec<i64> {
    each(new, |params| lock(&params.key))
}

/// What claims came to. Those of keys with a record are sent now; `mine` are the others that were granted.
pub(super) async fn claimed(
    conn: &mut PgConnection,
    all: &[ClaimParams],
    mut mine: Vec<KeyNumber>,
) -> Result<Vec<ClaimOutcome>, Fault> {
    let again: Vec<_> = all.iter().filter(|params| params.seen.is_some()).collect();
    if !again.is_empty() {
        let seen = again.iter().filter_map(|params| params.seen).collect();
        let claim = bind_claims(query_as(CLAIM_AGAIN), &again, seen);
        mine.extend(claim.fetch_all(&mut *conn).await?);
    }
    let others = unclaimed(all, &mine);
    let rows = if others.is_empty() {
        Vec::new()
    } else {
        conn.record_read(&others, 0).await?
    };
    Ok(claim_outcomes(all, &mine, &rows))
}
