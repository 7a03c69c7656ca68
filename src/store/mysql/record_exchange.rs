//! Ends of attempts and claims: in one transaction, or one after the other where another transaction is in the way.

use std::slice;

use sqlx::{FromRow, MySqlConnection, Row};

use super::fault::{is_lock_time_out, is_null};
use super::record_claim::{ClaimedRow, claimed_text, texts};
use super::record_end::end_texts;
use super::record_probe::probe_before;
use super::statement::{answers_in_one_transaction, is_one_request, parts};
use super::{record_claim, record_end};
use crate::model::FaultKind;
use crate::store::driver::classify::classify;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::record::{
    ClaimOutcome, ClaimParams, FinishOutcome, FinishParams, RecordStore,
};

/// What a request has besides the ends and claims.
const AROUND: usize = 4_096;

/// Ends attempts and claims keys, in one transaction if it is one request and no other transaction is in the way.
pub(super) async fn exchange(
    conn: &mut MySqlConnection,
    ends: &[FinishParams],
    claims: &[ClaimParams],
) -> Result<(Vec<FinishOutcome>, Vec<ClaimOutcome>), Fault> {
    let sizes = record_end::sizes(ends).into_iter();
    let sizes = sizes.chain(claims.iter().map(record_claim::size));
    if is_one_request(AROUND, sizes) {
        match all_or_none(conn, ends, claims).await {
            Ok(Some((ended, claimed))) => {
                let finished = conn.record_ended(ends, &ended).await;
                return Ok((finished?, claimed));
            }
            // The claims of others keep back no end.
            Err(fault) if matches!(fault.kind, FaultKind::Deadlock | FaultKind::Conflict) => {}
            Err(fault) => return Err(fault),
            Ok(None) => {}
        }
    }
    let finished = finish(conn, ends).await?;
    let claimed = claim(conn, claims).await;
    Ok((finished, claimed.map_err(Fault::half_done)?))
}

/// Ends attempts. One outcome for each, in their order.
pub(super) async fn finish(
    conn: &mut MySqlConnection,
    all: &[FinishParams],
) -> Result<Vec<FinishOutcome>, Fault> {
    let mut ended = Vec::with_capacity(all.len());
    for part in parts(AROUND, record_end::sizes(all).into_iter()) {
        let part = &all[part];
        let done = all_or_none(conn, part, &[]).await;
        if let Some((part, _)) = done.map_err(|fault| after(&ended, fault))? {
            ended.extend(part);
            continue;
        }
        // A transaction has one of the records locked: find out which.
        for params in part {
            let one = all_or_none(conn, slice::from_ref(params), &[]).await;
            let one = one.map_err(|fault| after(&ended, fault))?;
            ended.push(one.is_some_and(|(ended, _)| ended == [true]));
        }
    }
    conn.record_ended(all, &ended).await
}

/// Claims keys. One outcome for each, in their order.
pub(super) async fn claim(
    conn: &mut MySqlConnection,
    all: &[ClaimParams],
) -> Result<Vec<ClaimOutcome>, Fault> {
    let mut claimed = Vec::with_capacity(all.len());
    for part in parts(AROUND, all.iter().map(record_claim::size)) {
        let part = &all[part];
        let done = all_or_none(conn, &[], part).await;
        if let Some((_, part)) = done.map_err(|fault| after(&claimed, fault))? {
            claimed.extend(part);
            continue;
        }
        // Another transaction has one of the new records, or is making it: find out which.
        for params in part {
            let one = if part.len() == 1 {
                Ok(None)
            } else {
                all_or_none(conn, &[], slice::from_ref(params)).await
            };
            if let Some((_, one)) = one.map_err(|fault| after(&claimed, fault))? {
                claimed.extend(one);
            } else {
                let row = conn.record_read_one(&params.key, 0).await;
                let row = row.map_err(|fault| after(&claimed, fault))?;
                claimed.push(params.outcome_of(row.as_ref()));
            }
        }
    }
    Ok(claimed)
}

/// The fault of a request after which others are `done`.
fn after<T>(done: &[T], fault: Fault) -> Fault {
    if done.is_empty() {
        fault
    } else {
        fault.half_done()
    }
}

/// Ends and claims all in one transaction, or nothing. An attempt of which it returns false may have ended, too: its
/// record tells. `None`: another transaction is in the way.
async fn all_or_none(
    conn: &mut MySqlConnection,
    ends: &[FinishParams],
    claims: &[ClaimParams],
) -> Result<Option<(Vec<bool>, Vec<ClaimOutcome>)>, Fault> {
    // (A claim alone that finds a record is read by the caller.)
    let is_alone = ends.is_empty() && claims.len() == 1;
    let done = match end_and_claim(conn, ends, claims, false).await {
        Err(error) if is_null(&error) || (is_duplicate(&error) && !is_alone) => {
            end_and_claim(conn, ends, claims, true).await
        }
        done => done,
    };
    match done {
        Err(error) if is_of_another(&error) => Ok(None),
        done => Ok(Some(done?)),
    }
}

/// `is_missing`: also sends new claims of keys that have a record by now, with an INSERT that skips these keys.
async fn end_and_claim(
    conn: &mut MySqlConnection,
    ends: &[FinishParams],
    claims: &[ClaimParams],
    is_missing: bool,
) -> Result<(Vec<bool>, Vec<ClaimOutcome>), sqlx::Error> {
    let is_new = |params: &&ClaimParams| params.seen.is_none();
    let (new, again): (Vec<&ClaimParams>, Vec<&ClaimParams>) = claims.iter().partition(is_new);
    let keys = ends.iter().map(|params| &params.key);
    let keys = keys.chain(new.iter().map(|params| &params.key));
    // The inserts follow the probe at once: the ends of large outcomes take a while, in which another transaction
    // could make a record.
    let mut text = vec![probe_before(keys)];
    text.extend(texts(&new, &again, is_missing));
    let before_ends = text.len();
    let (end_texts, groups) = end_texts(ends);
    text.extend(end_texts);
    let inserts = !is_missing && !new.is_empty();
    let read = if inserts {
        again
    } else {
        claims.iter().collect()
    };
    if !read.is_empty() {
        text.push(claimed_text(read));
    }
    let (rows, results) = answers_in_one_transaction(conn, &text.join("; ")).await?;
    // The probe comes first, and then the insert.
    let inserted = results.get(1).filter(|_| inserts);
    if results.len() < before_ends + groups.len() {
        return Err(sqlx::Error::Protocol("a statement has no result".into()));
    }
    let mut ended = vec![false; ends.len()];
    for (group, result) in groups.iter().zip(&results[before_ends..]) {
        // Where not all have ended, the records tell which.
        let all = result.rows_affected() == group.len() as u64;
        for end in group {
            ended[*end] = all;
        }
    }
    let inserted = inserted.map(|result| result.last_insert_id().cast_signed());
    // The probe's have one column.
    let found = rows.iter().filter(|row| row.len() > 1);
    let found: Vec<ClaimedRow> = found.map(ClaimedRow::from_row).collect::<Result<_, _>>()?;
    let outcome = |params: &ClaimParams| {
        if let (Some(attempt), None) = (inserted, params.seen) {
            return ClaimOutcome::Mine { attempt };
        }
        let is_of = |row: &&ClaimedRow| row.1 == params.key.key() && row.0 == params.key.scope();
        let row = found.iter().find(is_of);
        params.outcome(row.map(|(.., attempt, is_mine)| (*attempt, *is_mine)))
    };
    Ok((ended, claims.iter().map(outcome).collect()))
}

/// Whether the error tells of another transaction's lock on a record, or its insert. (MariaDB with
/// `innodb_snapshot_isolation` tells a conflict.)
fn is_of_another(error: &sqlx::Error) -> bool {
    is_duplicate(error) || is_lock_time_out(error) || classify(error) == FaultKind::Conflict
}

fn is_duplicate(error: &sqlx::Error) -> bool {
    classify(error) == FaultKind::Duplicate
}
