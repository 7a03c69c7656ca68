//! Releases and acquires in one lean statement, which changes what it can and explains nothing.
//!
//! It leaves out a name that is held, has waiters, has no row, or whose row another transaction has locked. The
//! statements of `lease.rs` find out which of these it is, only for such names.
//!
//! LATERAL looks each name up by itself, in the order of the asks, and never waits: no order of locks can end in a
//! deadlock. The row's place in the table (`ctid`) saves a second look-up. A row that another transaction has changed
//! since the statement began has moved. It is not found there, and so it is left out too.
//!
//! Releases and acquires are one UPDATE, which costs the server a quarter less than one for each: starting an UPDATE
//! costs as much as many rows. In the select list, `unnest` returns row by row. In FROM, the server would first store
//! each array as a table.

use sqlx::PgConnection;

use super::grant_rule::{is_free, may_grant, next_fence};
use super::{each, query_as};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::lease::TakeParams;
use crate::store::verbs::release::ReleaseParams;
use crate::store::verbs::time::to_micros;

/// The first asks are acquires. A release has no TTL: only `name` and `id` are as long as all the asks, and the end of
/// a shorter array is NULL.
const EXCHANGE: &str = concat!(
    "
UPDATE rowlock_lock l
SET grant_id = CASE WHEN a.ttl IS NOT NULL THEN a.id END,
    fence = CASE
        WHEN a.ttl IS NULL THEN l.fence
        ELSE ", next_fence!("l."), "
    END,
    holder = a.holder,
    acquired_at = CASE WHEN a.ttl IS NOT NULL THEN clock_timestamp() END,
    expires_at = clock_timestamp() + a.ttl * interval '1 microsecond',
    session_id = a.session_id
FROM (
    SELECT unnest($1::bytea[]) AS name, unnest($2::uuid[]) AS id, unnest($3::bigint[]) AS ttl, unnest($4::text[]) AS holder,
           unnest($5::uuid[]) AS session_id, generate_subscripts($1::bytea[], 1) AS n
) AS a,
LATERAL (
    SELECT r.ctid FROM rowlock_lock r
    WHERE r.name = a.name AND CASE
        WHEN a.ttl IS NULL THEN r.grant_id = a.id AND r.expires_at > clock_timestamp() AND r.waiters = 0
        ELSE ", is_free!("r."), " AND r.waiters = 0 AND r.capacity = 0
             AND ",
    may_grant!(),
    "
    END
    FOR UPDATE SKIP LOCKED
) AS mine
WHERE l.ctid = mine.ctid
RETURNING a.n, l.fence"
);

/// What was freed, and the fences of what was granted, in the order of the asks.
pub(super) struct ExchangeFences {
    pub(super) freed: Vec<bool>,
    pub(super) fences: Vec<Option<i64>>,
}

/// Frees and grants what it can. The releases are of no permits.
pub(super) async fn exchange(
    conn: &mut PgConnection,
    releases: &[&ReleaseParams],
    takes: &[TakeParams],
) -> Result<ExchangeFences, Fault> {
    let mut names = each(takes, |a| a.name.as_bytes());
    names.extend(each(releases, |a| a.name.as_bytes()));
    let mut ids = each(takes, |a| a.grant_id);
    ids.extend(each(releases, |a| a.grant_id));
    let rows: Vec<(i32, i64)> = query_as(EXCHANGE)
        .bind(names)
        .bind(ids)
        .bind(each(takes, |a| to_micros(a.ttl)))
        .bind(each(takes, |a| &*a.holder))
        .bind(each(takes, |a| a.session))
        .fetch_all(conn)
        .await?;
    let mut done = ExchangeFences {
        freed: vec![false; releases.len()],
        fences: vec![None; takes.len()],
    };
    for (number, fence) in rows {
        // Subscripts count from one.
        let Ok(place) = usize::try_from(number - 1) else {
            continue;
        };
        if let Some(taken) = done.fences.get_mut(place) {
            *taken = Some(fence);
        } else if let Some(freed) = done.freed.get_mut(place - takes.len()) {
            *freed = true;
        }
    }
    Ok(done)
}
