//! Lease locks: the statements.
//!
//! A statement outside a transaction takes the write lock before it reads the clock, so the clock is never from before
//! the wait. The clock stands still within a statement and counts whole milliseconds: an expiry is set one later, and
//! the time left is reported as one less. A fence is the end of its millisecond. So it is greater than the fence of
//! every earlier transaction, even of one that was rolled back (`in_tx.rs` counts in microseconds).
//!
//! A statement that writes is always read to its end (`fetch_all`, `execute`): the commit comes after the last row,
//! and sqlx drops the commit's error when the caller asks for one row only.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::grant_rule::{freed, is_free, may_grant, next_fence};
use super::lock_row::{read, row_columns, row_ends};
use super::writing::in_a_transaction;
use crate::model::Name;
use crate::store::driver::{json, write_turn};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::lease::{LeaseStore, RenewOutcome, RenewParams, TakeOutcome, TakeParams};
use crate::store::verbs::release;
use crate::store::verbs::release::{FreeOutcome, ReleaseParams};
use crate::store::verbs::row::{LockRow, Rows};
use crate::store::verbs::time::{micros, to_micros};

/// Grants what the SELECT in it asks for, where the name is free. Its rows have the names and the fences.
macro_rules! take {
    ($asks:literal) => {
        concat!(
            "
INSERT INTO rowlock_lock (name, grant_id, fence, holder, acquired_at, expires_at, session_id)
",
            $asks,
            "(SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now
WHERE ",
            may_grant!(),
            "
ON CONFLICT (name) DO UPDATE
SET grant_id = excluded.grant_id,
    fence = ",
            next_fence!("excluded.fence"),
            ",
    holder = excluded.holder,
    acquired_at = excluded.acquired_at,
    expires_at = excluded.expires_at,
    session_id = excluded.session_id
WHERE ",
            is_free!("excluded.acquired_at"),
            " AND waiters = 0 AND capacity = 0
RETURNING name, fence"
        )
    };
}

const TAKE: &str = take!(
    "SELECT unhex(a.value ->> 0), unhex(a.value ->> 1), now.us + 1000, a.value ->> 3,
       now.us, now.us + (a.value ->> 2) + 1000, unhex(a.value ->> 4)
FROM json_each(?1) a, "
);

/// [`TAKE`] for a single ask.
const TAKE_ONE: &str =
    take!("SELECT ?1, ?2, now.us + 1000, ?4, now.us, now.us + ?3 + 1000, ?5 FROM ");

const RENEW: &str = "
UPDATE rowlock_lock
SET expires_at = max(expires_at, ask.us + ask.ttl + 1000)
FROM (
    SELECT unhex(a.value ->> 0) AS name, unhex(a.value ->> 1) AS grant_id,
           a.value ->> 2 AS ttl,
           CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us
    FROM json_each(?1) a
) ask
WHERE rowlock_lock.name = ask.name AND rowlock_lock.grant_id = ask.grant_id
  AND rowlock_lock.expires_at > ask.us
RETURNING name, expires_at - CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 - 1000";

/// Frees the names of these asks that have no waiters. Its rows have the names, and no fences.
macro_rules! release {
    ($asks:literal) => {
        concat!(
            "
UPDATE rowlock_lock
SET ",
            freed!(),
            "
FROM (",
            $asks,
            ") ask
WHERE rowlock_lock.name = ask.name AND rowlock_lock.grant_id = ask.grant_id
  AND rowlock_lock.expires_at > CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
  AND rowlock_lock.waiters = 0
RETURNING name, NULL"
        )
    };
}

const RELEASE: &str = release!(
    "SELECT unhex(a.value ->> 0) AS name, unhex(a.value ->> 1) AS grant_id FROM json_each(?1) a"
);

/// [`RELEASE`] for a single ask.
const RELEASE_ONE: &str = release!("SELECT ?1 AS name, ?2 AS grant_id");

/// A row with a grant, live or expired, or a damaged row.
const HELD: &str = concat!(
    "
SELECT",
    row_columns!(),
    "
FROM rowlock_lock l LEFT JOIN rowlock_session s ON s.id = l.session_id
WHERE l.name = ?1 AND (l.grant_id IS NOT NULL OR l.expires_at IS NOT NULL) AND l.grant_id IS ?2"
);

const FREE: &str = concat!(
    "
UPDATE rowlock_lock
SET ",
    freed!(),
    "
WHERE name = ?1"
);

/// The session's client looks at its locks then.
const FORCED: &str = "UPDATE rowlock_session SET forced = forced + 1 WHERE id = ?1";

#[async_trait]
impl LeaseStore for SqliteConnection {
    async fn lease_take_once(&mut self, all: &[TakeParams]) -> Result<Vec<TakeOutcome>, Fault> {
        let done = grant(self, all).await?;
        let mut rows = rest(self, all.iter().map(|params| &params.name), &done).await?;
        Ok(taken(all, &done, &mut rows))
    }

    async fn lease_renew(&mut self, all: &[RenewParams]) -> Result<Vec<RenewOutcome>, Fault> {
        let _turn = write_turn::turn().await;
        let kept: Vec<(Vec<u8>, i64)> = sqlx::query_as(RENEW)
            .bind(json::renewals(all))
            .fetch_all(self)
            .await?;
        let kept: HashMap<Vec<u8>, i64> = kept.into_iter().collect();
        Ok(all
            .iter()
            .map(|params| match kept.get(params.name.as_bytes()) {
                Some(&left) => RenewOutcome::Live {
                    remaining: micros(left),
                },
                None => RenewOutcome::Gone,
            })
            .collect())
    }

    async fn lease_release_locks(
        &mut self,
        all: &[ReleaseParams],
    ) -> Result<Vec<FreeOutcome>, Fault> {
        let done = free(self, all).await?;
        let rows = rest(self, all.iter().map(|params| &params.name), &done).await?;
        freed(self, all, &done, &rows).await
    }

    async fn lease_force_release(
        &mut self,
        name: &Name,
        seen: Option<Uuid>,
        _limit: Duration,
    ) -> Result<Option<LockRow>, Fault> {
        in_a_transaction(self, async |conn| {
            let held: Option<LockRow> = sqlx::query_as(HELD)
                .bind(name.as_bytes())
                .bind(seen)
                .fetch_optional(&mut *conn)
                .await?;
            if let Some(held) = &held {
                let free = sqlx::query(FREE).bind(name.as_bytes());
                free.execute(&mut *conn).await?;
                let forced = sqlx::query(FORCED).bind(held.session);
                forced.execute(conn).await?;
            }
            Ok(held)
        })
        .await
    }
}

/// The names that a statement has granted, with their fences, and those that it has freed.
type Done = HashMap<Vec<u8>, Option<i64>>;

async fn grant(conn: &mut SqliteConnection, all: &[TakeParams]) -> Result<Done, sqlx::Error> {
    let _turn = write_turn::turn().await;
    let take = match all {
        [params] => sqlx::query_as(TAKE_ONE)
            .bind(params.name.as_bytes())
            .bind(params.grant_id)
            .bind(to_micros(params.ttl))
            .bind(&*params.holder)
            .bind(params.session),
        all => sqlx::query_as(TAKE).bind(json::takes(all)),
    };
    Ok(take.fetch_all(conn).await?.into_iter().collect())
}

async fn free(conn: &mut SqliteConnection, all: &[ReleaseParams]) -> Result<Done, sqlx::Error> {
    let _turn = write_turn::turn().await;
    let release = match all {
        [params] => sqlx::query_as(RELEASE_ONE)
            .bind(params.name.as_bytes())
            .bind(params.grant_id),
        all => sqlx::query_as(RELEASE).bind(json::releases(all)),
    };
    Ok(release.fetch_all(conn).await?.into_iter().collect())
}

/// The rows of the names with which nothing was done.
async fn rest<'a>(
    conn: &mut SqliteConnection,
    names: impl Iterator<Item = &'a Name>,
    done: &Done,
) -> Result<Rows, sqlx::Error> {
    let rest: Vec<&Name> = names
        .filter(|name| !done.contains_key(name.as_bytes()))
        .collect();
    if rest.is_empty() {
        return Ok(Rows::new());
    }
    read(conn, rest.into_iter()).await
}

fn taken(all: &[TakeParams], done: &Done, rows: &mut Rows) -> Vec<TakeOutcome> {
    let taken = |params: &TakeParams| match done.get(params.name.as_bytes()) {
        Some(&Some(fence)) => TakeOutcome::Granted { fence },
        _ => TakeOutcome::busy(rows.remove(params.name.as_bytes())),
    };
    all.iter().map(taken).collect()
}

/// The outcomes of releases. Passes on the names that have waiters.
async fn freed(
    conn: &mut SqliteConnection,
    all: &[ReleaseParams],
    done: &Done,
    rows: &Rows,
) -> Result<Vec<FreeOutcome>, Fault> {
    let mut outcomes = Vec::with_capacity(all.len());
    for params in all {
        let name = params.name.as_bytes();
        let row = rows.get(name);
        outcomes.push(if done.contains_key(name) {
            FreeOutcome::Released
        } else if row.is_some_and(|row| params.is_awaited(row)) {
            release::pass_on(conn, params).await?
        } else {
            params.freed(row)
        });
    }
    Ok(outcomes)
}
