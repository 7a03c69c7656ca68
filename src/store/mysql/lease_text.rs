//! The texts that take leases: leases and exchanges share them.

use super::grant_rule::{is_free, may_grant, next_fence};
use super::lock_row::{names, read_named, read_text};
use super::statement::{fill, hex, quoted, text};
use crate::store::driver::json;
use crate::store::driver::request::RECORD;
use crate::store::verbs::lease::TakeParams;
use crate::store::verbs::time::to_micros;

const TAKE: &str = concat!(
    "
UPDATE (
    SELECT f.name, UNHEX(a.grant_id) AS grant_id, a.ttl, a.holder,
           UNHEX(a.session_id) AS session_id
    FROM JSON_TABLE(?, '$[*]' COLUMNS (
        name       VARCHAR(576) CHARACTER SET ascii   PATH '$[0]',
        grant_id   CHAR(32)     CHARACTER SET ascii   PATH '$[1]',
        ttl        BIGINT                             PATH '$[2]',
        holder     VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[3]',
        session_id CHAR(32)     CHARACTER SET ascii   PATH '$[4]'
    )) a
    STRAIGHT_JOIN rowlock_lock f FORCE INDEX (PRIMARY) ON f.name = UNHEX(a.name)
    WHERE ",
    is_free!("f."),
    " AND f.waiters = 0
      AND f.capacity = 0 AND ",
    may_grant!(),
    "
    LIMIT 1000000
    FOR UPDATE /*!80000 OF f */ SKIP LOCKED
) t
STRAIGHT_JOIN rowlock_lock l FORCE INDEX (PRIMARY) ON l.name = t.name
SET l.fence = ",
    next_fence!("l."),
    ",
    l.grant_id = t.grant_id,
    l.holder = t.holder,
    l.acquired_at = SYSDATE(6),
    l.expires_at = SYSDATE(6) + INTERVAL t.ttl MICROSECOND,
    l.session_id = t.session_id"
);

/// For asks that differ in the name and the grant id only.
const TAKE_ALIKE: &str = concat!(
    "
UPDATE (
    SELECT f.name FROM rowlock_lock f FORCE INDEX (PRIMARY)
    WHERE f.name IN (?) AND ",
    is_free!("f."),
    "
      AND f.waiters = 0 AND f.capacity = 0 AND ",
    may_grant!(),
    "
    LIMIT 1000000
    FOR UPDATE SKIP LOCKED
) t
STRAIGHT_JOIN rowlock_lock l FORCE INDEX (PRIMARY) ON l.name = t.name
SET l.fence = ",
    next_fence!("l."),
    ",
    l.grant_id = SUBSTRING(?, 16 * FIELD(l.name, ?) - 15, 16),
    l.holder = ?,
    l.acquired_at = SYSDATE(6),
    l.expires_at = SYSDATE(6) + INTERVAL ? MICROSECOND,
    l.session_id = ?"
);

/// The statement that takes, and the statement that reads back.
pub(super) fn take_text(all: &[TakeParams]) -> (String, String) {
    let take = fill(TAKE, &[quoted(&json::takes(all))]);
    (take, read_text(all.iter().map(|params| &params.name)))
}

/// The statement that takes, and the statement that reads back.
pub(super) fn leanest_take_text(all: &[TakeParams]) -> (String, String) {
    let lean = take_alike(all).filter(|(take, read)| take.len() + read.len() < LONGEST_TEXT);
    lean.unwrap_or_else(|| take_text(all))
}

/// What is left of a TLS record, besides the start and the end of the transaction.
pub(super) const LONGEST_TEXT: usize = RECORD - 64;

/// The statement that takes, and the statement that reads back. `None`: the asks differ too much.
pub(super) fn take_alike(all: &[TakeParams]) -> Option<(String, String)> {
    let (first, others) = all.split_first()?;
    let same = |params: &TakeParams| {
        (&params.ttl, &params.holder, &params.session)
            == (&first.ttl, &first.holder, &first.session)
    };
    if !others.iter().all(same) {
        return None;
    }
    let names = names(all.iter().map(|params| &params.name));
    let ids: Vec<u8> = all
        .iter()
        .flat_map(|params| *params.grant_id.as_bytes())
        .collect();
    let take = fill(
        TAKE_ALIKE,
        &[
            names.clone(),
            hex(&ids),
            names.clone(),
            text(&first.holder),
            to_micros(first.ttl).to_string(),
            first
                .session
                .map_or(String::from("NULL"), |id| hex(id.as_bytes())),
        ],
    );
    Some((take, read_named(&names)))
}
