//! Releases and acquires in one lean statement, which changes what it can and explains nothing.
//!
//! It leaves out a name that is held, has waiters, has no row, or whose row another transaction has locked. The statements of
//! `lease.rs` find out which of these it is, only for such names.
//!
//! LATERAL looks each name up by itself, in the order of the asks, and never waits: no order of locks can end in a deadlock. The row's
//! place in the table (`ctid`) saves a second look-up. A row that another transaction has changed since the statement began has moved.
//! It is not found there, and so it is left out too.

use sqlx::PgConnection;

use super::{names, query_as};
use crate::store::fault::Fault;
use crate::store::lease::TakeAsk;
use crate::store::release::ReleaseAsk;
use crate::store::to_micros;

const EXCHANGE: &str = "
WITH freed AS (
    UPDATE rowlock_lock l
    SET grant_id = NULL, holder = NULL, acquired_at = NULL, expires_at = NULL, session_id = NULL, recall = NULL
    FROM unnest($1::bytea[], $2::uuid[]) WITH ORDINALITY AS a (name, grant_id, n),
    LATERAL (
        SELECT r.ctid FROM rowlock_lock r
        WHERE r.name = a.name AND r.grant_id = a.grant_id AND r.expires_at > clock_timestamp() AND r.waiters = 0
        FOR UPDATE SKIP LOCKED
    ) AS mine
    WHERE l.ctid = mine.ctid
    RETURNING a.n
), took AS (
    UPDATE rowlock_lock l
    SET grant_id = a.grant_id,
        fence = GREATEST(l.fence + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint),
        holder = a.holder,
        acquired_at = clock_timestamp(),
        expires_at = clock_timestamp() + a.ttl * interval '1 microsecond',
        session_id = a.session_id
    FROM unnest($3::bytea[], $4::uuid[], $5::bigint[], $6::text[], $7::uuid[], $8::boolean[])
        WITH ORDINALITY AS a (name, grant_id, ttl, holder, session_id, barging, n),
    LATERAL (
        SELECT r.ctid FROM rowlock_lock r
        WHERE r.name = a.name AND (r.expires_at IS NULL OR r.expires_at <= clock_timestamp())
          AND (r.waiters = 0 OR a.barging) AND r.capacity = 0
        FOR UPDATE SKIP LOCKED
    ) AS free
    WHERE l.ctid = free.ctid
    RETURNING a.n, l.fence
)
SELECT n, NULL::bigint FROM freed
UNION ALL
SELECT n, fence FROM took";

/// What was freed, and the fences of what was granted, in the order of the asks.
pub(super) struct Exchanged {
    pub(super) freed: Vec<bool>,
    pub(super) fences: Vec<Option<i64>>,
}

/// Frees and grants what it can. The releases are of no permits.
pub(super) async fn exchange(
    conn: &mut PgConnection,
    releases: &[&ReleaseAsk],
    takes: &[TakeAsk],
) -> Result<Exchanged, Fault> {
    let rows: Vec<(i64, Option<i64>)> = query_as(EXCHANGE)
        .bind(names(releases.iter().map(|a| &a.name)))
        .bind(releases.iter().map(|a| a.grant_id).collect::<Vec<_>>())
        .bind(names(takes.iter().map(|a| &a.name)))
        .bind(takes.iter().map(|a| a.grant_id).collect::<Vec<_>>())
        .bind(takes.iter().map(|a| to_micros(a.ttl)).collect::<Vec<_>>())
        .bind(takes.iter().map(|a| &*a.holder).collect::<Vec<_>>())
        .bind(takes.iter().map(|a| a.session).collect::<Vec<_>>())
        .bind(takes.iter().map(|a| a.barging).collect::<Vec<_>>())
        .fetch_all(conn)
        .await?;
    let mut done = Exchanged {
        freed: vec![false; releases.len()],
        fences: vec![None; takes.len()],
    };
    for (number, fence) in rows {
        // Ordinality counts from one.
        let Ok(place) = usize::try_from(number - 1) else {
            continue;
        };
        let (freed, taken) = (done.freed.get_mut(place), done.fences.get_mut(place));
        match (fence, freed, taken) {
            (None, Some(freed), _) => *freed = true,
            (Some(_), _, Some(taken)) => *taken = fence,
            _ => {}
        }
    }
    Ok(done)
}
