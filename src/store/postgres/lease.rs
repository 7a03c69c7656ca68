//! Lease locks: the statements.
//!
//! A batch goes through `exchange.rs` first, and the statements here do what it left.
//!
//! Every statement finds the rows that it may change, locks them in the order of their names with SKIP LOCKED, and
//! only then computes expiry and fence in SET, from the locked row and `clock_timestamp()`. `now()` would be the time
//! at which the statement began.
//!
//! The plan of a prepared statement outlives the table that it was made for. `LIMIT cardinality($1)` makes the planner
//! expect few rows and look each of them up in the index. Without it, a plan from when the table was small reads the
//! whole table for every batch.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::PgConnection;
use uuid::Uuid;

use super::exchange::exchange;
use super::grant_rule::{freed, is_free, may_grant, next_fence};
use super::lock_row::{row_columns, row_ends, taken};
use super::{each, query, query_as, query_scalar};
use crate::model::Name;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::lease::{LeaseStore, RenewOutcome, RenewParams, TakeOutcome, TakeParams};
use crate::store::verbs::release;
use crate::store::verbs::release::{FreeOutcome, ReleaseParams};
use crate::store::verbs::row::LockRow;
use crate::store::verbs::time::{micros, to_micros};

/// A single ask on an existing, free row: half the work of the statement for a batch. When it changes nothing, the
/// statement for a batch finds the reason, or makes the row.
const TAKE_ONE: &str = concat!(
    "
UPDATE rowlock_lock
SET grant_id = $2,
    fence = ",
    next_fence!(""),
    ",
    holder = $4,
    acquired_at = clock_timestamp(),
    expires_at = clock_timestamp() + $3 * interval '1 microsecond',
    session_id = $5
WHERE name = (
    SELECT name FROM rowlock_lock
    WHERE name = $1 AND ",
    is_free!(""),
    " AND waiters = 0 AND capacity = 0
      AND ",
    may_grant!(),
    "
    FOR UPDATE SKIP LOCKED
)
RETURNING fence"
);

/// UPDATE first, then INSERT only the missing rows: a failing INSERT … ON CONFLICT would cost a transaction id and WAL
/// for every busy answer.
const TAKE: &str = concat!(
    "
WITH ask AS (
    SELECT * FROM unnest($1::bytea[], $2::uuid[], $3::bigint[], $4::text[], $5::uuid[])
        WITH ORDINALITY AS a (name, grant_id, ttl, holder, session_id, n)
    LIMIT cardinality($1)
), free AS (
    SELECT l.name FROM ask a JOIN rowlock_lock l ON l.name = a.name
    WHERE ",
    is_free!("l."),
    " AND l.waiters = 0 AND l.capacity = 0
      AND ",
    may_grant!(),
    "
    ORDER BY l.name
    FOR UPDATE OF l SKIP LOCKED
), took AS (
    UPDATE rowlock_lock l
    SET grant_id = a.grant_id,
        fence = ",
    next_fence!("l."),
    ",
        holder = a.holder,
        acquired_at = clock_timestamp(),
        expires_at = clock_timestamp() + a.ttl * interval '1 microsecond',
        session_id = a.session_id
    FROM free f JOIN ask a ON a.name = f.name
    WHERE l.name = f.name
    RETURNING l.name, l.fence
), made AS (
    INSERT INTO rowlock_lock (name, grant_id, fence, holder, acquired_at, expires_at, session_id)
    SELECT a.name, a.grant_id, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, a.holder,
           clock_timestamp(), clock_timestamp() + a.ttl * interval '1 microsecond', a.session_id
    FROM ask a
    WHERE NOT EXISTS (SELECT FROM rowlock_lock l WHERE l.name = a.name) AND ",
    may_grant!(),
    "
    ORDER BY a.name
    ON CONFLICT (name) DO NOTHING
    RETURNING name, fence
)
SELECT COALESCE(t.fence, m.fence),",
    row_columns!(),
    "
FROM ask a
LEFT JOIN took t ON t.name = a.name
LEFT JOIN made m ON m.name = a.name
LEFT JOIN rowlock_lock l ON l.name = a.name
LEFT JOIN rowlock_session s ON s.id = l.session_id
ORDER BY a.n"
);

/// NOT IN becomes a look-up in a hash table; a join would not.
const RENEW: &str = "
WITH ask AS (
    SELECT * FROM unnest($1::bytea[], $2::uuid[], $3::bigint[])
        WITH ORDINALITY AS a (name, grant_id, ttl, n)
    LIMIT cardinality($1)
), mine AS (
    SELECT l.name, a.ttl, a.n
    FROM ask a JOIN rowlock_lock l ON l.name = a.name AND l.grant_id = a.grant_id
    WHERE l.expires_at > clock_timestamp()
    ORDER BY l.name
    FOR UPDATE OF l SKIP LOCKED
), kept AS (
    UPDATE rowlock_lock l
    SET expires_at = GREATEST(l.expires_at, clock_timestamp() + m.ttl * interval '1 microsecond')
    FROM mine m
    WHERE l.name = m.name
    RETURNING m.n, l.expires_at
), known AS (
    SELECT n, expires_at FROM kept
    UNION ALL
    SELECT a.n, l.expires_at
    FROM ask a JOIN rowlock_lock l ON l.name = a.name AND l.grant_id = a.grant_id
    WHERE l.expires_at > clock_timestamp() AND a.n NOT IN (SELECT n FROM kept)
)
SELECT n, (extract(epoch FROM expires_at - clock_timestamp()) * 1000000)::bigint FROM known";

/// [`RELEASE`] for a single ask whose lease is still live. A name with waiters stays as it is, and the answer tells:
/// that saves a look, where the next statement has to pass the name on.
const RELEASE_ONE: &str = "
UPDATE rowlock_lock
SET grant_id = CASE WHEN waiters > 0 THEN grant_id END, holder = CASE WHEN waiters > 0 THEN holder END,
    acquired_at = CASE WHEN waiters > 0 THEN acquired_at END, expires_at = CASE WHEN waiters > 0 THEN expires_at END,
    session_id = CASE WHEN waiters > 0 THEN session_id END
WHERE name = (
    SELECT name FROM rowlock_lock
    WHERE name = $1 AND grant_id = $2 AND expires_at > clock_timestamp()
    FOR UPDATE SKIP LOCKED
)
RETURNING waiters > 0, set_config('synchronous_commit', 'off', true)";

/// The commit of a pure release need not wait for the disk: a lost release leaves a row that expires, or that its
/// client's next look at its session finds. `set_config(…, true)` is SET LOCAL, for this statement's own transaction.
const RELEASE: &str = concat!(
    "
WITH ask AS (
    SELECT * FROM unnest($1::bytea[], $2::uuid[], $3::bigint[])
        WITH ORDINALITY AS a (name, grant_id, fence, n)
    LIMIT cardinality($1)
), mine AS (
    SELECT l.name FROM rowlock_lock l JOIN ask a ON a.name = l.name AND a.grant_id = l.grant_id
    WHERE l.expires_at > clock_timestamp() AND l.waiters = 0
    ORDER BY l.name
    FOR UPDATE OF l SKIP LOCKED
), freed AS (
    UPDATE rowlock_lock l
    SET ",
    freed!(),
    "
    FROM mine m
    WHERE l.name = m.name
    RETURNING l.name
)
SELECT f.name IS NOT NULL,
       l.grant_id IS NOT DISTINCT FROM a.grant_id,
       l.grant_id IS NULL AND l.fence IS NOT DISTINCT FROM a.fence,
       l.expires_at > clock_timestamp(),
       COALESCE(l.waiters, 0),
       set_config('synchronous_commit', 'off', true)
FROM ask a
LEFT JOIN freed f ON f.name = a.name
LEFT JOIN rowlock_lock l ON l.name = a.name
ORDER BY a.n"
);

/// Waits for the row, because the caller of a forced release wants it done.
const FORCE_RELEASE: &str = concat!(
    "
WITH held AS (
    SELECT * FROM rowlock_lock
    WHERE name = $1 AND (grant_id IS NOT NULL OR expires_at IS NOT NULL)
      AND grant_id IS NOT DISTINCT FROM $2
    FOR UPDATE
), freed AS (
    UPDATE rowlock_lock l
    SET ",
    freed!(),
    "
    FROM held h
    WHERE l.name = h.name
), forced AS (
    UPDATE rowlock_session s SET forced = forced + 1 FROM held h WHERE s.id = h.session_id
)
SELECT",
    row_columns!(),
    "
FROM held l LEFT JOIN rowlock_session s ON s.id = l.session_id"
);

/// The row was freed; it has the grant; it is free, with the grant's fence; its grant is live; its waiters; and the
/// setting.
type ReleaseColumns = (bool, bool, bool, Option<bool>, i64, String);

#[async_trait]
impl LeaseStore for PgConnection {
    async fn lease_take_once(&mut self, all: &[TakeParams]) -> Result<Vec<TakeOutcome>, Fault> {
        if let [params] = all {
            let fence = query_scalar(TAKE_ONE)
                .bind(params.name.as_bytes())
                .bind(params.grant_id)
                .bind(to_micros(params.ttl))
                .bind(&*params.holder)
                .bind(params.session)
                .fetch_optional(&mut *self)
                .await?;
            return match fence {
                Some(fence) => Ok(vec![TakeOutcome::Granted { fence }]),
                None => take(self, all).await,
            };
        }
        let fences = exchange(self, &[], all).await?.fences;
        let left = left(all, fences.iter().map(Option::is_none));
        Ok(granted(fences, take(self, &left).await?))
    }

    async fn lease_renew(&mut self, all: &[RenewParams]) -> Result<Vec<RenewOutcome>, Fault> {
        let rows: Vec<(i64, i64)> = query_as(RENEW)
            .bind(each(all, |a| a.name.as_bytes()))
            .bind(each(all, |a| a.grant_id))
            .bind(each(all, |a| to_micros(a.ttl)))
            .fetch_all(self)
            .await?;
        let mut renewed = vec![RenewOutcome::Gone; all.len()];
        for (number, left) in rows {
            // Ordinality counts from one.
            let place = usize::try_from(number - 1).ok();
            if let Some(renewed) = place.and_then(|place| renewed.get_mut(place)) {
                *renewed = RenewOutcome::Live {
                    remaining: micros(left),
                };
            }
        }
        Ok(renewed)
    }

    async fn lease_exchange(
        &mut self,
        releases: &[ReleaseParams],
        takes: &[TakeParams],
    ) -> Result<(Vec<FreeOutcome>, Vec<TakeOutcome>), Fault> {
        let is_lock = |params: &ReleaseParams| params.name.of_permit().is_none();
        let locks: Vec<&ReleaseParams> = releases.iter().filter(|params| is_lock(params)).collect();
        let done = exchange(self, &locks, takes).await?;

        let mut freed = done.freed.into_iter();
        let freed = releases
            .iter()
            .map(|params| is_lock(params) && freed.next() == Some(true));
        let freed: Vec<bool> = freed.collect();
        let freed = self.lease_release_rest(releases, &freed).await?;

        let busy = left(takes, done.fences.iter().map(Option::is_none));
        let taken = take(self, &busy).await?;
        let taken = self.lease_take_rest(&busy, taken).await?;
        Ok((freed, granted(done.fences, taken)))
    }

    async fn lease_release_locks(
        &mut self,
        all: &[ReleaseParams],
    ) -> Result<Vec<FreeOutcome>, Fault> {
        if let [params] = all {
            let one: Option<(bool, String)> = query_as(RELEASE_ONE)
                .bind(params.name.as_bytes())
                .bind(params.grant_id)
                .fetch_optional(&mut *self)
                .await?;
            match one {
                Some((false, _)) => return Ok(vec![FreeOutcome::Released]),
                Some((true, _)) => return Ok(vec![release::pass_on(self, params).await?]),
                None => {}
            }
        }
        let rows: Vec<ReleaseColumns> = query_as(RELEASE)
            .bind(each(all, |a| a.name.as_bytes()))
            .bind(each(all, |a| a.grant_id))
            .bind(each(all, |a| a.fence))
            .fetch_all(&mut *self)
            .await?;
        let (mut outcomes, mut awaited) = (Vec::with_capacity(all.len()), Vec::new());
        for (place, (freed, mine, was_free, live, waiters, _)) in rows.into_iter().enumerate() {
            if !freed && mine && live == Some(true) && waiters > 0 {
                awaited.push(place);
            }
            outcomes.push(match (freed, mine, live) {
                (true, ..) => FreeOutcome::Released,
                (false, true, Some(true)) => FreeOutcome::Locked,
                (false, true, _) => FreeOutcome::Expired,
                (false, false, _) if was_free => FreeOutcome::WasFree,
                (false, false, _) => FreeOutcome::Superseded,
            });
        }
        release::pass_all_on(self, all, awaited, &mut outcomes).await?;
        Ok(outcomes)
    }

    /// Limits the wait for the row on the server. Otherwise the server would go on after the caller has gone, and free
    /// the name minutes later, whatever holder it has then.
    async fn lease_force_release(
        &mut self,
        name: &Name,
        seen: Option<Uuid>,
        limit: Duration,
    ) -> Result<Option<LockRow>, Fault> {
        let mut tx = sqlx::Connection::begin(self).await?;
        query("SELECT set_config('lock_timeout', $1, true)")
            .bind((limit / 2).as_millis().to_string())
            .execute(&mut *tx)
            .await?;
        let held = query_as(FORCE_RELEASE)
            .bind(name.as_bytes())
            .bind(seen)
            .fetch_optional(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(held)
    }
}

/// Grants leases, makes missing rows, and explains busy names.
async fn take(conn: &mut PgConnection, all: &[TakeParams]) -> Result<Vec<TakeOutcome>, Fault> {
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let rows = query(TAKE)
        .bind(each(all, |a| a.name.as_bytes()))
        .bind(each(all, |a| a.grant_id))
        .bind(each(all, |a| to_micros(a.ttl)))
        .bind(each(all, |a| &*a.holder))
        .bind(each(all, |a| a.session))
        .fetch_all(conn)
        .await?;
    let taken: Result<_, sqlx::Error> = rows.iter().map(taken).collect();
    Ok(taken?)
}

/// The asks that are left.
fn left<A: Clone>(all: &[A], is_left: impl Iterator<Item = bool>) -> Vec<A> {
    let all = all.iter().zip(is_left).filter(|(_, is_left)| *is_left);
    all.map(|(params, _)| params.clone()).collect()
}

/// The outcome of each ask: a grant with its fence, or else the next one of the outcomes of those that were left.
fn granted(fences: Vec<Option<i64>>, others: Vec<TakeOutcome>) -> Vec<TakeOutcome> {
    let mut others = others.into_iter();
    let each = fences.into_iter().map(|fence| match fence {
        Some(fence) => TakeOutcome::Granted { fence },
        None => others.next().unwrap_or(TakeOutcome::Busy(None)),
    });
    each.collect()
}
