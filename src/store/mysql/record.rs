//! Idempotency records: the statements.
//!
//! They follow `lease.rs`, whose head explains how a batch is sent, which rows are locked, and which clock is read.
//!
//! The key of a record that an open transaction is making cannot be seen, and inserting it again would wait for that
//! transaction. So a lane first asks for the lock of such a key with NOWAIT. (Another transaction may insert the key
//! just afterwards; the lane's time-out bounds the wait for that transaction.)

use async_trait::async_trait;
use sqlx::{Connection, MySqlConnection};

use super::grant_rule::may_grant;
use super::statement::{fill, hex, quoted, read_as};
use crate::model::{FaultKind, RecordKey};
use crate::store::driver::json;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::lease::RenewOutcome;
use crate::store::verbs::record::{
    ClaimOutcome, ClaimParams, FinishOutcome, FinishParams, KeepParams, RecordStore,
};
use crate::store::verbs::record_row::{RecordRow, plain_columns};
use crate::store::verbs::record_state::KeptState;
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

const PROBE: &str = "
SELECT r.attempt
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    scope VARCHAR(510) CHARACTER SET ascii PATH '$[0]',
    k     VARCHAR(510) CHARACTER SET ascii PATH '$[1]'
)) a
STRAIGHT_JOIN rowlock_idempotency r FORCE INDEX (PRIMARY)
    ON r.scope = UNHEX(a.scope) AND r.idempotency_key = UNHEX(a.k)
FOR UPDATE /*!80000 OF r */ NOWAIT";

/// A duplicate raises an error, which is caught.
const CLAIM_NEW: &str = concat!(
    "
INSERT INTO rowlock_idempotency (scope, idempotency_key, state, attempt, abandoned, max_attempts, attempt_id, holder,
                                 fingerprint, bound, began_at, attempted_at, lease_until, forget_at, clean_at)
SELECT UNHEX(a.scope), UNHEX(a.k), 'running', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), 1,
       a.max_attempts, UNHEX(a.attempt_id), a.holder, UNHEX(a.fingerprint), FALSE, SYSDATE(6), SYSDATE(6),
       SYSDATE(6) + INTERVAL a.lease MICROSECOND, SYSDATE(6) + INTERVAL a.remember_begun MICROSECOND,
       SYSDATE(6) + INTERVAL a.remember_begun MICROSECOND
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    scope          VARCHAR(510) CHARACTER SET ascii   PATH '$[0]',
    k              VARCHAR(510) CHARACTER SET ascii   PATH '$[1]',
    max_attempts   INT                                PATH '$[3]',
    attempt_id     CHAR(32)     CHARACTER SET ascii   PATH '$[4]',
    holder         VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[5]',
    fingerprint    CHAR(64)     CHARACTER SET ascii   PATH '$[6]',
    lease          BIGINT                             PATH '$[7]',
    remember_begun BIGINT                             PATH '$[8]'
)) a WHERE ",
    may_grant!()
);

const CLAIM_AGAIN: &str = concat!(
    "
UPDATE (
    SELECT r.scope, r.idempotency_key, a.max_attempts, UNHEX(a.attempt_id) AS attempt_id, a.holder,
           UNHEX(a.fingerprint) AS fingerprint, a.lease, a.remember_begun, r.state = 'running' AS taken_over
    FROM JSON_TABLE(?, '$[*]' COLUMNS (
        scope          VARCHAR(510) CHARACTER SET ascii   PATH '$[0]',
        k              VARCHAR(510) CHARACTER SET ascii   PATH '$[1]',
        seen           BIGINT                             PATH '$[2]',
        max_attempts   INT                                PATH '$[3]',
        attempt_id     CHAR(32)     CHARACTER SET ascii   PATH '$[4]',
        holder         VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[5]',
        fingerprint    CHAR(64)     CHARACTER SET ascii   PATH '$[6]',
        lease          BIGINT                             PATH '$[7]',
        remember_begun BIGINT                             PATH '$[8]'
    )) a
    STRAIGHT_JOIN rowlock_idempotency r FORCE INDEX (PRIMARY)
        ON r.scope = UNHEX(a.scope) AND r.idempotency_key = UNHEX(a.k)
    WHERE r.attempt = a.seen
      AND (r.state = 'free' OR (r.state = 'running' AND r.open_step IS NULL AND r.lease_until <= SYSDATE(6)))
      AND ",
    may_grant!(),
    "
    LIMIT 1000000
    FOR UPDATE /*!80000 OF r */ SKIP LOCKED
) t
STRAIGHT_JOIN rowlock_idempotency r FORCE INDEX (PRIMARY)
    ON r.scope = t.scope AND r.idempotency_key = t.idempotency_key
SET r.state = 'running', r.bound = r.bound OR t.taken_over,
    r.attempt = GREATEST(r.attempt + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))),
    r.abandoned = IF(r.lease_until > SYSDATE(6) - INTERVAL 1 HOUR, r.abandoned, 0) + 1, r.max_attempts = t.max_attempts, r.attempt_id = t.attempt_id, r.holder = t.holder,
    r.fingerprint = t.fingerprint, r.attempted_at = SYSDATE(6),
    r.lease_until = SYSDATE(6) + INTERVAL t.lease MICROSECOND,
    r.forget_at = SYSDATE(6) + INTERVAL t.remember_begun MICROSECOND, r.clean_at = SYSDATE(6) + INTERVAL t.remember_begun MICROSECOND"
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

/// The expressions that read `open_step` stand before the one that overwrites it.
const FINISH: &str = "
UPDATE (
    SELECT r.scope, r.idempotency_key, a.state, a.content_type, a.outcome, a.retain,
           IF(r.bound OR a.bound, a.remember_begun, a.remember) AS remember, a.bound, a.pardon, a.step_is_open
    FROM JSON_TABLE(?, '$[*]' COLUMNS (
        scope          VARCHAR(510) CHARACTER SET ascii PATH '$[0]',
        k              VARCHAR(510) CHARACTER SET ascii PATH '$[1]',
        attempt_id     CHAR(32)     CHARACTER SET ascii PATH '$[2]',
        attempt        BIGINT                           PATH '$[3]',
        state          VARCHAR(16)  CHARACTER SET ascii PATH '$[4]',
        content_type   VARCHAR(255) CHARACTER SET ascii PATH '$[5]',
        outcome        LONGTEXT     CHARACTER SET ascii PATH '$[6]',
        retain         BIGINT                           PATH '$[7]',
        remember       BIGINT                           PATH '$[8]',
        bound          INT                              PATH '$[9]',
        pardon         INT                              PATH '$[10]',
        remember_begun BIGINT                           PATH '$[11]',
        step_is_open   INT                              PATH '$[12]'
    )) a
    STRAIGHT_JOIN rowlock_idempotency r FORCE INDEX (PRIMARY)
        ON r.scope = UNHEX(a.scope) AND r.idempotency_key = UNHEX(a.k)
    WHERE r.attempt_id = UNHEX(a.attempt_id) AND a.attempt IN (r.attempt, -1) AND r.state = 'running'
    LIMIT 1000000
    FOR UPDATE /*!80000 OF r */ SKIP LOCKED
) t
STRAIGHT_JOIN rowlock_idempotency r FORCE INDEX (PRIMARY)
    ON r.scope = t.scope AND r.idempotency_key = t.idempotency_key
SET r.forget_at = IF(t.step_is_open AND r.open_step IS NOT NULL, NULL, SYSDATE(6) + INTERVAL t.remember MICROSECOND),
    r.clean_at = IF(t.step_is_open AND r.open_step IS NOT NULL, NULL,
                    SYSDATE(6) + INTERVAL COALESCE(t.retain, t.remember) MICROSECOND),
    r.state = IF(t.step_is_open AND r.open_step IS NOT NULL, 'unknown', t.state),
    r.open_step = IF(t.step_is_open, r.open_step, NULL),
    r.bound = r.bound OR t.bound,
    r.abandoned = GREATEST(r.abandoned - t.pardon, 0),
    r.content_type = t.content_type,
    r.outcome = UNHEX(t.outcome),
    r.done_at = IF(t.state = 'done', SYSDATE(6), NULL),
    r.retain_until = SYSDATE(6) + INTERVAL t.retain MICROSECOND";

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
        let keys = json::keys(std::slice::from_ref(key));
        let probed = sqlx::query(PROBE).bind(keys).fetch_all(self).await;
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
            let keys = json::keys(std::slice::from_ref(key));
            for sql in [REMOVE_STEPS, REMOVE] {
                sqlx::query(sql).bind(&keys).execute(&mut *tx).await?;
            }
        }
        tx.commit().await?;
        Ok(())
    }

    async fn record_claim(&mut self, all: &[ClaimParams]) -> Result<Vec<ClaimOutcome>, Fault> {
        let is_new = |params: &&ClaimParams| params.seen.is_none();
        let (new, again): (Vec<&ClaimParams>, Vec<&ClaimParams>) = all.iter().partition(is_new);
        if !new.is_empty() && !make(self, &new).await? {
            // Another transaction is making one of these records: find out which.
            for params in &new {
                make(self, &[*params]).await?;
            }
        }
        if !again.is_empty() {
            sqlx::query(CLAIM_AGAIN)
                .bind(json::claims(&again))
                .execute(&mut *self)
                .await?;
        }
        let keys: Vec<RecordKey> = all.iter().map(|params| params.key.clone()).collect();
        let rows = self.record_read(&keys, 0).await?;
        let claimed = all.iter().zip(&rows);
        Ok(claimed
            .map(|(params, row)| params.missed(row.as_ref()))
            .collect())
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
        let done = sqlx::query(FINISH)
            .bind(json::ends(all))
            .execute(&mut *self)
            .await?;
        if usize::try_from(done.rows_affected()) == Ok(all.len()) {
            return Ok(vec![FinishOutcome::Ended; all.len()]);
        }
        let keys: Vec<RecordKey> = all.iter().map(|params| params.key.clone()).collect();
        let rows = self.record_read(&keys, 0).await?;
        let mut finished = Vec::with_capacity(all.len());
        for (params, row) in all.iter().zip(rows) {
            // Outcomes can be large: read only those that have to be compared.
            let row = match row {
                Some(row)
                    if row.attempt_id == params.attempt_id && row.state == KeptState::Done =>
                {
                    self.record_read_one(&params.key, params.size()).await?
                }
                row => row,
            };
            finished.push(params.missed(row.as_ref()));
        }
        Ok(finished)
    }
}

/// Inserts all records or none. False: none.
async fn make(conn: &mut MySqlConnection, new: &[&ClaimParams]) -> Result<bool, Fault> {
    let json = json::claims(new);
    for sql in [PROBE, CLAIM_NEW] {
        match sqlx::query(sql)
            .bind(&json)
            .fetch_all(&mut *conn)
            .await
            .map_err(Fault::from)
        {
            Err(fault) if matches!(fault.kind, FaultKind::LockTimeout | FaultKind::Duplicate) => {
                return Ok(false);
            }
            other => other?,
        };
    }
    Ok(true)
}
