//! Releases and acquires in one lean statement, which changes what it can and explains nothing.
//!
//! It leaves out a name that is held, has waiters, has no row, or whose row another transaction has locked. The statements of
//! `lease.rs` find out which of these it is, only for such names.
//!
//! There are two such statements. [`WAITING`] waits for a locked row, for a few milliseconds. After a longer wait it fails and has changed
//! nothing, and [`SKIPPING`] follows, which leaves out locked rows. That one costs a quarter more: it writes each row twice, the lock
//! and the new version. After a wait in vain, a connection sends only that one for a while ([`LockedRows`]). So a long transaction
//! delays other names seldom, and only for a moment.
//!
//! Releases and acquires are one UPDATE, which costs the server a quarter less than one for each: starting an UPDATE costs as much as
//! many rows. In the select list, `unnest` returns row by row. In FROM, the server would first store each array as a table.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::PgConnection;

use super::{names, query_as};
use crate::model::FaultKind;
use crate::store::fault::Fault;
use crate::store::lease::TakeAsk;
use crate::store::release::ReleaseAsk;
use crate::store::to_micros;

/// What both statements change. The first asks are acquires. A release has no TTL: only `name` and `id` are as long as all the asks, and
/// the end of a shorter array is NULL.
macro_rules! change {
    () => {
        "
UPDATE rowlock_lock l
SET grant_id = CASE WHEN a.ttl IS NOT NULL THEN a.id END,
    fence = CASE
        WHEN a.ttl IS NULL THEN l.fence
        ELSE GREATEST(l.fence + 1, (date_part('epoch', clock_timestamp()) * 1000000)::bigint)
    END,
    holder = a.holder,
    acquired_at = CASE WHEN a.ttl IS NOT NULL THEN clock_timestamp() END,
    expires_at = clock_timestamp() + a.ttl * interval '1 microsecond',
    session_id = a.session_id,
    recall = NULL
FROM (
    SELECT unnest($1::bytea[]) AS name, unnest($2::uuid[]) AS id, unnest($3::bigint[]) AS ttl, unnest($4::text[]) AS holder,
           unnest($5::uuid[]) AS session_id, unnest($6::boolean[]) AS barging, generate_subscripts($1::bytea[], 1) AS n
) AS a"
    };
}

/// The row of an ask that it may change.
macro_rules! may_change {
    () => {
        "l.name = a.name AND CASE
        WHEN a.ttl IS NULL THEN l.grant_id = a.id AND l.expires_at > clock_timestamp() AND l.waiters = 0
        ELSE (l.expires_at IS NULL OR l.expires_at <= clock_timestamp()) AND (l.waiters = 0 OR a.barging) AND l.capacity = 0
    END"
    };
}

/// The first condition sets the limit on waiting for a row, for this transaction. It reads no column, so the server evaluates it before
/// it looks for rows.
///
/// READ COMMITTED checks the other conditions again on the version for which it has waited. (A row that then fails them stays locked
/// until the statement commits, which is at once.) Two exchanges that want rows of each other wait no longer than that limit, which is
/// far below the server's `deadlock_timeout`.
const WAITING: &str = concat!(
    change!(),
    "
WHERE (SELECT set_config('lock_timeout', '5', true)) IS NOT NULL
  AND ",
    may_change!(),
    "
RETURNING a.n, l.fence"
);

/// LATERAL looks each name up by itself, in the order of the asks, and never waits: no order of locks can end in a deadlock. The row's
/// place in the table (`ctid`) saves a second look-up. A row that another transaction has changed since the statement began has moved.
/// It is not found there, and so it is left out too.
const SKIPPING: &str = concat!(
    change!(),
    ",
LATERAL (
    SELECT l.ctid FROM rowlock_lock l
    WHERE ",
    may_change!(),
    "
    FOR UPDATE SKIP LOCKED
) AS mine
WHERE l.ctid = mine.ctid
RETURNING a.n, l.fence"
);

tokio::task_local! {
    /// Of the connection that the running verb is sent on.
    pub(super) static LOCKED_ROWS: LockedRows;
}

/// How the exchanges of a connection treat locked rows.
#[derive(Debug, Clone)]
pub(super) enum LockedRows {
    /// They are left out. (An error would end the transaction that the exchange is a part of.)
    Skipped,
    /// They are waited for, but not for some time after a wait in vain.
    WaitedFor(Arc<Mutex<Pause>>),
}

/// A time in which no exchange waits.
#[derive(Debug, Default)]
pub(super) struct Pause {
    until: Option<Instant>,
    length: Duration,
}

/// The shortest pause and the longest one. After each wait in vain the pause is twice as long as the one before.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(64));

impl Default for LockedRows {
    fn default() -> Self {
        Self::WaitedFor(Arc::default())
    }
}

impl LockedRows {
    /// Whether an exchange that begins now waits for them.
    pub(super) fn are_waited_for(&self, now: Instant) -> bool {
        let Self::WaitedFor(pause) = self else {
            return false;
        };
        let pause = pause.lock().unwrap_or_else(PoisonError::into_inner);
        pause.until.is_none_or(|until| until <= now)
    }

    /// An exchange that was ready to wait has ended.
    fn waited(&self, in_vain: bool, now: Instant) {
        let Self::WaitedFor(pause) = self else {
            return;
        };
        let mut pause = pause.lock().unwrap_or_else(PoisonError::into_inner);
        *pause = if in_vain {
            let length = (pause.length * 2).clamp(PAUSES.0, PAUSES.1);
            let until = Some(now + length);
            Pause { until, length }
        } else {
            Pause::default()
        };
    }
}

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
    let locked_rows = LOCKED_ROWS.try_with(LockedRows::clone).unwrap_or_default();
    if !locked_rows.are_waited_for(Instant::now()) {
        return send(conn, SKIPPING, releases, takes).await;
    }
    let done = send(conn, WAITING, releases, takes).await;
    let is_locked = |fault: &Fault| fault.kind == FaultKind::LockTimeout;
    let in_vain = done.as_ref().is_err_and(is_locked);
    locked_rows.waited(in_vain, Instant::now());
    if in_vain {
        return send(conn, SKIPPING, releases, takes).await;
    }
    done
}

async fn send(
    conn: &mut PgConnection,
    statement: &'static str,
    releases: &[&ReleaseAsk],
    takes: &[TakeAsk],
) -> Result<Exchanged, Fault> {
    let all_names = takes.iter().map(|a| &a.name);
    let ids = takes.iter().map(|a| a.grant_id);
    let rows: Vec<(i32, i64)> = query_as(statement)
        .bind(names(all_names.chain(releases.iter().map(|a| &a.name))))
        .bind(
            ids.chain(releases.iter().map(|a| a.grant_id))
                .collect::<Vec<_>>(),
        )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_each_wait_in_vain_the_pause_is_longer() {
        let (mut now, rows) = (Instant::now(), LockedRows::default());
        for seconds in [1, 2, 4, 8, 16, 32, 64, 64] {
            assert!(rows.are_waited_for(now));
            rows.waited(true, now);
            now += Duration::from_secs(seconds);
            assert!(!rows.are_waited_for(now - Duration::from_millis(1)));
        }
        rows.waited(false, now);
        rows.waited(true, now);
        assert!(rows.are_waited_for(now + PAUSES.0), "it begins again");
        assert!(!LockedRows::Skipped.are_waited_for(now));
    }
}
