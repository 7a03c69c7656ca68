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
use super::lock_row::{make_row, row_ends};
use super::permit_row::{Lock, Wanted, permits_of};
use super::quarantine::is_quarantined;
use super::queue::{joined_or_full, unlocked};
use super::waiter;
use super::writing::in_a_transaction;
use crate::model::{Kind, Name, Share};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::permit::{PermitStore, Resized, WeighAsk, Weighed};
use crate::store::verbs::queue::{
    Ended, JoinAsk, Joined, LookAsk, Looked, PassAsk, PassWhy, Passed,
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
/// by hand.
const LEFT: &str = concat!(
    "
SELECT coalesce(iif(k.used + (
           SELECT w.weight FROM rowlock_waiter w CROSS JOIN rowlock_session s ON s.id = w.session_id
           WHERE w.name = ?1 AND w.position > k.passed AND s.expires_at > now.us
           ORDER BY w.position LIMIT 1
       ) <= k.capacity, 0, (
           SELECT iif(coalesce(sum(l.weight), 0) < k.used, 0, min(iif(l.grant_id IS NULL, 0, ",
    row_ends!(),
    ")) - now.us)
           FROM rowlock_lock l LEFT JOIN rowlock_session s ON s.id = l.session_id
           WHERE l.name > ?2 AND l.name < ?3
       )), 0)
FROM rowlock_lock k, (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now
WHERE k.name = ?1"
);

#[async_trait]
impl PermitStore for SqliteConnection {
    async fn permit_join(&mut self, ask: &JoinAsk, share: Share) -> Result<Option<Joined>, Fault> {
        let joined = in_a_transaction(self, async |conn| join(conn, ask, share).await).await;
        joined_or_full(self, &ask.name, joined).await
    }

    async fn permit_pass(&mut self, ask: &PassAsk) -> Result<Option<Passed>, Fault> {
        let passed = in_a_transaction(self, async |conn| pass(conn, ask).await).await;
        unlocked(passed)
    }

    async fn permit_look(&mut self, asks: &[LookAsk]) -> Result<Vec<Looked>, Fault> {
        let mut looked = Vec::with_capacity(asks.len());
        let mut times: HashMap<&Name, i64> = HashMap::new();
        for ask in asks {
            let time = match times.get(&ask.name) {
                Some(time) => *time,
                None => left(self, &ask.name).await?,
            };
            times.insert(&ask.name, time);
            let (granted, waits) = sqlx::query_as(LOOK)
                .bind(ask.name.as_bytes())
                .bind(ask.grant_id)
                .bind(ask.position)
                .bind(ask.name.permit(ask.grant_id).as_bytes())
                .fetch_one(&mut *self)
                .await?;
            looked.push(Looked::from((granted, waits, time)));
        }
        Ok(looked)
    }

    async fn permit_weigh(&mut self, ask: &WeighAsk) -> Result<Option<Weighed>, Fault> {
        let weighed = in_a_transaction(self, async |conn| weigh(conn, ask).await).await;
        unlocked(weighed)
    }

    async fn permit_resize(
        &mut self,
        name: &Name,
        capacity: u32,
    ) -> Result<Option<Resized>, Fault> {
        let resized = in_a_transaction(self, async |conn| resize(conn, name, capacity).await).await;
        unlocked(resized)
    }
}

/// `None`: the queue is full.
async fn join(
    conn: &mut SqliteConnection,
    ask: &JoinAsk,
    Share { kind, weight }: Share,
) -> Result<Option<Joined>, sqlx::Error> {
    let mut found = Lock::read(conn, &ask.name).await?;
    if found.is_none() {
        make_row(conn, &ask.name, kind).await?;
        found = Lock::read(conn, &ask.name).await?;
    }
    let Some(mut lock) = found else {
        return Err(sqlx::Error::RowNotFound);
    };
    if lock.capacity != i64::from(kind.capacity()) {
        return Ok(Some(Joined::Mismatch(Kind::of(lock.capacity))));
    }
    let wanted = Wanted {
        grant_id: ask.grant_id,
        holder: &ask.holder,
        weight: i64::from(weight),
        until: lock.now + to_micros(ask.ttl) + 1000,
        session: ask.in_session.then_some(ask.session),
    };
    if let Some(fence) = lock.keep(&wanted).await? {
        return Ok(Some(Joined::Granted { fence }));
    }
    // What is left of an earlier sending's permit has the name of the new one.
    lock.remove(ask.grant_id).await?;
    if lock.waiters == 0 && !is_quarantined(lock.conn).await? && lock.fits(wanted.weight).await? {
        let fence = lock.make(&wanted).await?;
        return Ok(Some(Joined::Granted { fence }));
    }
    let numbers = waiter::Numbers {
        waiters: lock.waiters,
        next_position: lock.next_position,
        passed: lock.passed,
        now: lock.now,
    };
    let position = waiter::queue(lock.conn, ask, weight, numbers).await?;
    Ok(position.map(|position| Joined::Queued {
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

async fn pass(conn: &mut SqliteConnection, ask: &PassAsk) -> Result<Passed, sqlx::Error> {
    let found = Lock::read(conn, &ask.name).await?;
    let Some(mut lock) = found.filter(Lock::has_permits) else {
        return Ok(Passed::NOTHING);
    };
    let ended = match ask.why.grant_id() {
        Some(grant_id) => lock.remove(grant_id).await?,
        None => Ended::Nothing,
    };
    let name = ask.name.as_bytes();
    if waiter::leave(lock.conn, name, lock.passed, ask.why).await? {
        lock.waiters -= 1;
    }
    if ask.why == PassWhy::Orphaned {
        lock.recount().await?;
    }
    let next = lock.grant_waiters().await?;
    Ok(Passed { ended, next })
}

async fn weigh(conn: &mut SqliteConnection, ask: &WeighAsk) -> Result<Weighed, sqlx::Error> {
    let Some(mut lock) = Lock::read(conn, &ask.name).await? else {
        return Ok(Weighed::Gone);
    };
    let permit = ask.name.permit(ask.grant_id);
    let live: Option<(i64, i64)> = sqlx::query_as(LIVE)
        .bind(permit.as_bytes())
        .bind(ask.grant_id)
        .bind(lock.now)
        .fetch_optional(&mut *lock.conn)
        .await?;
    let Some((weight, mut fence)) = live else {
        return Ok(Weighed::Gone);
    };
    let more = i64::from(ask.weight) - weight;
    if more != 0 && fence != ask.fence {
        return Ok(Weighed::Stale(fence));
    }
    if more > 0 && (is_quarantined(lock.conn).await? || !lock.fits(more).await?) {
        return Ok(Weighed::Full);
    }
    // Also when it has that weight: a downgrade that was given up may still arrive.
    if more >= 0 && ask.weight > 1 {
        fence = lock.next_fence().await?;
    }
    let weigh = sqlx::query(WEIGH).bind(permit.as_bytes());
    let weigh = weigh.bind(ask.weight).bind(fence);
    weigh.execute(&mut *lock.conn).await?;
    lock.take(more).await?;
    let next = lock.grant_waiters().await?;
    Ok(Weighed::Done { fence, next })
}

async fn resize(
    conn: &mut SqliteConnection,
    name: &Name,
    capacity: u32,
) -> Result<Resized, sqlx::Error> {
    let Some(mut lock) = Lock::read(conn, name).await? else {
        make_row(conn, name, Kind::Semaphore { capacity }).await?;
        return Ok(Resized::Done {
            before: None,
            next: Vec::new(),
        });
    };
    let before = match Kind::of(lock.capacity) {
        Some(Kind::Semaphore { capacity }) => Some(capacity),
        kind => return Ok(Resized::Mismatch(kind)),
    };
    // Those that are too heavy now never fit.
    lock.waiters -= waiter::remove_heavier(lock.conn, name.as_bytes(), capacity).await?;
    let resize = sqlx::query(RESIZE).bind(name.as_bytes()).bind(capacity);
    let resize = resize.bind(lock.now).bind(lock.waiters);
    resize.execute(&mut *lock.conn).await?;
    lock.capacity = i64::from(capacity);
    let next = lock.grant_waiters().await?;
    Ok(Resized::Done { before, next })
}
