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

use super::lease::take_text;
use super::lock_row::{Rows, found, row_columns, row_ends};
use super::quarantine::may_grant;
use super::statement::{fill, hex, in_one_transaction, is_in_cluster, text};
use crate::model::Name;
use crate::store::fault::Fault;
use crate::store::lease::TakeAsk;
use crate::store::release::ReleaseAsk;
use crate::store::request::RECORD;
use crate::store::to_micros;

const LOCK_MINE: &str = "
SELECT COUNT(*) INTO @rl_mine FROM rowlock_lock f FORCE INDEX (PRIMARY)
WHERE f.name IN (?) AND f.grant_id IN (?) AND f.expires_at > SYSDATE(6) AND f.waiters = 0
FOR UPDATE SKIP LOCKED";

const FREE: &str = "
UPDATE rowlock_lock l FORCE INDEX (PRIMARY)
SET l.grant_id = NULL, l.holder = NULL, l.acquired_at = NULL, l.expires_at = NULL,
    l.session_id = NULL
WHERE @rl_mine = ? AND l.name IN (?)";

/// For asks that differ in the name and the grant id only.
const TAKE: &str = concat!(
    "
UPDATE (
    SELECT f.name FROM rowlock_lock f FORCE INDEX (PRIMARY)
    WHERE f.name IN (?) AND (f.expires_at IS NULL OR f.expires_at <= SYSDATE(6))
      AND (f.waiters = 0 OR ?) AND f.capacity = 0 AND ",
    may_grant!(),
    "
    LIMIT 1000000
    FOR UPDATE SKIP LOCKED
) t
STRAIGHT_JOIN rowlock_lock l FORCE INDEX (PRIMARY) ON l.name = t.name
SET l.fence = GREATEST(l.fence + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))),
    l.grant_id = SUBSTRING(?, 16 * FIELD(l.name, ?) - 15, 16),
    l.holder = ?,
    l.acquired_at = SYSDATE(6),
    l.expires_at = SYSDATE(6) + INTERVAL ? MICROSECOND,
    l.session_id = ?"
);

const READ: &str = concat!(
    "
SELECT",
    row_columns!("SYSDATE(6)"),
    "
FROM rowlock_lock l FORCE INDEX (PRIMARY) LEFT JOIN rowlock_session s ON s.id = l.session_id
WHERE l.name IN (?)"
);

/// What was done.
pub(super) struct Exchanged {
    /// All leases were freed, or none.
    pub(super) freed: bool,
    /// The rows of the takes.
    pub(super) rows: Rows,
}

/// Frees and grants what it can. The releases are of no permits. `None`: it was not tried, because one text would not
/// be the quickest way.
pub(super) async fn exchange(
    conn: &mut MySqlConnection,
    releases: &[&ReleaseAsk],
    takes: &[TakeAsk],
) -> Result<Option<Exchanged>, Fault> {
    // On a cluster, each statement would be a request.
    if releases.is_empty() || is_in_cluster() {
        return Ok(None);
    }
    let text = exchange_text(releases, takes);
    if text.len() > LONGEST {
        return Ok(None);
    }
    let found_rows = in_one_transaction(conn, &text).await?;
    let (mine, rows) = found_rows.split_first().ok_or(sqlx::Error::RowNotFound)?;
    let mine: i64 = mine.try_get(0)?;
    Ok(Some(Exchanged {
        freed: usize::try_from(mine) == Ok(releases.len()),
        rows: found(rows)?,
    }))
}

/// Frees all of these leases, which are of no permits, or none of them.
pub(super) async fn release_all(
    conn: &mut MySqlConnection,
    releases: &[ReleaseAsk],
) -> Result<bool, Fault> {
    let text = format!("{}; SELECT @rl_mine", release_text(releases.iter()));
    if text.len() > LONGEST || is_in_cluster() {
        return Ok(false);
    }
    let found = in_one_transaction(conn, &text).await?;
    let mine: i64 = found.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
    Ok(usize::try_from(mine) == Ok(releases.len()))
}

/// The statement that takes, and the statement that reads back.
pub(super) fn lean_take_text(asks: &[TakeAsk]) -> (String, String) {
    let lean = lean_take(asks).filter(|(take, read)| take.len() + read.len() < LONGEST);
    lean.unwrap_or_else(|| take_text(asks))
}

/// What is left of a TLS record, besides the start and the end of the transaction.
const LONGEST: usize = RECORD - 64;

pub(super) fn exchange_text(releases: &[&ReleaseAsk], takes: &[TakeAsk]) -> String {
    let release = release_text(releases.iter().copied());
    let (take, read) = lean_take(takes).unwrap_or_else(|| take_text(takes));
    format!("{release}; {take}; SELECT @rl_mine; {read}")
}

/// The statements that free all of the leases or none.
fn release_text<'a>(releases: impl ExactSizeIterator<Item = &'a ReleaseAsk> + Clone) -> String {
    let names = names(releases.clone().map(|ask| &ask.name));
    let count = releases.len().to_string();
    let ids: Vec<String> = releases.map(|ask| hex(ask.grant_id.as_bytes())).collect();
    let lock = fill(LOCK_MINE, &[names.clone(), ids.join(",")]);
    let free = fill(FREE, &[count, names]);
    format!("{lock}; {free}")
}

/// The statement that takes, and the statement that reads back. `None`: the asks differ too much.
fn lean_take(asks: &[TakeAsk]) -> Option<(String, String)> {
    let (first, others) = asks
        .split_first()
        .filter(|(_, others)| !others.is_empty())?;
    let same = |ask: &TakeAsk| {
        (&ask.ttl, &ask.holder, &ask.session, &ask.barging)
            == (&first.ttl, &first.holder, &first.session, &first.barging)
    };
    if !others.iter().all(same) {
        return None;
    }
    let names = names(asks.iter().map(|ask| &ask.name));
    let ids: Vec<u8> = asks
        .iter()
        .flat_map(|ask| *ask.grant_id.as_bytes())
        .collect();
    let take = fill(
        TAKE,
        &[
            names.clone(),
            i32::from(first.barging).to_string(),
            hex(&ids),
            names.clone(),
            text(&first.holder),
            to_micros(first.ttl).to_string(),
            first
                .session
                .map_or(String::from("NULL"), |id| hex(id.as_bytes())),
        ],
    );
    Some((take, fill(READ, &[names])))
}

/// A list of literals. Plain text is half as long as hexadecimal.
fn names<'a>(names: impl Iterator<Item = &'a Name> + Clone) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/ ".contains(byte);
    let are_plain = names
        .clone()
        .all(|name| name.as_bytes().iter().all(is_plain));
    let literals = names.map(|name| {
        if are_plain {
            format!("'{}'", name.as_str())
        } else {
            hex(name.as_bytes())
        }
    });
    literals.collect::<Vec<_>>().join(",")
}
