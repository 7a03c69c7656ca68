//! Ends of attempts and claims in one transaction.

use sqlx::{FromRow, MySqlConnection, Row};

use super::fault::{is_lock_time_out, is_null};
use super::lock_row::is_duplicate;
use super::record_claim::{ClaimedRow, claimed_text, texts};
use super::record_end::end_texts;
use super::record_probe::probe_before;
use super::statement::answers_in_one_transaction;
use crate::model::FaultKind;
use crate::store::driver::classify::classify;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::record::{ClaimOutcome, ClaimParams, FinishParams};

/// Ends and claims all in one transaction, or nothing. An attempt of which it returns false may have ended, too: its
/// record tells. `None`: another transaction is in the way.
pub(super) async fn all_or_none(
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
