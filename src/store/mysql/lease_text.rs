//! The texts that take leases: leases and exchanges share them.

use super::grant_rule::{is_free, may_grant, next_fence};
use super::lock_row::{read_text, row_columns, row_ends};
use super::statement::{fill, hex, quoted, text};
use crate::model::Name;
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

/// [`TAKE`] for a single ask.
const TAKE_ONE: &str = concat!(
    "
UPDATE (
    SELECT f.name FROM rowlock_lock f FORCE INDEX (PRIMARY)
    WHERE f.name = ? AND ",
    is_free!("f."),
    "
      AND f.waiters = 0 AND f.capacity = 0 AND ",
    may_grant!(),
    "
    LIMIT 1
    FOR UPDATE SKIP LOCKED
) t
STRAIGHT_JOIN rowlock_lock l FORCE INDEX (PRIMARY) ON l.name = t.name
SET l.fence = ",
    next_fence!("l."),
    ",
    l.grant_id = ?,
    l.holder = ?,
    l.acquired_at = SYSDATE(6),
    l.expires_at = SYSDATE(6) + INTERVAL ? MICROSECOND,
    l.session_id = ?"
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

const READ: &str = concat!(
    "
SELECT",
    row_columns!("SYSDATE(6)"),
    "
FROM rowlock_lock l FORCE INDEX (PRIMARY) LEFT JOIN rowlock_session s ON s.id = l.session_id
WHERE l.name IN (?)"
);

/// The statement that takes, and the statement that reads back.
pub(super) fn take_text(all: &[TakeParams]) -> (String, String) {
    let take = match all {
        [params] => fill(
            TAKE_ONE,
            &[
                hex(params.name.as_bytes()),
                hex(params.grant_id.as_bytes()),
                text(&params.holder),
                to_micros(params.ttl).to_string(),
                params
                    .session
                    .map_or(String::from("NULL"), |id| hex(id.as_bytes())),
            ],
        ),
        _ => fill(TAKE, &[quoted(&json::takes(all))]),
    };
    (take, read_text(all.iter().map(|params| &params.name)))
}

/// The statement that takes, and the statement that reads back.
pub(super) fn leanest_take_text(all: &[TakeParams]) -> (String, String) {
    let lean = take_alike(all).filter(|(take, read)| take.len() + read.len() < LONGEST);
    lean.unwrap_or_else(|| take_text(all))
}

/// What is left of a TLS record, besides the start and the end of the transaction.
pub(super) const LONGEST: usize = RECORD - 64;

/// The statement that takes, and the statement that reads back. `None`: the asks differ too much.
pub(super) fn take_alike(all: &[TakeParams]) -> Option<(String, String)> {
    let (first, others) = all.split_first().filter(|(_, others)| !others.is_empty())?;
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
    Some((take, fill(READ, &[names])))
}

/// A list of literals. Plain text is half as long as hexadecimal.
pub(super) fn names<'a>(names: impl Iterator<Item = &'a Name> + Clone) -> String {
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
