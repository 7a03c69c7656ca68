//! Releases and acquires in one text: one round trip and one commit. Batches of one kind are sent with the same
//! statements.
//!
//! An UPDATE of several tables costs two to three times an UPDATE of one table, which would wait for locked rows. So a
//! locking SELECT that skips such rows comes first, and counts. If it has got all rows, a plain UPDATE frees them, and
//! waits for nothing. Otherwise no lease is freed here, and the statements of `lease.rs` free them: a name has
//! waiters, a lease has expired, or another transaction has a row locked. (`@rl_mine = …` is a constant: if it is
//! false, the UPDATE looks at no row.)
//!
//! Busy names are usual among acquires. So the statement that takes is like TAKE, with lists of literals: JSON_TABLE
//! costs more. FIELD finds the place of a name in the list, and so the grant id for it.
//!
//! The locks of the first statement stay until the commit. No statement here waits for a row, so there can be no
//! deadlock.

use sqlx::{MySqlConnection, Row};

use super::grant_rule::freed;
use super::lease_text::{LONGEST_TEXT, take_alike, take_text};
use super::lock_row::{found, names};
use super::statement::{fill, hex, in_one_transaction, is_in_cluster};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::lease::TakeParams;
use crate::store::verbs::release::ReleaseParams;
use crate::store::verbs::row::Rows;

const LOCK_MINE: &str = "
SELECT COUNT(*) INTO @rl_mine FROM rowlock_lock f FORCE INDEX (PRIMARY)
WHERE f.name IN (?) AND f.grant_id IN (?) AND f.expires_at > SYSDATE(6) AND f.waiters = 0
FOR UPDATE SKIP LOCKED";

const FREE: &str = concat!(
    "
UPDATE rowlock_lock l FORCE INDEX (PRIMARY)
SET ",
    freed!("l."),
    "
WHERE @rl_mine = ? AND l.name IN (?)"
);

/// What was done.
pub(super) struct ExchangeRows {
    /// All leases were freed, or none.
    pub(super) freed: bool,
    /// The rows of the takes.
    pub(super) rows: Rows,
}

/// Frees and grants what it can. The releases are of no permits. `None`: it was not tried, because one text would not
/// be the quickest way.
pub(super) async fn exchange(
    conn: &mut MySqlConnection,
    releases: &[&ReleaseParams],
    takes: &[TakeParams],
) -> Result<Option<ExchangeRows>, Fault> {
    // On a cluster, each statement would be a request.
    if releases.is_empty() || is_in_cluster() {
        return Ok(None);
    }
    let text = exchange_text(releases, takes);
    if text.len() > LONGEST_TEXT {
        return Ok(None);
    }
    let found_rows = in_one_transaction(conn, &text).await?;
    let (mine, rows) = found_rows.split_first().ok_or(sqlx::Error::RowNotFound)?;
    let mine: i64 = mine.try_get(0)?;
    Ok(Some(ExchangeRows {
        freed: usize::try_from(mine) == Ok(releases.len()),
        rows: found(rows)?,
    }))
}

/// Frees all of these leases, which are of no permits, or none of them.
pub(super) async fn release_all(
    conn: &mut MySqlConnection,
    releases: &[ReleaseParams],
) -> Result<bool, Fault> {
    let text = format!("{}; SELECT @rl_mine", release_text(releases.iter()));
    if text.len() > LONGEST_TEXT || is_in_cluster() {
        return Ok(false);
    }
    let found = in_one_transaction(conn, &text).await?;
    let mine: i64 = found.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
    Ok(usize::try_from(mine) == Ok(releases.len()))
}

pub(super) fn exchange_text(releases: &[&ReleaseParams], takes: &[TakeParams]) -> String {
    let release = release_text(releases.iter().copied());
    let (take, read) = take_alike(takes).unwrap_or_else(|| take_text(takes));
    format!("{release}; {take}; SELECT @rl_mine; {read}")
}

/// The statements that free all of the leases or none.
fn release_text<'a>(releases: impl ExactSizeIterator<Item = &'a ReleaseParams> + Clone) -> String {
    let names = names(releases.clone().map(|params| &params.name));
    let count = releases.len().to_string();
    let ids: Vec<String> = releases
        .map(|params| hex(params.grant_id.as_bytes()))
        .collect();
    let lock = fill(LOCK_MINE, &[names.clone(), ids.join(",")]);
    let free = fill(FREE, &[count, names]);
    format!("{lock}; {free}")
}
