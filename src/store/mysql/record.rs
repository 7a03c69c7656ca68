//! Idempotency records: the statements.
//!
//! They follow `lease.rs`, whose head explains how a batch is sent, which rows are locked, and which clock is read.

use std::slice;

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection};

use super::record_exchange::all_or_none;
use super::record_probe::probe;
use super::statement::{fill, hex, is_one_request, parts, quoted, read_as};
use super::{record_claim, record_end};
use crate::model::{FaultKind, RecordKey};
use crate::store::driver::json;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::lease::RenewOutcome;
use crate::store::verbs::record::{
    ClaimOutcome, ClaimParams, FinishOutcome, FinishParams, KeepParams, RecordStore,
};
use crate::store::verbs::record_row::{RecordRow, plain_columns};
use crate::store::verbs::time::micros;

/// Reads records. Times are in microseconds.
macro_rules! read_records {
    ($outcome:literal, $from:literal) => {
        concat!(
            "SELECT ",
            plain_columns!(),
            ", CONVERT(r.open_step USING utf8mb4) AS open_step,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', r.began_at) AS began_at,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', r.attempted_at) AS attempted_at,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', r.lease_until) AS lease_until,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', r.done_at) AS done_at,
       TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), r.lease_until) AS lease_left,
       TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), r.retain_until) AS retain_left,
       TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), r.forget_at) AS forget_left, ",
            $outcome,
            " FROM ",
            $from
        )
    };
}
pub(super) use read_records;

/// What a request has besides the ends and claims.
const AROUND: usize = 4_096;

macro_rules! read {
    ($from:literal) => {
        read_records!(
            "IF(LENGTH(r.outcome) <= ?, r.outcome, NULL) AS outcome, LENGTH(r.outcome) AS outcome_size",
            $from
        )
    };
}

const READ: &str = read!(
    "JSON_TABLE(?, '$[*]' COLUMNS (
    scope VARCHAR(510) CHARACTER SET ascii PATH '$[0]',
    k     VARCHAR(510) CHARACTER SET ascii PATH '$[1]'
)) a
STRAIGHT_JOIN rowlock_idempotency r FORCE INDEX (PRIMARY)
    ON r.scope = UNHEX(a.scope) AND r.idempotency_key = UNHEX(a.k)"
);

/// [`READ`] for a single key.
const READ_ONE: &str = read!(
    "rowlock_idempotency r
WHERE r.scope = ? AND r.idempotency_key = ?"
);

const LOCK_FORGOTTEN: &str = "
SELECT attempt FROM rowlock_idempotency
WHERE scope = ? AND idempotency_key = ? AND attempt = ? AND forget_at <= SYSDATE(6)
  AND (state <> 'running' OR (open_step IS NULL AND lease_until <= SYSDATE(6)))
FOR UPDATE SKIP LOCKED";

const RENEW: &str = "
UPDATE (
    SELECT r.scope, r.idempotency_key, a.lease
    FROM JSON_TABLE(?, '$[*]' COLUMNS (
        scope      VARCHAR(510) CHARACTER SET ascii PATH '$[0]',
        k          VARCHAR(510) CHARACTER SET ascii PATH '$[1]',
        attempt_id CHAR(32)     CHARACTER SET ascii PATH '$[2]',
        lease      BIGINT                           PATH '$[3]'
    )) a
    STRAIGHT_JOIN rowlock_idempotency r FORCE INDEX (PRIMARY)
        ON r.scope = UNHEX(a.scope) AND r.idempotency_key = UNHEX(a.k)
    WHERE r.attempt_id = UNHEX(a.attempt_id) AND r.state = 'running'
    LIMIT 1000000
    FOR UPDATE /*!80000 OF r */ SKIP LOCKED
) t
STRAIGHT_JOIN rowlock_idempotency r FORCE INDEX (PRIMARY)
    ON r.scope = t.scope AND r.idempotency_key = t.idempotency_key
SET r.lease_until = GREATEST(r.lease_until, SYSDATE(6) + INTERVAL t.lease MICROSECOND)";

pub(super) const REMOVE: &str = "
DELETE r FROM JSON_TABLE(?, '$[*]' COLUMNS (
    scope VARCHAR(510) CHARACTER SET ascii PATH '$[0]',
    k     VARCHAR(510) CHARACTER SET ascii PATH '$[1]'
)) a
STRAIGHT_JOIN rowlock_idempotency r FORCE INDEX (PRIMARY)
    ON r.scope = UNHEX(a.scope) AND r.idempotency_key = UNHEX(a.k)";

pub(super) const REMOVE_STEPS: &str = "
DELETE s FROM JSON_TABLE(?, '$[*]' COLUMNS (
    scope VARCHAR(510) CHARACTER SET ascii PATH '$[0]',
    k     VARCHAR(510) CHARACTER SET ascii PATH '$[1]'
)) a
STRAIGHT_JOIN rowlock_idempotency_step s FORCE INDEX (PRIMARY)
    ON s.scope = UNHEX(a.scope) AND s.idempotency_key = UNHEX(a.k)";

#[async_trait]
impl RecordStore for MySqlConnection {
    async fn record_read(
        &mut self,
        keys: &[RecordKey],
        largest: usize,
    ) -> Result<Vec<Option<RecordRow>>, Fault> {
        let largest = i64::try_from(largest).unwrap_or(i64::MAX);
        let read = match keys {
            [key] => fill(
                READ_ONE,
                &[largest.to_string(), hex(key.scope()), hex(key.key())],
            ),
            _ => fill(READ, &[largest.to_string(), quoted(&json::keys(keys))]),
        };
        Ok(RecordRow::in_order(read_as(self, &read).await?, keys))
    }

    /// Whether another transaction has the key locked, or is making its record.
    async fn record_is_claimed(&mut self, key: &RecordKey) -> Result<bool, Fault> {
        let probed = sqlx::raw_sql(AssertSqlSafe(probe([key])));
        let probed = probed.fetch_all(self).await;
        match probed.map_err(Fault::from) {
            Ok(_) => Ok(false),
            Err(fault) if fault.kind == FaultKind::LockTimeout => Ok(true),
            Err(fault) => Err(fault),
        }
    }

    async fn record_forget(&mut self, key: &RecordKey, attempt: i64) -> Result<(), Fault> {
        let mut tx = self.begin().await?;
        let locked: Option<i64> = sqlx::query_scalar(LOCK_FORGOTTEN)
            .bind(key.scope())
            .bind(key.key())
            .bind(attempt)
            .fetch_optional(&mut *tx)
            .await?;
        if locked.is_some() {
            let keys = json::keys(slice::from_ref(key));
            for sql in [REMOVE_STEPS, REMOVE] {
                sqlx::query(sql).bind(&keys).execute(&mut *tx).await?;
            }
        }
        tx.commit().await?;
        Ok(())
    }

    async fn record_claim(&mut self, all: &[ClaimParams]) -> Result<Vec<ClaimOutcome>, Fault> {
        let mut claimed = Vec::with_capacity(all.len());
        for part in parts(AROUND, all.iter().map(record_claim::size)) {
            let part = &all[part];
            let done = all_or_none(self, &[], part).await;
            if let Some((_, part)) = done.map_err(|fault| after(&claimed, fault))? {
                claimed.extend(part);
                continue;
            }
            // Another transaction has one of the new records, or is making it: find out which.
            for params in part {
                let one = if part.len() == 1 {
                    Ok(None)
                } else {
                    all_or_none(self, &[], slice::from_ref(params)).await
                };
                if let Some((_, one)) = one.map_err(|fault| after(&claimed, fault))? {
                    claimed.extend(one);
                } else {
                    let row = self.record_read_one(&params.key, 0).await;
                    let row = row.map_err(|fault| after(&claimed, fault))?;
                    claimed.push(params.outcome_of(row.as_ref()));
                }
            }
        }
        Ok(claimed)
    }

    async fn record_renew(&mut self, all: &[KeepParams]) -> Result<Vec<RenewOutcome>, Fault> {
        sqlx::query(RENEW)
            .bind(json::keeps(all))
            .execute(&mut *self)
            .await?;
        let keys: Vec<RecordKey> = all.iter().map(|params| params.key.clone()).collect();
        let rows = self.record_read(&keys, 0).await?;
        Ok(all
            .iter()
            .zip(&rows)
            .map(|(params, row)| match row {
                Some(row) if row.runs_for(params.attempt_id) => RenewOutcome::Live {
                    remaining: micros(row.lease_left),
                },
                _ => RenewOutcome::Gone,
            })
            .collect())
    }

    async fn record_finish(&mut self, all: &[FinishParams]) -> Result<Vec<FinishOutcome>, Fault> {
        let mut ended = Vec::with_capacity(all.len());
        for part in parts(AROUND, record_end::sizes(all).into_iter()) {
            let part = &all[part];
            let done = all_or_none(self, part, &[]).await;
            if let Some((part, _)) = done.map_err(|fault| after(&ended, fault))? {
                ended.extend(part);
                continue;
            }
            // A transaction has one of the records locked: find out which.
            for params in part {
                let one = all_or_none(self, slice::from_ref(params), &[]).await;
                let one = one.map_err(|fault| after(&ended, fault))?;
                ended.push(one.is_some_and(|(ended, _)| ended == [true]));
            }
        }
        self.record_ended(all, &ended).await
    }

    /// In one transaction, if it is one request and no other transaction is in the way.
    async fn record_exchange(
        &mut self,
        ends: &[FinishParams],
        claims: &[ClaimParams],
    ) -> Result<(Vec<FinishOutcome>, Vec<ClaimOutcome>), Fault> {
        let sizes = record_end::sizes(ends).into_iter();
        let sizes = sizes.chain(claims.iter().map(record_claim::size));
        if is_one_request(AROUND, sizes) {
            match all_or_none(self, ends, claims).await {
                Ok(Some((ended, claimed))) => {
                    let finished = self.record_ended(ends, &ended).await;
                    return Ok((finished?, claimed));
                }
                // A conflict over a claim must not delay the ends: they go apart.
                Err(fault) if matches!(fault.kind, FaultKind::Deadlock | FaultKind::Conflict) => {}
                Err(fault) => return Err(fault),
                Ok(None) => {}
            }
        }
        let finished = self.record_finish(ends).await?;
        let claimed = self.record_claim(claims).await;
        Ok((finished, claimed.map_err(Fault::half_done)?))
    }
}

/// The fault, and that it came after requests which are `done`.
fn after<T>(done: &[T], fault: Fault) -> Fault {
    if done.is_empty() {
        fault
    } else {
        fault.half_done()
    }
}
