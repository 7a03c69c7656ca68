//! Idempotency records: the statements.
//!
//! The key of a record that an open transaction is making cannot be seen, and inserting it again would wait for that
//! transaction. So each transaction that inserts a record takes an advisory lock on a digest of the key, which ends
//! with the transaction. No transaction waits for that lock.
//!
//! `LIMIT cardinality($1)` limits nothing. When the planner does not know a limit, it assumes a tenth of the rows;
//! here it then expects one row and looks it up in the index. Without it, a plan from when the table was small reads
//! the whole table, and is kept until statistics are gathered.

use async_trait::async_trait;
use sqlx::PgConnection;

use super::grant_rule::may_grant;
use super::record_claim::{
    CLAIM_NEW, NumberQuery, bind_claims, claim_new, claimed, key_lock, lock, locks, unseen,
};
use super::{each, query, query_as, query_scalar};
use crate::model::{Outcome, RecordKey};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::lease::RenewOutcome;
use crate::store::verbs::record::{
    ClaimOutcome, ClaimParams, EndColumns, FinishOutcome, FinishParams, KeepParams, KeyNumber,
    RecordStore, number_of, which_ended,
};
use crate::store::verbs::record_row::{RecordRow, plain_columns};
use crate::store::verbs::time::{micros, to_micros};

/// Reads records. Times are in microseconds.
macro_rules! read_records {
    ($outcome:literal, $from:literal) => {
        concat!(
            "SELECT ",
            plain_columns!(),
            ", r.open_step,
       (extract(epoch FROM r.began_at) * 1000000)::bigint AS began_at,
       (extract(epoch FROM r.attempted_at) * 1000000)::bigint AS attempted_at,
       (extract(epoch FROM r.lease_until) * 1000000)::bigint AS lease_until,
       (extract(epoch FROM r.done_at) * 1000000)::bigint AS done_at,
       (extract(epoch FROM r.lease_until - clock_timestamp()) * 1000000)::bigint AS lease_left,
       (extract(epoch FROM r.retain_until - clock_timestamp()) * 1000000)::bigint AS retain_left,
       (extract(epoch FROM r.forget_at - clock_timestamp()) * 1000000)::bigint AS forget_left, ",
            $outcome,
            " FROM ",
            $from
        )
    };
}
pub(super) use read_records;

const READ: &str = read_records!(
    "CASE WHEN octet_length(r.outcome) <= $3 THEN r.outcome END AS outcome, octet_length(r.outcome)::bigint AS outcome_size",
    "(SELECT * FROM unnest($1::bytea[], $2::bytea[]) AS u (scope, key) LIMIT cardinality($1)) a
JOIN rowlock_idempotency r ON r.scope = a.scope AND r.idempotency_key = a.key"
);

const FORGET: &str = "
WITH old AS (
    SELECT scope, idempotency_key FROM rowlock_idempotency
    WHERE scope = $1 AND idempotency_key = $2 AND attempt = $3 AND forget_at <= clock_timestamp()
      AND (state <> 'running' OR (open_step IS NULL AND lease_until <= clock_timestamp()))
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM rowlock_idempotency r USING old o
    WHERE r.scope = o.scope AND r.idempotency_key = o.idempotency_key
)
DELETE FROM rowlock_idempotency_step s USING old o
WHERE s.scope = o.scope AND s.idempotency_key = o.idempotency_key";

const RENEW: &str = "
WITH ask AS (
    SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::uuid[], $4::bigint[]) AS u (scope, key, attempt_id, lease)
    LIMIT cardinality($1)
), mine AS (
    SELECT a.* FROM ask a
    JOIN rowlock_idempotency r ON r.scope = a.scope AND r.idempotency_key = a.key
    WHERE r.attempt_id = a.attempt_id AND r.state = 'running'
    ORDER BY a.scope, a.key
    FOR UPDATE OF r SKIP LOCKED
), kept AS (
    UPDATE rowlock_idempotency r
    SET lease_until = GREATEST(r.lease_until, clock_timestamp() + m.lease * interval '1 microsecond')
    FROM mine m
    WHERE r.scope = m.scope AND r.idempotency_key = m.key
    RETURNING r.scope, r.idempotency_key, r.lease_until
)
SELECT r.scope, r.idempotency_key,
       (extract(epoch FROM COALESCE(k.lease_until, r.lease_until) - clock_timestamp()) * 1000000)::bigint
FROM ask a
JOIN rowlock_idempotency r ON r.scope = a.scope AND r.idempotency_key = a.key
LEFT JOIN kept k ON k.scope = r.scope AND k.idempotency_key = r.idempotency_key
WHERE r.attempt_id = a.attempt_id AND r.state = 'running'";

/// The running attempts that end, with their rows locked.
macro_rules! ending {
    () => {
        "WITH mine AS (
    SELECT a.*
    FROM (
        SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::uuid[], $4::bigint[], $5::text[], $6::text[], $7::bytea[],
                             $8::bigint[], $9::bigint[], $10::boolean[], $11::integer[], $12::bigint[],
                             $13::boolean[])
                      AS u (scope, key, attempt_id, attempt, state, content_type, outcome, retain, remember, bound, pardon,
                            remember_begun, step_is_open)
        LIMIT cardinality($1)
    ) a
    JOIN rowlock_idempotency r ON r.scope = a.scope AND r.idempotency_key = a.key
    WHERE r.attempt_id = a.attempt_id AND a.attempt IN (r.attempt, -1) AND r.state = 'running'
    ORDER BY a.scope, a.key
    FOR UPDATE OF r SKIP LOCKED
)"
    };
}

macro_rules! finish {
    () => {
        "UPDATE rowlock_idempotency r
SET state = CASE WHEN m.step_is_open AND r.open_step IS NOT NULL THEN 'unknown' ELSE m.state END,
    open_step = CASE WHEN m.step_is_open THEN r.open_step END,
    bound = r.bound OR m.bound,
    abandoned = GREATEST(r.abandoned - m.pardon, 0),
    content_type = m.content_type,
    outcome = m.outcome,
    done_at = CASE WHEN m.state = 'done' THEN clock_timestamp() END,
    retain_until = clock_timestamp() + m.retain * interval '1 microsecond',
    forget_at = CASE WHEN NOT m.step_is_open OR r.open_step IS NULL
                     THEN clock_timestamp() + interval '1 microsecond'
                          * CASE WHEN r.bound OR m.bound THEN m.remember_begun ELSE m.remember END END,
    clean_at = CASE WHEN NOT m.step_is_open OR r.open_step IS NULL
                    THEN clock_timestamp() + interval '1 microsecond'
                         * COALESCE(m.retain, CASE WHEN r.bound OR m.bound THEN m.remember_begun ELSE m.remember END) END
FROM mine m
WHERE r.scope = m.scope AND r.idempotency_key = m.key
RETURNING r.scope, r.idempotency_key, r.attempt"
    };
}

const FINISH: &str = concat!(ending!(), "\n", finish!());

/// [`CLAIM_NEW`] and [`FINISH`]. The claims come first, soon after the snapshot in which they look for records: with a
/// megabyte of outcomes in between, a record could be made and changed by then, and an insert would wait.
const EXCHANGE: &str = concat!(
    ending!(),
    ", ended AS (",
    finish!(),
    "), claimed AS (",
    claim_new!(
        "$14::bytea[], $15::bytea[], $16::bigint[], $17::integer[], $18::uuid[], $19::text[], $20::bytea[], $21::bigint[], $22::bigint[]",
        "$14"
    ),
    ") SELECT * FROM claimed UNION ALL SELECT * FROM ended"
);

/// Whether a transaction has the advisory lock of the key (its high half is `classid`, its low half `objid`), or of
/// its row.
const CLAIMED: &str = concat!(
    "
SELECT EXISTS (
    SELECT FROM pg_locks
    WHERE locktype = 'advisory' AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND classid::bigint = (",
    key_lock!("$3::bigint"),
    " >> 32) & 4294967295 AND objid::bigint = ",
    key_lock!("$3::bigint"),
    " & 4294967295
      AND objsubid = 1
) OR (
    EXISTS (SELECT FROM rowlock_idempotency WHERE scope = $1 AND idempotency_key = $2)
    AND NOT EXISTS (
        SELECT FROM rowlock_idempotency WHERE scope = $1 AND idempotency_key = $2 FOR SHARE SKIP LOCKED
    )
)"
);

#[async_trait]
impl RecordStore for PgConnection {
    async fn record_read(
        &mut self,
        keys: &[RecordKey],
        largest: usize,
    ) -> Result<Vec<Option<RecordRow>>, Fault> {
        let rows = query_as(READ)
            .bind(each(keys, RecordKey::scope))
            .bind(each(keys, RecordKey::key))
            .bind(i64::try_from(largest).unwrap_or(i64::MAX))
            .fetch_all(self)
            .await?;
        Ok(RecordRow::in_order(rows, keys))
    }

    async fn record_is_claimed(&mut self, key: &RecordKey) -> Result<bool, Fault> {
        Ok(query_scalar(CLAIMED)
            .bind(key.scope())
            .bind(key.key())
            .bind(lock(key))
            .fetch_one(self)
            .await?)
    }

    async fn record_forget(&mut self, key: &RecordKey, attempt: i64) -> Result<(), Fault> {
        let forget = query(FORGET)
            .bind(key.scope())
            .bind(key.key())
            .bind(attempt);
        forget.execute(self).await?;
        Ok(())
    }

    async fn record_claim(&mut self, all: &[ClaimParams]) -> Result<Vec<ClaimOutcome>, Fault> {
        let new = unseen(all);
        let mut mine = Vec::new();
        if !new.is_empty() {
            let claim = bind_claims(query_as(CLAIM_NEW), &new, locks(&new));
            mine = claim.fetch_all(&mut *self).await?;
        }
        claimed(self, all, mine).await
    }

    async fn record_renew(&mut self, all: &[KeepParams]) -> Result<Vec<RenewOutcome>, Fault> {
        let rows: Vec<KeyNumber> = query_as(RENEW)
            .bind(each(all, |params| params.key.scope()))
            .bind(each(all, |params| params.key.key()))
            .bind(each(all, |params| params.attempt_id))
            .bind(each(all, |params| to_micros(params.lease)))
            .fetch_all(self)
            .await?;
        let renewed = |params: &KeepParams| match number_of(&rows, &params.key) {
            Some(left) => RenewOutcome::Live {
                remaining: micros(left),
            },
            None => RenewOutcome::Gone,
        };
        Ok(all.iter().map(renewed).collect())
    }

    async fn record_finish(&mut self, all: &[FinishParams]) -> Result<Vec<FinishOutcome>, Fault> {
        let numbers = bind_ends(query_as(FINISH), all).fetch_all(&mut *self);
        let numbers: Vec<KeyNumber> = numbers.await?;
        self.record_ended(all, &which_ended(all, &numbers)).await
    }

    async fn record_exchange(
        &mut self,
        ends: &[FinishParams],
        claims: &[ClaimParams],
    ) -> Result<(Vec<FinishOutcome>, Vec<ClaimOutcome>), Fault> {
        let new = unseen(claims);
        if new.is_empty() {
            let ended = self.record_finish(ends).await?;
            let claimed = self.record_claim(claims).await;
            return Ok((ended, claimed.map_err(Fault::half_done)?));
        }
        let exchange = bind_claims(bind_ends(query_as(EXCHANGE), ends), &new, locks(&new));
        let done: Vec<KeyNumber> = exchange.fetch_all(&mut *self).await?;
        let finished = self.record_ended(ends, &which_ended(ends, &done)).await?;
        let claimed = claimed(self, claims, done).await;
        Ok((finished, claimed.map_err(Fault::half_done)?))
    }
}

fn bind_ends<'q>(sql: NumberQuery<'q>, all: &'q [FinishParams]) -> NumberQuery<'q> {
    let ends = each(all, |params| EndColumns::from(&params.end));
    sql.bind(each(all, |params| params.key.scope()))
        .bind(each(all, |params| params.key.key()))
        .bind(each(all, |params| params.attempt_id))
        .bind(each(all, |params| params.attempt))
        .bind(each(&ends, |end| end.state))
        .bind(each(&ends, |end| end.outcome.map(Outcome::content_type)))
        .bind(each(&ends, |end| end.outcome.map(Outcome::bytes)))
        .bind(each(&ends, |end| end.retain))
        .bind(each(&ends, |end| end.remember))
        .bind(each(&ends, |end| end.bound))
        .bind(each(&ends, |end| end.pardon))
        .bind(each(&ends, |end| end.remember_begun))
        .bind(each(&ends, |end| end.step_is_open))
}
