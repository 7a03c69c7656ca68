//! Read/write locks and semaphores: the statements. Their times follow the rules of `lease.rs`.
//!
//! Each verb but the look is a transaction that begins with the write lock, as in `queue.rs`. It reads the name's row
//! and the clock first. No other connection changes a row before it ends, so it decides from the newest state, and by
//! one time. There are no row locks: while a caller's transaction has a permit pinned, it has the whole file, and a
//! verb answers `None`.

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::grant_rule::next_fence;
use super::listener::{PassedTo, tell_after_commit};
use super::lock_row::{make_row, row_ends};
use super::permit_row::{PermitName, PermitRequest, permits_of};
use super::queue::joined_or_full;
use super::waiter;
use super::writing::in_a_transaction;
use crate::model::{Kind, Name, Share};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::permit::{PermitStore, ResizeOutcome, WeighOutcome, WeighParams};
use crate::store::verbs::queue::{
    EndedGrant, JoinOutcome, JoinParams, LookOutcome, LookParams, PassOutcome, PassParams, PassWhy,
};
use crate::store::verbs::time::to_micros;

const LIVE: &str = "
SELECT l.weight, l.fence
FROM rowlock_lock l LEFT JOIN rowlock_session s ON s.id = l.session_id
WHERE l.name = ?1 AND l.grant_id = ?2 AND l.expires_at > ?3 AND (l.session_id IS NULL OR s.expires_at > ?3)";

const WEIGH: &str = "UPDATE rowlock_lock SET weight = ?2, fence = ?3 WHERE name = ?1";

/// The cleaner takes the fence for the last use.
const RESIZE: &str = concat!(
    "
UPDATE rowlock_lock SET capacity = ?2, fence = ",
    next_fence!("?3 + 1000"),
    ", waiters = ?4 WHERE name = ?1"
);

/// The waiter has a permit; and it is there.
const LOOK: &str = "
SELECT EXISTS (SELECT 1 FROM rowlock_lock p
               WHERE p.name = ?4 AND p.grant_id = ?2
                 AND p.expires_at > CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000),
       EXISTS (SELECT 1 FROM rowlock_lock k WHERE k.name = ?1)
       AND EXISTS (SELECT 1 FROM rowlock_waiter w WHERE w.name = ?1 AND w.position = ?3 AND w.grant_id = ?2)";

/// The time until the first permit of a name ends. No time, when the first live waiter fits, or permits were removed
/// by hand. Or the time that a pause of the name has left, if that is longer.
const LEFT: &str = concat!(
    "
SELECT max(coalesce(k.paused_until - now.us, 0), coalesce(iif(k.used + (
           SELECT w.weight FROM rowlock_waiter w CROSS JOIN rowlock_session s ON s.id = w.session_id
           WHERE w.name = ?1 AND w.position > k.passed AND s.expires_at > now.us
           ORDER BY w.position LIMIT 1
       ) <= k.capacity, 0, (
           SELECT iif(coalesce(sum(l.weight), 0) < k.used, 0, min(iif(l.grant_id IS NULL, 0, ",
    row_ends!(),
    ")) - now.us)
           FROM rowlock_lock l LEFT JOIN rowlock_session s ON s.id = l.session_id
           WHERE l.name > ?2 AND l.name < ?3
       )), 0))
FROM rowlock_lock k, (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now
WHERE k.name = ?1"
);

#[async_trait]
impl PermitStore for SqliteConnection {
    async fn permit_join(
        &mut self,
        params: &JoinParams,
        share: Share,
    ) -> Result<Option<JoinOutcome>, Fault> {
        let joined = in_a_transaction(self, async |conn| join(conn, params, share).await).await;
        joined_or_full(self, &params.name, joined).await
    }

    async fn permit_pass(&mut self, params: &PassParams) -> Result<Option<PassOutcome>, Fault> {
        let mut passed_to = Vec::new();
        let pass = async |conn: &mut _| pass(conn, params, &mut passed_to).await;
        let passed = in_a_transaction(self, pass).await;
        tell_after_commit(passed, &passed_to)
    }

    async fn permit_look(&mut self, all: &[LookParams]) -> Result<Vec<LookOutcome>, Fault> {
        let mut looked = Vec::with_capacity(all.len());
        let mut times: HashMap<&Name, i64> = HashMap::new();
        for params in all {
            let time = match times.get(&params.name) {
                Some(time) => *time,
                None => left(self, &params.name).await?,
            };
            times.insert(&params.name, time);
            let (granted, waits) = sqlx::query_as(LOOK)
                .bind(params.name.as_bytes())
                .bind(params.grant_id)
                .bind(params.position)
                .bind(params.name.permit(params.grant_id).as_bytes())
                .fetch_one(&mut *self)
                .await?;
            looked.push(LookOutcome::from((granted, waits, time)));
        }
        Ok(looked)
    }

    async fn permit_weigh(&mut self, params: &WeighParams) -> Result<Option<WeighOutcome>, Fault> {
        let mut passed_to = Vec::new();
        let weigh = async |conn: &mut _| weigh(conn, params, &mut passed_to).await;
        let weighed = in_a_transaction(self, weigh).await;
        tell_after_commit(weighed, &passed_to)
    }

    async fn permit_resize(
        &mut self,
        name: &Name,
        capacity: u32,
    ) -> Result<Option<ResizeOutcome>, Fault> {
        let mut passed_to = Vec::new();
        let resize = async |conn: &mut _| resize(conn, name, capacity, &mut passed_to).await;
        let resized = in_a_transaction(self, resize).await;
        tell_after_commit(resized, &passed_to)
    }
}

/// `None`: the queue is full.
async fn join(
    conn: &mut SqliteConnection,
    params: &JoinParams,
    Share { kind, weight }: Share,
) -> Result<Option<JoinOutcome>, sqlx::Error> {
    let mut found = PermitName::read(conn, &params.name).await?;
    if found.is_none() {
        make_row(conn, &params.name, kind).await?;
        found = PermitName::read(conn, &params.name).await?;
    }
    let Some(mut lock) = found else {
        return Err(sqlx::Error::RowNotFound);
    };
    if lock.capacity != i64::from(kind.capacity()) {
        return Ok(Some(JoinOutcome::Mismatch(Kind::of(lock.capacity))));
    }
    let wanted = PermitRequest {
        grant_id: params.grant_id,
        holder: &params.holder,
        weight: i64::from(weight),
        until: lock.now + to_micros(params.ttl) + 1000,
        session: params.in_session.then_some(params.session),
    };
    if let Some(fence) = lock.keep(&wanted).await? {
        return Ok(Some(JoinOutcome::Granted { fence }));
    }
    // What is left of an earlier sending's permit has the name of the new one.
    lock.remove(params.grant_id).await?;
    if lock.waiters == 0 && lock.may_grant().await? && lock.fits(wanted.weight).await? {
        let fence = lock.make(&wanted).await?;
        return Ok(Some(JoinOutcome::Granted { fence }));
    }
    let numbers = waiter::Numbers {
        waiters: lock.waiters,
        next_position: lock.next_position,
        passed: lock.passed,
        now: lock.now,
    };
    let position = waiter::queue(lock.conn, params, weight, numbers).await?;
    Ok(position.map(|position| JoinOutcome::Queued {
        position,
        is_orphaned: false,
    }))
}

/// The time until the first permit of a name ends, as [`LEFT`] has it.
async fn left(conn: &mut SqliteConnection, name: &Name) -> Result<i64, sqlx::Error> {
    let (after, before) = permits_of(name);
    let left = sqlx::query_scalar(LEFT).bind(name.as_bytes());
    let left = left.bind(after).bind(before).fetch_optional(conn).await?;
    Ok(left.unwrap_or(0))
}

async fn pass(
    conn: &mut SqliteConnection,
    params: &PassParams,
    passed_to: &mut Vec<PassedTo>,
) -> Result<PassOutcome, sqlx::Error> {
    let found = PermitName::read(conn, &params.name).await?;
    let Some(mut lock) = found.filter(PermitName::has_permits) else {
        return Ok(PassOutcome::NOTHING);
    };
    let ended = match params.why.grant_id() {
        Some(grant_id) => lock.remove(grant_id).await?,
        None => EndedGrant::Nothing,
    };
    let name = params.name.as_bytes();
    if waiter::leave(lock.conn, name, lock.passed, params.why).await? {
        lock.waiters -= 1;
    }
    if params.why == PassWhy::Orphaned {
        lock.recount().await?;
    }
    let next = lock.grant_waiters(passed_to).await?;
    Ok(PassOutcome { ended, next })
}

async fn weigh(
    conn: &mut SqliteConnection,
    params: &WeighParams,
    passed_to: &mut Vec<PassedTo>,
) -> Result<WeighOutcome, sqlx::Error> {
    let Some(mut lock) = PermitName::read(conn, &params.name).await? else {
        return Ok(WeighOutcome::Gone);
    };
    let permit = params.name.permit(params.grant_id);
    let live: Option<(i64, i64)> = sqlx::query_as(LIVE)
        .bind(permit.as_bytes())
        .bind(params.grant_id)
        .bind(lock.now)
        .fetch_optional(&mut *lock.conn)
        .await?;
    let Some((weight, mut fence)) = live else {
        return Ok(WeighOutcome::Gone);
    };
    let more = i64::from(params.weight) - weight;
    if more != 0 && fence != params.fence {
        return Ok(WeighOutcome::Stale(fence));
    }
    if more > 0 && !(lock.may_grant().await? && lock.fits(more).await?) {
        return Ok(WeighOutcome::Full);
    }
    // Also when it has that weight: a downgrade that was given up may still arrive.
    if more >= 0 && params.weight > 1 {
        fence = lock.next_fence().await?;
    }
    let weigh = sqlx::query(WEIGH).bind(permit.as_bytes());
    let weigh = weigh.bind(params.weight).bind(fence);
    weigh.execute(&mut *lock.conn).await?;
    lock.take(more).await?;
    let next = lock.grant_waiters(passed_to).await?;
    Ok(WeighOutcome::Done { fence, next })
}

async fn resize(
    conn: &mut SqliteConnection,
    name: &Name,
    capacity: u32,
    passed_to: &mut Vec<PassedTo>,
) -> Result<ResizeOutcome, sqlx::Error> {
    let Some(mut lock) = PermitName::read(conn, name).await? else {
        make_row(conn, name, Kind::Semaphore { capacity }).await?;
        return Ok(ResizeOutcome::Done {
            before: None,
            next: Vec::new(),
        });
    };
    let before = match Kind::of(lock.capacity) {
        Some(Kind::Semaphore { capacity }) => Some(capacity),
        kind => return Ok(ResizeOutcome::Mismatch(kind)),
    };
    // Those that are too heavy now never fit.
    lock.waiters -= waiter::remove_heavier(lock.conn, name.as_bytes(), capacity).await?;
    let resize = sqlx::query(RESIZE).bind(name.as_bytes()).bind(capacity);
    let resize = resize.bind(lock.now).bind(lock.waiters);
    resize.execute(&mut *lock.conn).await?;
    lock.capacity = i64::from(capacity);
    let next = lock.grant_waiters(passed_to).await?;
    Ok(ResizeOutcome::Done { before, next })
}
