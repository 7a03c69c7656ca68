//! Lease locks: the statements.
//!
//! MySQL has no RETURNING: one statement changes the rows, and a second one reads them back in the same round trip
//! ([`write_and_read`]). A renewal reads back only when it found fewer rows than it asked for: sqlx asks the server to
//! count the rows found, not those changed (`CLIENT_FOUND_ROWS`).
//!
//! A derived table finds the rows to change and locks them with SKIP LOCKED, in the order of the asks (by name). A
//! plain UPDATE would wait for locked rows. LIMIT keeps the derived table from being merged into the UPDATE.
//! STRAIGHT_JOIN and FORCE INDEX pin the plan to look-ups by primary key. MySQL refuses a locking clause that covers
//! JSON_TABLE, and MariaDB does not know OF: hence the version comment, which MariaDB skips (its manual, "Comment
//! Syntax").
//!
//! SET runs from left to right: an expression that reads a column stands before the one that overwrites it. `NOW(6)`
//! would be the time at which the statement began; `SYSDATE(6)` is the time at which it is read.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, MySqlConnection};
use uuid::Uuid;

use super::exchange::{exchange, release_all};
use super::grant_rule::{freed, may_grant};
use super::lease_text::leanest_take_text;
use super::lock_row::{found, is_duplicate, read, read_text, row_columns, row_ends};
use super::statement::{fill, quoted, write_and_read};
use crate::model::Name;
use crate::store::driver::json;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::lease::{LeaseStore, RenewOutcome, RenewParams, TakeOutcome, TakeParams};
use crate::store::verbs::release;
use crate::store::verbs::release::{FreeOutcome, ReleaseParams};
use crate::store::verbs::row::{LockRow, Rows};
use crate::store::verbs::time::micros;

/// For names without a row. A duplicate raises an error, which is caught; ON DUPLICATE KEY UPDATE would deadlock on
/// gaps.
const MAKE: &str = concat!(
    "
INSERT INTO rowlock_lock (name, grant_id, fence, holder, acquired_at, expires_at, session_id)
SELECT UNHEX(a.name), UNHEX(a.grant_id), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)),
       a.holder, SYSDATE(6), SYSDATE(6) + INTERVAL a.ttl MICROSECOND, UNHEX(a.session_id)
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    name       VARCHAR(576) CHARACTER SET ascii   PATH '$[0]',
    grant_id   CHAR(32)     CHARACTER SET ascii   PATH '$[1]',
    ttl        BIGINT                             PATH '$[2]',
    holder     VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[3]',
    session_id CHAR(32)     CHARACTER SET ascii   PATH '$[4]'
)) a WHERE ",
    may_grant!()
);

const RENEW: &str = "
UPDATE (
    SELECT f.name, a.ttl
    FROM JSON_TABLE(?, '$[*]' COLUMNS (
        name     VARCHAR(576) CHARACTER SET ascii PATH '$[0]',
        grant_id CHAR(32)     CHARACTER SET ascii PATH '$[1]',
        ttl      BIGINT                           PATH '$[2]'
    )) a
    STRAIGHT_JOIN rowlock_lock f FORCE INDEX (PRIMARY) ON f.name = UNHEX(a.name)
    WHERE f.grant_id = UNHEX(a.grant_id) AND f.expires_at > SYSDATE(6)
    LIMIT 1000000
    FOR UPDATE /*!80000 OF f */ SKIP LOCKED
) t
STRAIGHT_JOIN rowlock_lock l FORCE INDEX (PRIMARY) ON l.name = t.name
SET l.expires_at = GREATEST(l.expires_at, SYSDATE(6) + INTERVAL t.ttl MICROSECOND)";

const RELEASE: &str = concat!(
    "
UPDATE (
    SELECT f.name
    FROM JSON_TABLE(?, '$[*]' COLUMNS (
        name     VARCHAR(576) CHARACTER SET ascii PATH '$[0]',
        grant_id CHAR(32)     CHARACTER SET ascii PATH '$[1]'
    )) a
    STRAIGHT_JOIN rowlock_lock f FORCE INDEX (PRIMARY) ON f.name = UNHEX(a.name)
    WHERE f.grant_id = UNHEX(a.grant_id) AND f.expires_at > SYSDATE(6) AND f.waiters = 0
    LIMIT 1000000
    FOR UPDATE /*!80000 OF f */ SKIP LOCKED
) t
STRAIGHT_JOIN rowlock_lock l FORCE INDEX (PRIMARY) ON l.name = t.name
SET ",
    freed!("l.")
);

/// [`RELEASE`] for a single ask.
const RELEASE_ONE: &str = concat!(
    "
UPDATE (
    SELECT f.name FROM rowlock_lock f FORCE INDEX (PRIMARY)
    WHERE f.name = ? AND f.grant_id = ? AND f.expires_at > SYSDATE(6) AND f.waiters = 0
    LIMIT 1
    FOR UPDATE SKIP LOCKED
) t
STRAIGHT_JOIN rowlock_lock l FORCE INDEX (PRIMARY) ON l.name = t.name
SET ",
    freed!("l.")
);

/// Locks the row of a name that has a grant, or whose row is damaged.
const LOCK_HELD: &str = concat!(
    "
SELECT",
    row_columns!("SYSDATE(6)"),
    "
FROM rowlock_lock l LEFT JOIN rowlock_session s ON s.id = l.session_id
WHERE l.name = ? AND (l.grant_id IS NOT NULL OR l.expires_at IS NOT NULL) AND l.grant_id <=> ?
FOR UPDATE"
);

const FREE: &str = concat!(
    "
UPDATE rowlock_lock
SET ",
    freed!(""),
    "
WHERE name = ?"
);

/// The session's client looks at its locks then.
const FORCED: &str = "UPDATE rowlock_session SET forced = forced + 1 WHERE id = ?";

fn renew_text(all: &[RenewParams]) -> String {
    fill(RENEW, &[quoted(&json::renewals(all))])
}

#[async_trait]
impl LeaseStore for MySqlConnection {
    async fn lease_take_once(&mut self, all: &[TakeParams]) -> Result<Vec<TakeOutcome>, Fault> {
        let (take, read) = leanest_take_text(all);
        let rows = found(&write_and_read(self, &take, &read).await?)?;
        Ok(taken(self, all, rows).await?)
    }

    async fn lease_renew(&mut self, all: &[RenewParams]) -> Result<Vec<RenewOutcome>, Fault> {
        let renew = sqlx::raw_sql(AssertSqlSafe(renew_text(all)));
        let done = renew.execute(&mut *self).await?;
        if done.rows_affected() == all.len() as u64 {
            let live = |params: &RenewParams| RenewOutcome::Live {
                remaining: params.ttl,
            };
            return Ok(all.iter().map(live).collect());
        }
        let rows = read(self, all.iter().map(|params| &params.name)).await?;
        Ok(all
            .iter()
            .map(|params| match rows.get(params.name.as_bytes()) {
                Some(row) if row.is_of(params.grant_id) && row.is_live() => RenewOutcome::Live {
                    remaining: micros(row.remaining.unwrap_or(0)),
                },
                _ => RenewOutcome::Gone,
            })
            .collect())
    }

    async fn lease_exchange(
        &mut self,
        releases: &[ReleaseParams],
        takes: &[TakeParams],
    ) -> Result<(Vec<FreeOutcome>, Vec<TakeOutcome>), Fault> {
        let is_lean =
            |params: &ReleaseParams| params.name.of_permit().is_none() && !params.was_queued;
        let lean: Vec<&ReleaseParams> = releases.iter().filter(|params| is_lean(params)).collect();
        let Some(done) = exchange(self, &lean, takes).await? else {
            let freed = self.lease_release(releases).await?;
            return Ok((freed, self.lease_take(takes).await?));
        };

        let freed = releases.iter().map(|params| done.freed && is_lean(params));
        let freed: Vec<bool> = freed.collect();
        let freed = self.lease_release_rest(releases, &freed).await?;

        let taken = taken(self, takes, done.rows).await?;
        Ok((freed, self.lease_take_rest(takes, taken).await?))
    }

    async fn lease_release_locks(
        &mut self,
        all: &[ReleaseParams],
    ) -> Result<Vec<FreeOutcome>, Fault> {
        if all.len() > 1
            && !all.iter().any(|params| params.was_queued)
            && release_all(self, all).await?
        {
            return Ok(vec![FreeOutcome::Released; all.len()]);
        }
        let names = || all.iter().map(|params| &params.name);
        let release = match all {
            [params] => sqlx::query(RELEASE_ONE)
                .bind(params.name.as_bytes())
                .bind(params.grant_id),
            _ => sqlx::query(RELEASE).bind(json::releases(all)),
        };
        // The statement for a batch reports only how many rows it changed. A lease that was live before it and free
        // after it was freed by it.
        let before = match all {
            [_] => Rows::new(),
            _ => read(self, names()).await?,
        };
        let done = release.execute(&mut *self).await?;
        let changed = usize::try_from(done.rows_affected()).unwrap_or(usize::MAX);
        if changed == all.len() {
            return Ok(vec![FreeOutcome::Released; all.len()]);
        }
        let after = read(self, names()).await?;
        let freed = |params: &ReleaseParams| {
            let was_held = params.freed(before.get(params.name.as_bytes())) == FreeOutcome::Locked;
            match params.freed(after.get(params.name.as_bytes())) {
                FreeOutcome::WasFree | FreeOutcome::Superseded if was_held => FreeOutcome::Released,
                other => other,
            }
        };
        let mut outcomes: Vec<FreeOutcome> = all.iter().map(freed).collect();
        let is_awaited = |place: &usize| {
            let row = after.get(all[*place].name.as_bytes());
            row.is_some_and(|row| all[*place].is_awaited(row))
        };
        let awaited = (0..all.len()).filter(is_awaited).collect();
        release::pass_all_on(self, all, awaited, &mut outcomes).await?;
        Ok(outcomes)
    }

    /// Waits for the row, because the caller of a forced release wants it done.
    async fn lease_force_release(
        &mut self,
        name: &Name,
        seen: Option<Uuid>,
        _limit: Duration,
    ) -> Result<Option<LockRow>, Fault> {
        let mut tx = sqlx::Connection::begin(self).await?;
        let held: Option<LockRow> = sqlx::query_as(LOCK_HELD)
            .bind(name.as_bytes())
            .bind(seen)
            .fetch_optional(&mut *tx)
            .await?;
        if let Some(held) = &held {
            let free = sqlx::query(FREE).bind(name.as_bytes());
            free.execute(&mut *tx).await?;
            let forced = sqlx::query(FORCED).bind(held.session);
            forced.execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(held)
    }
}

/// The outcomes of asks, by the rows that were read after the statement that takes. Makes the rows that are missing.
async fn taken(
    conn: &mut MySqlConnection,
    all: &[TakeParams],
    mut rows: Rows,
) -> Result<Vec<TakeOutcome>, sqlx::Error> {
    let missing: Vec<&TakeParams> = all
        .iter()
        .filter(|params| !rows.contains_key(params.name.as_bytes()))
        .collect();
    if !missing.is_empty() {
        rows.extend(make(conn, &missing).await?);
    }
    let taken = all
        .iter()
        .map(|params| match rows.remove(params.name.as_bytes()) {
            Some(row) if row.is_of(params.grant_id) => TakeOutcome::Granted { fence: row.fence },
            row => TakeOutcome::busy(row),
        });
    Ok(taken.collect())
}

/// Inserts all rows at once; one by one, when another session inserts one of them at the same time.
async fn make(conn: &mut MySqlConnection, missing: &[&TakeParams]) -> Result<Rows, sqlx::Error> {
    match make_together(conn, missing).await {
        Err(error) if is_duplicate(&error) => {}
        other => return other,
    }
    let mut rows = Rows::new();
    for params in missing {
        match make_together(conn, &[*params]).await {
            Err(error) if is_duplicate(&error) => {
                rows.extend(read(conn, std::iter::once(&params.name)).await?);
            }
            made => rows.extend(made?),
        }
    }
    Ok(rows)
}

async fn make_together(
    conn: &mut MySqlConnection,
    missing: &[&TakeParams],
) -> Result<Rows, sqlx::Error> {
    let make = fill(MAKE, &[quoted(&json::takes(missing.iter().copied()))]);
    let read = read_text(missing.iter().map(|params| &params.name));
    found(&write_and_read(conn, &make, &read).await?)
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
