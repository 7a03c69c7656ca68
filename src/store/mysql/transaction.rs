//! Locks in the caller's transaction: the statements.
//!
//! The session is the caller's: any isolation level, any time zone. Times here are in UTC whatever the zone
//! (`UTC_TIMESTAMP(6)` is from when the statement began; the difference of two local times brings it up to
//! now).
//!
//! Each of these is one text with several statements and literals in hexadecimal, in one round trip:
//!
//! - A savepoint is made and released first. In a transaction that is over, releasing it fails: it was rolled
//!   back by a deadlock, or committed by a DDL statement ("Statements That Cause an Implicit Commit"), and
//!   sqlx would not know.
//! - The rows to be locked are found by a derived table that does not lock: under REPEATABLE READ, the
//!   default, `InnoDB` keeps the lock of every row that a locking read looks at, also of a row with a live
//!   lease, which could then not be renewed; and keeps a lock of the gap where a row is missing, on which
//!   other inserts deadlock.

use std::fmt::Write;
use std::time::Duration;

use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySqlConnection, Row};
use uuid::Uuid;

use crate::Name;
use crate::store::fault::{Fault, FaultKind};
use crate::store::{LockRow, PinAsk, Pinned, Told, ToldColumns, TxAsk, TxTaken, TxWaited};

const ROW: &str = "
SELECT d.id, l.name, l.owner, l.fence, l.holds, l.holder,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.acquired_at),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.expires_at),
       TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), l.expires_at)
FROM rowlock_database d LEFT JOIN rowlock_lock l ON l.name = ?";

/// FOR SHARE: several transactions of one holder may pin its lease at a time. (MariaDB knows it as LOCK IN
/// SHARE MODE, and reads `/*M! … */` alone.)
fn pin_text(ask: &PinAsk) -> String {
    let (name, owner) = (hex(ask.name.as_bytes()), hex(ask.owner.as_bytes()));
    format!(
        "SAVEPOINT rowlock_here; RELEASE SAVEPOINT rowlock_here; \
         SELECT (SELECT id FROM rowlock_database); \
         SELECT expires_at > UTC_TIMESTAMP(6)
                    + INTERVAL TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) MICROSECOND
         FROM rowlock_lock WHERE name = {name} AND owner = {owner} LIMIT 1
         /*!80000 FOR SHARE */ /*M! LOCK IN SHARE MODE */ SKIP LOCKED"
    )
}

/// `wanted` is a condition on names and fences.
fn find_text(wanted: &str) -> String {
    format!(
        "SAVEPOINT rowlock_here; RELEASE SAVEPOINT rowlock_here; \
         SELECT (SELECT id FROM rowlock_database); \
         SELECT l.name, l.fence,
                l.expires_at IS NULL OR l.expires_at <= UTC_TIMESTAMP(6)
                    + INTERVAL TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) MICROSECOND,
                TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)
                    + INTERVAL TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) MICROSECOND)
         FROM (
             SELECT name FROM rowlock_lock
             WHERE ({wanted}) AND (expires_at IS NULL OR expires_at <= UTC_TIMESTAMP(6))
             ORDER BY name LIMIT 1000000
         ) f
         STRAIGHT_JOIN rowlock_lock l FORCE INDEX (PRIMARY) ON l.name = f.name
         FOR UPDATE /*!80000 OF l */ SKIP LOCKED"
    )
}

/// Like [`find_text`], for rows that are known to be there and free: a transaction's snapshot may say
/// otherwise, a locking read does not.
fn find_sure_text(names: &str) -> String {
    format!(
        "SAVEPOINT rowlock_here; RELEASE SAVEPOINT rowlock_here; \
         SELECT (SELECT id FROM rowlock_database); \
         SELECT name, fence,
                expires_at IS NULL OR expires_at <= UTC_TIMESTAMP(6)
                    + INTERVAL TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) MICROSECOND,
                TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)
                    + INTERVAL TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) MICROSECOND)
         FROM rowlock_lock FORCE INDEX (PRIMARY)
         WHERE name IN ({names})
         ORDER BY name
         FOR UPDATE SKIP LOCKED"
    )
}

fn grant_text(name: &Name, fence: i64) -> String {
    let name = hex(name.as_bytes());
    format!(
        "UPDATE rowlock_lock
         SET fence = {fence}, owner = NULL, holds = 0, holder = NULL, acquired_at = NULL,
             expires_at = NULL
         WHERE name = {name}; "
    )
}

/// MySQL takes the limit from the hint, in milliseconds; MariaDB from the prefix, in seconds.
fn wait_text(names: &str, limit: Option<Duration>) -> String {
    let limit = limit.map_or(String::new(), |limit| {
        let ms = limit.as_millis().max(1);
        let (seconds, rest) = (ms / 1_000, ms % 1_000);
        format!(
            "/*M! SET STATEMENT max_statement_time = {seconds}.{rest:03} FOR */ \
             SELECT /*+ MAX_EXECUTION_TIME({ms}) */"
        )
    });
    let select = if limit.is_empty() { "SELECT" } else { &limit };
    format!(
        "{select} name FROM rowlock_lock FORCE INDEX (PRIMARY)
         WHERE name IN ({names}) ORDER BY name FOR UPDATE"
    )
}

pub(super) async fn pin(conn: &mut MySqlConnection, ask: &PinAsk) -> Result<Told<Pinned>, Fault> {
    let rows = sqlx::raw_sql(AssertSqlSafe(pin_text(ask)))
        .fetch_all(conn)
        .await?;
    let mut rows = rows.into_iter();
    let database = database(rows.next())?;
    let live: Option<i64> = rows.next().map(|row| row.try_get(0)).transpose()?;
    let found = match live {
        Some(1) => Pinned::Live,
        Some(_) => Pinned::Expired,
        None => Pinned::Missed,
    };
    Ok(Told { database, found })
}

pub(super) async fn take(
    conn: &mut MySqlConnection,
    asks: &[TxAsk],
    sure: bool,
) -> Result<Told<TxTaken>, Fault> {
    let find = if sure {
        find_sure_text(&list(asks.iter().map(|ask| &ask.name)))
    } else {
        find_text(&wanted(asks))
    };
    let rows = sqlx::raw_sql(AssertSqlSafe(find))
        .fetch_all(&mut *conn)
        .await?;
    let mut rows = rows.into_iter();
    let database = database(rows.next())?;
    let mut found: Vec<Found> = Vec::new();
    for row in rows {
        found.push(Found {
            name: row.try_get(0)?,
            fence: row.try_get(1)?,
            free: row.try_get::<i64, _>(2)? == 1,
            now: row.try_get(3)?,
        });
    }
    if found.iter().any(|row| !row.free) {
        let found = TxTaken::Blocking;
        return Ok(Told { database, found });
    }
    let (mut grants, mut perhaps) = (Vec::new(), Vec::new());
    for ask in asks {
        let row = found.iter().find(|row| row.name == ask.name.as_bytes());
        let wanted = |row: &&Found| ask.version.is_none_or(|version| version == row.fence);
        let Some(row) = row.filter(wanted) else {
            let found = TxTaken::Missed(None);
            return Ok(Told { database, found });
        };
        if ask.before == Some(row.fence) {
            perhaps.push(ask.name.clone());
        }
        grants.push((&ask.name, row.now.max(row.fence + 1)));
    }
    if !perhaps.is_empty() {
        let found = TxTaken::Perhaps(perhaps);
        return Ok(Told { database, found });
    }
    let text: String = grants
        .iter()
        .map(|(name, fence)| grant_text(name, *fence))
        .collect();
    sqlx::raw_sql(AssertSqlSafe(text)).execute(conn).await?;
    let fences = grants.into_iter().map(|(_, fence)| fence).collect();
    Ok(Told {
        database,
        found: TxTaken::Granted(fences),
    })
}

/// The first row of each text.
fn database(row: Option<MySqlRow>) -> Result<Option<Uuid>, sqlx::Error> {
    row.map_or(Ok(None), |row| row.try_get(0))
}

/// A row that is locked now.
struct Found {
    name: Vec<u8>,
    fence: i64,
    free: bool,
    /// Microseconds of the clock, read when the row was locked.
    now: i64,
}

pub(super) async fn wait(
    conn: &mut MySqlConnection,
    names: &[Name],
    limit: Option<Duration>,
) -> Result<TxWaited, Fault> {
    let text = wait_text(&list(names.iter()), limit);
    match sqlx::raw_sql(AssertSqlSafe(text)).execute(conn).await {
        Ok(_) => Ok(TxWaited::Locked),
        Err(error) => match Fault::from(error) {
            // ER_LOCK_WAIT_TIMEOUT ends the statement only: whoever has time left asks again.
            fault if fault.kind == FaultKind::LockTimeout => Ok(TxWaited::TimedOut),
            fault if fault.kind == FaultKind::Interrupted && limit.is_some() => {
                Ok(TxWaited::TimedOut)
            }
            fault => Err(fault),
        },
    }
}

pub(super) async fn row(
    conn: &mut MySqlConnection,
    name: &Name,
) -> Result<Told<Option<LockRow>>, Fault> {
    let row: Option<ToldColumns> = sqlx::query_as(ROW)
        .bind(name.as_bytes())
        .fetch_optional(conn)
        .await?;
    Ok(row.into())
}

fn wanted(asks: &[TxAsk]) -> String {
    let one = |ask: &TxAsk| {
        let name = hex(ask.name.as_bytes());
        match ask.version {
            None => format!("name = {name}"),
            Some(version) => format!("name = {name} AND fence = {version}"),
        }
    };
    asks.iter().map(one).collect::<Vec<_>>().join(" OR ")
}

fn list<'a>(names: impl Iterator<Item = &'a Name>) -> String {
    let names: Vec<String> = names.map(|name| hex(name.as_bytes())).collect();
    names.join(", ")
}

/// A literal.
fn hex(bytes: &[u8]) -> String {
    let mut hex = String::from("x'");
    for byte in bytes {
        let _ = write!(hex, "{byte:02x}");
    }
    hex + "'"
}
