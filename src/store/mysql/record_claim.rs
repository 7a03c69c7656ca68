//! Claiming keys: the statements.
//!
//! The key of a record that an open transaction is making cannot be seen, and inserting it again would wait for that
//! transaction. So a lane first asks for the lock of such a key with NOWAIT. (Another transaction may insert the key
//! just afterwards; the lane's time-out bounds the wait for that transaction.)

use sqlx::{FromRow, MySqlConnection, Row};

use super::grant_rule::may_grant;
use super::statement::{fill, in_one_transaction, parts, quoted};
use crate::model::{FaultKind, RecordKey};
use crate::store::driver::json;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::record::{ClaimOutcome, ClaimParams, RecordStore};

pub(super) const PROBE: &str = "
SELECT r.attempt
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    scope VARCHAR(510) CHARACTER SET ascii PATH '$[0]',
    k     VARCHAR(510) CHARACTER SET ascii PATH '$[1]'
)) a
STRAIGHT_JOIN rowlock_idempotency r FORCE INDEX (PRIMARY)
    ON r.scope = UNHEX(a.scope) AND r.idempotency_key = UNHEX(a.k)
FOR UPDATE /*!80000 OF r */ NOWAIT";

macro_rules! claim_new {
    ($join:literal, $where:literal) => {
        concat!(
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
)) a ",
            $join,
            " WHERE ",
            $where,
            may_grant!()
        )
    };
}

/// A duplicate raises an error, which is caught.
const CLAIM_NEW: &str = claim_new!("", "");

/// [`CLAIM_NEW`] where there may be duplicates. The server keeps what it has selected from the table that it inserts
/// into in a temporary one.
const CLAIM_MISSING: &str = claim_new!(
    "
LEFT JOIN rowlock_idempotency r FORCE INDEX (PRIMARY)
    ON r.scope = UNHEX(a.scope) AND r.idempotency_key = UNHEX(a.k)",
    "r.scope IS NULL AND "
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

/// What a claim came to.
const CLAIMED: &str = "
SELECT r.scope, r.idempotency_key, r.attempt, r.attempt_id = UNHEX(a.attempt_id) AND r.state = 'running'
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    scope      VARCHAR(510) CHARACTER SET ascii PATH '$[0]',
    k          VARCHAR(510) CHARACTER SET ascii PATH '$[1]',
    attempt_id CHAR(32)     CHARACTER SET ascii PATH '$[2]'
)) a
STRAIGHT_JOIN rowlock_idempotency r FORCE INDEX (PRIMARY)
    ON r.scope = UNHEX(a.scope) AND r.idempotency_key = UNHEX(a.k)";

/// The scope and the key, the attempt, and whether it is the one that was asked for, and runs.
type ClaimedRow = (Vec<u8>, Vec<u8>, i64, bool);

/// What a request has besides the claims.
const AROUND: usize = 4_096;

/// One outcome for each, in their order.
pub(super) async fn claim(
    conn: &mut MySqlConnection,
    all: &[ClaimParams],
) -> Result<Vec<ClaimOutcome>, Fault> {
    let size = |params: &ClaimParams| {
        6 * (params.key.scope().len() + params.key.key().len()) + params.holder.len() + 256
    };
    let mut claimed = Vec::with_capacity(all.len());
    for part in parts(AROUND, all.iter().map(size)) {
        claimed.extend(claim_part(conn, &all[part]).await?);
    }
    Ok(claimed)
}

async fn claim_part(
    conn: &mut MySqlConnection,
    all: &[ClaimParams],
) -> Result<Vec<ClaimOutcome>, Fault> {
    for insert in [CLAIM_NEW, CLAIM_MISSING] {
        match claim_with(conn, all, insert).await {
            Err(fault) if is_of_another(&fault) => {}
            claimed => return claimed,
        }
    }
    // Another transaction has one of the new records, or is making it: find out which.
    let mut claimed = Vec::with_capacity(all.len());
    for params in all {
        match claim_with(conn, std::slice::from_ref(params), CLAIM_MISSING).await {
            Err(fault) if is_of_another(&fault) => {
                let row = conn.record_read_one(&params.key, 0).await?;
                claimed.push(params.outcome_of(row.as_ref()));
            }
            outcome => claimed.extend(outcome?),
        }
    }
    Ok(claimed)
}

/// Claims all, or none.
async fn claim_with(
    conn: &mut MySqlConnection,
    all: &[ClaimParams],
    insert: &str,
) -> Result<Vec<ClaimOutcome>, Fault> {
    let is_new = |params: &&ClaimParams| params.seen.is_none();
    let (new, again): (Vec<&ClaimParams>, Vec<&ClaimParams>) = all.iter().partition(is_new);
    let mut text = Vec::new();
    if !new.is_empty() {
        let keys: Vec<RecordKey> = new.iter().map(|params| params.key.clone()).collect();
        text.push(fill(PROBE, &[quoted(&json::keys(&keys))]));
        text.push(fill(insert, &[quoted(&json::claims(new))]));
    }
    if !again.is_empty() {
        text.push(fill(CLAIM_AGAIN, &[quoted(&json::claims(again))]));
    }
    text.push(fill(CLAIMED, &[quoted(&json::claimed(all))]));
    let rows = in_one_transaction(conn, &text.join("; ")).await?;
    // The probe's have one column.
    let claimed = rows.iter().filter(|row| row.len() > 1);
    let claimed: Vec<ClaimedRow> = claimed
        .map(ClaimedRow::from_row)
        .collect::<Result<_, _>>()?;
    let outcome = |params: &ClaimParams| {
        let is_of = |row: &&ClaimedRow| row.1 == params.key.key() && row.0 == params.key.scope();
        let row = claimed.iter().find(is_of);
        params.outcome(row.map(|(.., attempt, is_mine)| (*attempt, *is_mine)))
    };
    Ok(all.iter().map(outcome).collect())
}

/// Whether the fault is another transaction's lock on a record, or its insert.
fn is_of_another(fault: &Fault) -> bool {
    matches!(fault.kind, FaultKind::LockTimeout | FaultKind::Duplicate)
}
