//! Claiming keys: the statements.
//!
//! The key of a record that an open transaction is making cannot be seen, and inserting it again would wait for that
//! transaction. MariaDB has a time-out of zero for that. On MySQL a lane first asks for the lock of such a key with
//! NOWAIT. (Another transaction may insert the key just afterwards; the lane's time-out bounds the wait for that
//! transaction.)
//!
//! The values of new records are literals: a JSON text costs the server twice as much.

use sqlx::{FromRow, MySqlConnection, Row};

use super::fault::is_null;
use super::grant_rule::may_grant;
use super::record_end::{
    NO_WAIT, end_text, ended, finish, finished, literals, probe_before, sizes,
};
use super::statement::{answers_in_one_transaction, fill, hex, is_one_request, parts, quoted};
use crate::model::FaultKind;
use crate::store::driver::classify::classify;
use crate::store::driver::json;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::record::{
    ClaimOutcome, ClaimParams, FinishOutcome, FinishParams, RecordStore,
};
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
type ClaimedRow = (Vec<u8>, Vec<u8>, i64, bool);

/// What a request has besides the claims.
const AROUND: usize = 4_096;

/// One outcome for each, in their order.
pub(super) async fn claim(
    conn: &mut MySqlConnection,
    all: &[ClaimParams],
) -> Result<Vec<ClaimOutcome>, Fault> {
    let mut claimed = Vec::with_capacity(all.len());
    for part in parts(AROUND, all.iter().map(size)) {
        claimed.extend(claim_part(conn, &all[part]).await?);
    }
    Ok(claimed)
}

/// Ends attempts and claims keys, in one transaction if it is one request and no other transaction is in the way.
pub(super) async fn exchange(
    conn: &mut MySqlConnection,
    ends: &[FinishParams],
    claims: &[ClaimParams],
) -> Result<(Vec<FinishOutcome>, Vec<ClaimOutcome>), Fault> {
    let texts: Vec<String> = ends.iter().map(end_text).collect();
    let sizes = sizes(ends, &texts).chain(claims.iter().map(size));
    if is_one_request(AROUND, sizes) {
        let ending = (ends, &*texts);
        let both = match end_and_claim(conn, ending, claims, false).await {
            Err(error) if is_null(&error) || is_duplicate(&error) => {
                end_and_claim(conn, ending, claims, true).await
            }
            both => both,
        };
        match both {
            Err(error) if is_of_another(&error) => {}
            both => {
                let (ended, claimed) = both?;
                return Ok((finished(conn, ends, ended).await?, claimed));
            }
        }
    }
    let finished = finish(conn, ends).await?;
    Ok((finished, claim(conn, claims).await?))
}

/// The size of a claim in a request.
fn size(params: &ClaimParams) -> usize {
    6 * (params.key.scope().len() + params.key.key().len()) + 2 * params.holder.len() + 512
}

async fn claim_part(
    conn: &mut MySqlConnection,
    all: &[ClaimParams],
) -> Result<Vec<ClaimOutcome>, Fault> {
    let claimed = match claim_all(conn, all, false).await {
        Err(error) if is_null(&error) || (is_duplicate(&error) && all.len() > 1) => {
            claim_all(conn, all, true).await
        }
        claimed => claimed,
    };
    match claimed {
        Err(error) if is_of_another(&error) => {}
        claimed => return Ok(claimed?),
    }
    // Another transaction has one of the new records, or is making it: find out which.
    if let [params] = all {
        return Ok(vec![found(conn, params).await?]);
    }
    let mut claimed = Vec::with_capacity(all.len());
    for params in all {
        match claim_all(conn, std::slice::from_ref(params), true).await {
            Err(error) if is_of_another(&error) => claimed.push(found(conn, params).await?),
            one => claimed.extend(one?),
        }
    }
    Ok(claimed)
}

/// What a claim that was not granted has found.
async fn found(conn: &mut MySqlConnection, params: &ClaimParams) -> Result<ClaimOutcome, Fault> {
    let row = conn.record_read_one(&params.key, 0).await?;
    Ok(params.outcome_of(row.as_ref()))
}

/// Claims all, or none. `is_missing`: also those that have a record by now are asked for.
async fn claim_all(
    conn: &mut MySqlConnection,
    all: &[ClaimParams],
    is_missing: bool,
) -> Result<Vec<ClaimOutcome>, sqlx::Error> {
    let (_, claimed) = end_and_claim(conn, (&[], &[]), all, is_missing).await?;
    Ok(claimed)
}

/// [`claim_all`] after ends, in one transaction. Tells which of these have ended.
async fn end_and_claim(
    conn: &mut MySqlConnection,
    (ends, texts): (&[FinishParams], &[String]),
    all: &[ClaimParams],
    is_missing: bool,
) -> Result<(Vec<bool>, Vec<ClaimOutcome>), sqlx::Error> {
    let is_new = |params: &&ClaimParams| params.seen.is_none();
    let (new, again): (Vec<&ClaimParams>, Vec<&ClaimParams>) = all.iter().partition(is_new);
    let ending = ends.iter().map(|params| &params.key);
    let mut text = vec![probe_before(
        ending.chain(new.iter().map(|params| &params.key)),
    )];
    text.extend_from_slice(texts);
    if !new.is_empty() {
        text.push(if is_missing {
            format!(
                "{NO_WAIT}{}",
                fill(CLAIM_MISSING, &[quoted(&json::claims(new.iter().copied()))])
            )
        } else {
            insert_text(&new)
        });
    }
    if !again.is_empty() {
        text.push(fill(
            CLAIM_AGAIN,
            &[quoted(&json::claims(again.iter().copied()))],
        ));
    }
    let inserts = !is_missing && !new.is_empty();
    let read = if inserts { again } else { all.iter().collect() };
    if !read.is_empty() {
        text.push(fill(CLAIMED, &[quoted(&json::claimed(read))]));
    }
    let (rows, results) = answers_in_one_transaction(conn, &text.join("; ")).await?;
    // The probe and the ends come before it.
    let inserted = if inserts {
        results.get(1 + texts.len())
    } else {
        None
    };
    let inserted = inserted.map(|result| result.last_insert_id().cast_signed());
    // The probe's have one column.
    let claimed = rows.iter().filter(|row| row.len() > 1);
    let claimed: Vec<ClaimedRow> = claimed
        .map(ClaimedRow::from_row)
        .collect::<Result<_, _>>()?;
    let outcome = |params: &ClaimParams| {
        if let (Some(attempt), None) = (inserted, params.seen) {
            return ClaimOutcome::Mine { attempt };
        }
        let is_of = |row: &&ClaimedRow| row.1 == params.key.key() && row.0 == params.key.scope();
        let row = claimed.iter().find(is_of);
        params.outcome(row.map(|(.., attempt, is_mine)| (*attempt, *is_mine)))
    };
    let claimed = all.iter().map(outcome).collect();
    Ok((ended(&results, texts.len()), claimed))
}

/// Whether the error tells of another transaction's lock on a record, or its insert. (MariaDB with
/// `innodb_snapshot_isolation` tells a conflict.)
fn is_of_another(error: &sqlx::Error) -> bool {
    is_duplicate(error)
        || matches!(
            classify(error),
            FaultKind::LockTimeout | FaultKind::Conflict
        )
}

fn is_duplicate(error: &sqlx::Error) -> bool {
    classify(error) == FaultKind::Duplicate
}
