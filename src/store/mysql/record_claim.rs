//! Claiming keys: the statements.
//!
//! The values of new records are literals: a JSON text costs the server twice as much.

use super::grant_rule::may_grant;
use super::record_probe::{NO_WAIT, literals};
use super::statement::{fill, hex, quoted};
use crate::store::driver::json;
use crate::store::verbs::record::ClaimParams;
use crate::store::verbs::time::to_micros;

/// What [`json::claims`] has.
macro_rules! claims {
    () => {
        "JSON_TABLE(?, '$[*]' COLUMNS (
        scope          VARCHAR(510) CHARACTER SET ascii   PATH '$[0]',
        k              VARCHAR(510) CHARACTER SET ascii   PATH '$[1]',
        seen           BIGINT                             PATH '$[2]',
        max_attempts   INT                                PATH '$[3]',
        attempt_id     CHAR(32)     CHARACTER SET ascii   PATH '$[4]',
        holder         VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[5]',
        fingerprint    CHAR(64)     CHARACTER SET ascii   PATH '$[6]',
        lease          BIGINT                             PATH '$[7]',
        remember_begun BIGINT                             PATH '$[8]'
    )) a"
    };
}

macro_rules! insert {
    () => {
        "INSERT INTO rowlock_idempotency (scope, idempotency_key, state, attempt, abandoned, max_attempts, attempt_id,
             holder, fingerprint, bound, began_at, attempted_at, lease_until, forget_at, clean_at) "
    };
}

/// In a quarantine the first row has no state, and the server refuses the statement. A duplicate is refused, too.
///
/// All rows have the same number of the attempt. The server tells it with its answer (manual, `LAST_INSERT_ID(expr)`).
fn insert_text(all: &[&ClaimParams]) -> String {
    const FIRST: [&str; 2] = [
        concat!("IF(", may_grant!(), ", 'running', NULL)"),
        "LAST_INSERT_ID(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)))",
    ];
    const OTHERS: [&str; 2] = ["'running'", "LAST_INSERT_ID()"];
    let rows = all.iter().enumerate().map(|(number, params)| {
        let [scope, key] = literals(&params.key);
        let [state, attempt] = if number == 0 { FIRST } else { OTHERS };
        let (most, holder) = (params.max_attempts, quoted(&params.holder));
        let id = hex(params.attempt_id.as_bytes());
        let fingerprint = hex(params.fingerprint.as_bytes());
        let [lease, remember] = [params.lease, params.remember_begun]
            .map(|time| format!("SYSDATE(6) + INTERVAL {} MICROSECOND", to_micros(time)));
        format!(
            "({scope}, {key}, {state}, {attempt}, 1, {most}, {id}, {holder}, {fingerprint}, FALSE, SYSDATE(6), \
             SYSDATE(6), {lease}, {remember}, {remember})"
        )
    });
    let rows: Vec<String> = rows.collect();
    format!(
        concat!("{}", insert!(), "VALUES {}"),
        NO_WAIT,
        rows.join(", ")
    )
}

/// [`insert_text`] where there may be duplicates, or a quarantine. The server keeps what it has selected from the
/// table that it inserts into in a temporary one.
const CLAIM_MISSING: &str = concat!(
    insert!(),
    "
SELECT UNHEX(a.scope), UNHEX(a.k), 'running', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), 1,
       a.max_attempts, UNHEX(a.attempt_id), a.holder, UNHEX(a.fingerprint), FALSE, SYSDATE(6), SYSDATE(6),
       SYSDATE(6) + INTERVAL a.lease MICROSECOND, SYSDATE(6) + INTERVAL a.remember_begun MICROSECOND,
       SYSDATE(6) + INTERVAL a.remember_begun MICROSECOND
FROM ",
    claims!(),
    "
LEFT JOIN rowlock_idempotency r FORCE INDEX (PRIMARY)
    ON r.scope = UNHEX(a.scope) AND r.idempotency_key = UNHEX(a.k)
WHERE r.scope IS NULL AND ",
    may_grant!()
);

const CLAIM_AGAIN: &str = concat!(
    "
UPDATE (
    SELECT r.scope, r.idempotency_key, a.max_attempts, UNHEX(a.attempt_id) AS attempt_id, a.holder,
           UNHEX(a.fingerprint) AS fingerprint, a.lease, a.remember_begun, r.state = 'running' AS taken_over
    FROM ",
    claims!(),
    "
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
pub(super) type ClaimedRow = (Vec<u8>, Vec<u8>, i64, bool);

/// The size of a claim in a request.
pub(super) fn size(params: &ClaimParams) -> usize {
    6 * (params.key.scope().len() + params.key.key().len()) + 2 * params.holder.len() + 512
}

/// The statements of claims, which follow a probe. `is_missing`: also new ones that have a record by now are asked
/// for.
pub(super) fn texts(new: &[&ClaimParams], again: &[&ClaimParams], is_missing: bool) -> Vec<String> {
    let asks = |of: &[&ClaimParams]| [quoted(&json::claims(of.iter().copied()))];
    let mut texts = Vec::new();
    if !new.is_empty() {
        texts.push(if is_missing {
            format!("{NO_WAIT}{}", fill(CLAIM_MISSING, &asks(new)))
        } else {
            insert_text(new)
        });
    }
    if !again.is_empty() {
        texts.push(fill(CLAIM_AGAIN, &asks(again)));
    }
    texts
}

/// Reads back what claims came to.
pub(super) fn claimed_text<'a>(all: impl IntoIterator<Item = &'a ClaimParams>) -> String {
    fill(CLAIMED, &[quoted(&json::claimed(all))])
}
