//! Ending attempts: the statements.
//!
//! No statement on records waits for the row of another transaction, see [`record_claim`](super::record_claim).

use std::slice;

use sqlx::MySqlConnection;
use sqlx::mysql::MySqlQueryResult;

use super::fault::is_lock_time_out;
use super::statement::{answers_in_one_transaction, hex, parts, text, with};
use crate::model::{Outcome, RecordKey};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::record::{EndColumns, FinishOutcome, FinishParams, RecordStore};

/// Locks the records of these keys. Finds none of a transaction that is making one, and does not wait for it.
pub(super) fn probe<'a>(keys: impl IntoIterator<Item = &'a RecordKey>) -> String {
    let keys = keys.into_iter().map(literals);
    let keys = keys.map(|[scope, key]| format!("({scope}, {key})"));
    let keys: Vec<String> = keys.collect();
    format!(
        "SELECT attempt FROM rowlock_idempotency FORCE INDEX (PRIMARY)
         WHERE (scope, idempotency_key) IN ({}) FOR UPDATE NOWAIT",
        keys.join(", ")
    )
}

/// [`probe`] where a statement that writes cannot do without a wait. MariaDB's can, with [`NO_WAIT`].
pub(super) fn probe_before<'a>(keys: impl IntoIterator<Item = &'a RecordKey>) -> String {
    let mut keys = keys.into_iter().peekable();
    if keys.peek().is_none() {
        return String::from("DO 0");
    }
    format!("/*!80000 {} */ /*M! DO 0 */", probe(keys))
}

pub(super) const NO_WAIT: &str = "/*M! SET STATEMENT innodb_lock_wait_timeout = 0 FOR */ ";

pub(super) fn literals(key: &RecordKey) -> [String; 2] {
    [hex(key.scope()), hex(key.key())]
}

/// The expressions that read `open_step` and `bound` stand before those that overwrite them. (An UPDATE of a join
/// would keep the outcome in a temporary table on the disk.)
const FINISH: &str = "
UPDATE rowlock_idempotency
SET forget_at = {forget_at}, clean_at = {clean_at}, state = {state}, open_step = {open_step}, bound = bound OR {bound},
abandoned = GREATEST(abandoned - {pardon}, 0), content_type = {content_type}, outcome = {outcome}, done_at = {done_at},
retain_until = SYSDATE(6) + INTERVAL {retain} MICROSECOND
WHERE scope = {scope} AND idempotency_key = {key} AND attempt_id = {attempt_id} AND {attempt} IN (attempt, -1)
AND state = 'running'";

/// What a request has besides the ends and their keys.
const AROUND: usize = 1_024;

/// Ends attempts. One outcome for each, in their order.
pub(super) async fn finish(
    conn: &mut MySqlConnection,
    all: &[FinishParams],
) -> Result<Vec<FinishOutcome>, Fault> {
    let texts: Vec<String> = all.iter().map(end_text).collect();
    let mut ended = Vec::with_capacity(all.len());
    for part in parts(AROUND, sizes(all, &texts)) {
        let (all, texts) = (&all[part.clone()], &texts[part]);
        if let Some(part) = end(conn, all, texts).await? {
            ended.extend(part);
            continue;
        }
        // A transaction has one of the records locked: find out which.
        for (params, text) in all.iter().zip(texts) {
            let one = end(conn, slice::from_ref(params), slice::from_ref(text)).await?;
            ended.push(one == Some(vec![true]));
        }
    }
    finished(conn, all, ended).await
}

/// Which of the attempts have ended. `None`: none, because another transaction has one of the records locked.
async fn end(
    conn: &mut MySqlConnection,
    all: &[FinishParams],
    texts: &[String],
) -> Result<Option<Vec<bool>>, Fault> {
    let probe = probe_before(all.iter().map(|params| &params.key));
    let text = format!("{probe}; {}", texts.join("; "));
    match answers_in_one_transaction(conn, &text).await {
        Ok((_, results)) => Ok(Some(ended(&results, texts.len()))),
        Err(error) if is_lock_time_out(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Which of the first statements, after the probe, have changed a row.
pub(super) fn ended(results: &[MySqlQueryResult], count: usize) -> Vec<bool> {
    let ends = results.iter().skip(1).take(count);
    ends.map(|result| result.rows_affected() > 0).collect()
}

/// What ends came to, with those that have `ended`.
pub(super) async fn finished(
    conn: &mut MySqlConnection,
    all: &[FinishParams],
    ended: Vec<bool>,
) -> Result<Vec<FinishOutcome>, Fault> {
    let mut finished = Vec::with_capacity(all.len());
    for (params, is_ended) in all.iter().zip(ended) {
        finished.push(if is_ended {
            FinishOutcome::Ended
        } else {
            let row = conn.record_read_one(&params.key, params.size()).await?;
            params.missed(row.as_ref())
        });
    }
    Ok(finished)
}

/// The sizes of ends in a request, with their keys in the probe.
pub(super) fn sizes(
    all: &[FinishParams],
    texts: &[String],
) -> impl ExactSizeIterator<Item = usize> {
    let keys = |params: &FinishParams| 2 * (params.key.scope().len() + params.key.key().len());
    let each = all.iter().zip(texts);
    each.map(move |(params, text)| text.len() + keys(params) + 16)
}

/// The end of an attempt.
pub(super) fn end_text(params: &FinishParams) -> String {
    let end = EndColumns::from(&params.end);
    let null = || String::from("NULL");
    let in_time = |micros: &str| format!("SYSDATE(6) + INTERVAL {micros} MICROSECOND");
    let remember = if end.bound || end.remember == end.remember_begun {
        end.remember_begun.to_string()
    } else {
        format!("IF(bound, {}, {})", end.remember_begun, end.remember)
    };
    let retain = end.retain.map(|retain| retain.to_string());
    let clean = retain.as_ref().unwrap_or(&remember);
    let (forget_at, clean_at) = (in_time(&remember), in_time(clean));
    let (is_done, state) = (end.retain.is_some(), format!("'{}'", end.state));
    let unless_open = |value: &str, open: &str| {
        if end.step_is_open {
            format!("IF(open_step IS NULL, {value}, {open})")
        } else {
            value.to_owned()
        }
    };
    let outcome = |literal: fn(&Outcome) -> String| end.outcome.map_or_else(null, literal);
    let literals = [
        ("forget_at", unless_open(&forget_at, "NULL")),
        ("clean_at", unless_open(&clean_at, "NULL")),
        ("state", unless_open(&state, "'unknown'")),
        ("open_step", unless_open("NULL", "open_step")),
        ("bound", i32::from(end.bound).to_string()),
        ("pardon", end.pardon.to_string()),
        (
            "content_type",
            outcome(|outcome| text(outcome.content_type())),
        ),
        (
            "done_at",
            if is_done {
                String::from("SYSDATE(6)")
            } else {
                null()
            },
        ),
        ("retain", retain.clone().unwrap_or_else(null)),
        ("scope", hex(params.key.scope())),
        ("key", hex(params.key.key())),
        ("attempt_id", hex(params.attempt_id.as_bytes())),
        ("attempt", params.attempt.to_string()),
        ("outcome", outcome(|outcome| hex(outcome.bytes()))),
    ];
    format!("{NO_WAIT}{}", with(FINISH, &literals))
}
