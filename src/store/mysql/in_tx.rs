//! Locks in the caller's transaction: the statements.
//!
//! The session is the caller's, with any isolation level and any time zone. Times here are in UTC whatever the zone
//! ([`now!`](super::statement)).
//!
//! A call sends one text of several statements, with literals in hexadecimal, in one round trip (on a cluster
//! [one after the other](super::statement)):
//!
//! - First it makes and releases a savepoint. In a transaction that is over, the release fails: the transaction was
//!   rolled back by a deadlock, or committed by a DDL statement ("Statements That Cause an Implicit Commit").
//! - It reads nothing without a lock before a name is granted. Under REPEATABLE READ, the default, the first such read
//!   fixes the snapshot of all later ones ("Consistent Nonlocking Reads"): the caller's reads after the lock would be
//!   older than the lock. (A pin may read without a lock: its lease is older.)
//! - NOWAIT, not SKIP LOCKED: after a skipped row, `InnoDB` locks the gap, and new names could not be inserted. The
//!   error of NOWAIT leaves the transaction as it was.
//!
//! `InnoDB` keeps the lock of every row that a locking read looks at, even of a row with a live lease, which can then
//! not be renewed. Hence [`TxTaken::Blocking`], and the earlier look from outside.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::mysql::MySqlRow;
use sqlx::{MySqlConnection, Row};
use uuid::Uuid;

use super::grant_rule::{freed, is_free, may_grant};
use super::lock_row::{row_columns, row_ends};
use super::statement::{ALL, NOW, hex, now, rows, rows_and_changes, wait_text};
use crate::model::{FaultKind, Moment, Name};
use crate::store::verbs::fault::{Fault, unlocked};
use crate::store::verbs::in_tx::{
    FURTHEST_AHEAD, InTxStore, PinBy, PinOutcome, PinParams, TxParams, TxReply, TxTaken, TxWaited,
    is_over,
};
use crate::store::verbs::row::LockRow;
use crate::store::verbs::time::micros;

/// MAX returns a row even for an empty table.
const DATABASE: &str = "SELECT MAX(id) FROM rowlock_database LIMIT 1 LOCK IN SHARE MODE";

const ROW: &str = concat!(
    "
SELECT d.id,",
    row_columns!(now!()),
    "
FROM rowlock_database d LEFT JOIN rowlock_lock l ON l.name = ?
LEFT JOIN rowlock_session s ON s.id = l.session_id LIMIT 1"
);

/// FOR SHARE lets several transactions of one holder pin its lease at the same time. (MariaDB spells it LOCK IN SHARE
/// MODE, and alone reads `/*M! … */`.)
///
/// A cluster with several writers certifies a transaction's writes, not its locks. There the pin changes the row, by a
/// microsecond that does not matter. Of this transaction and a takeover through another node, one fails.
fn pin_text(params: &PinParams) -> String {
    let (name, grant_id) = (hex(params.name.as_bytes()), hex(params.grant_id.as_bytes()));
    let (lock, write) = if params.by == PinBy::Write {
        let write = format!(
            "; UPDATE rowlock_lock SET expires_at = expires_at + INTERVAL 1 MICROSECOND
             WHERE name = {name} AND grant_id = {grant_id}"
        );
        ("FOR UPDATE", write)
    } else {
        (
            "/*!80000 FOR SHARE */ /*M! LOCK IN SHARE MODE */",
            String::new(),
        )
    };
    format!(
        "SAVEPOINT rowlock_here; RELEASE SAVEPOINT rowlock_here; \
         SELECT grant_id = {grant_id},
                expires_at > {NOW},
                (SELECT id FROM rowlock_database)
         FROM rowlock_lock FORCE INDEX (PRIMARY) WHERE name = {name}
         LIMIT 1 {lock} NOWAIT{write}"
    )
}

/// Whether the row, which is locked, is that of a lock without a live lease, whose name is not paused.
macro_rules! is_unheld {
    () => {
        concat!("capacity = 0 AND ", is_free!("", now!()))
    };
}

const FREED: &str = freed!("");

const IS_UNHELD: &str = is_unheld!();

/// Whether the row, which is locked, may be granted. The database's row is locked: under REPEATABLE READ a read
/// without a lock would fix the snapshot.
const IS_FREE: &str = concat!(
    is_unheld!(),
    " AND ",
    may_grant!(now!(), " LOCK IN SHARE MODE")
);

/// The time that a quarantine lasts, in microseconds; no row: there is none.
const QUARANTINE: &str = concat!(
    "SELECT TIMESTAMPDIFF(MICROSECOND, ",
    now!(),
    ", q.quarantine_until) FROM rowlock_database q WHERE q.quarantine_until > ",
    now!(),
    " LIMIT 1 LOCK IN SHARE MODE"
);

fn find_text(names: &str) -> String {
    format!(
        "SAVEPOINT rowlock_here; RELEASE SAVEPOINT rowlock_here; \
         SELECT name, fence, {IS_FREE}, {IS_UNHELD}
         FROM rowlock_lock FORCE INDEX (PRIMARY)
         WHERE name IN ({names}) ORDER BY name
         {ALL} FOR UPDATE NOWAIT"
    )
}

/// The clock in microseconds, also after a SLEEP in the same statement.
macro_rules! clock {
    () => {
        concat!("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', ", now!(), ")")
    };
}

/// The next fence of a row that is locked. Waits until the clock has passed the last one, if that is ahead by less
/// than [`FURTHEST_AHEAD`]. A wait that was cut off (KILL QUERY) grants nothing.
macro_rules! fence_after_wait {
    () => {
        concat!(
            "IF(fence + 1 - ",
            clock!(),
            " BETWEEN 1 AND 40000 AND SLEEP(GREATEST(fence + 2 - ",
            clock!(),
            ", 0) / 1000000), 0, GREATEST(fence + 1, ",
            clock!(),
            "))"
        )
    };
}
const _: () = assert!(FURTHEST_AHEAD == 40_000);

/// (Without the index, the server reads a small table whole, and locks all its rows.)
fn grant_text(names: &str) -> String {
    format!(
        "UPDATE rowlock_lock FORCE INDEX (PRIMARY)
         SET fence = {},
             {FREED}
         WHERE name IN ({names}); \
         SELECT fence
         FROM rowlock_lock FORCE INDEX (PRIMARY) WHERE name IN ({names}) ORDER BY name {ALL}",
        fence_after_wait!()
    )
}

/// Finds and grants a lone name, in one round trip. The new fence is made in the first statement, from the row that is
/// locked then: that saves a statement that would read it. (Each statement of a text costs about as much as a round
/// trip on the same machine.)
fn find_and_grant_text(params: &TxParams) -> String {
    let name = hex(params.name.as_bytes());
    let version = params
        .version
        .map_or(String::new(), |fence| format!("AND fence = {fence}"));
    format!(
        "SAVEPOINT rowlock_here; RELEASE SAVEPOINT rowlock_here; \
         SELECT fence, {IS_FREE},
                @rl_fence := IF({IS_FREE}, {}, 0),
                (SELECT id FROM rowlock_database LOCK IN SHARE MODE), {IS_UNHELD}
         FROM rowlock_lock FORCE INDEX (PRIMARY) WHERE name = {name}
         LIMIT 1 FOR UPDATE NOWAIT; \
         UPDATE rowlock_lock
         SET fence = @rl_fence,
             {FREED}
         WHERE name = {name} AND fence < @rl_fence {version} AND {IS_UNHELD}",
        fence_after_wait!()
    )
}

#[async_trait]
impl InTxStore for MySqlConnection {
    async fn tx_pin(&mut self, params: &PinParams) -> Result<TxReply<PinOutcome>, Fault> {
        let row = send(self, pin_text(params))
            .await?
            .and_then(|mut rows| rows.pop());
        let Some(row) = row else {
            return missed(self, PinOutcome::Missed).await;
        };
        let (mine, live): (Option<i64>, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
        let found = match (mine, live) {
            (Some(1), Some(1)) => PinOutcome::Live,
            (Some(1), _) => PinOutcome::Expired,
            _ => PinOutcome::Gone,
        };
        Ok(TxReply::of(database_of(self, &row, 2).await?, found))
    }

    async fn tx_take(&mut self, all: &[TxParams]) -> Result<TxReply<TxTaken>, Fault> {
        if let [params] = all {
            return take_one(self, params).await;
        }
        let names = list(all.iter().map(|params| &params.name));
        let Some(mut rows) = send(self, format!("{}; {DATABASE}", find_text(&names))).await? else {
            return missed(self, TxTaken::Missed(None)).await;
        };
        // A row for each name, then the database's id.
        let is_whole = rows.len() > all.len();
        let Some(last) = rows.pop().filter(|_| is_whole) else {
            return missed(self, TxTaken::NoRow).await;
        };
        let database = last.try_get(0)?;
        let mut found = Vec::new();
        for row in rows {
            found.push(FoundRow {
                name: row.try_get(0)?,
                fence: row.try_get(1)?,
                is_free: row.try_get::<i64, _>(2)? == 1,
                is_unheld: row.try_get::<i64, _>(3)? == 1,
            });
        }
        if let Some(found) = refusal(self, all, &found).await? {
            return Ok(TxReply::of(database, found));
        }
        let rows = send(self, grant_text(&names)).await?.unwrap_or_default();
        let fences: Result<Vec<i64>, sqlx::Error> = rows.iter().map(|row| row.try_get(0)).collect();
        let fences = fences?;
        // Both are in the order of the names. An unchanged fence means that the name was not granted.
        if fences.len() != found.len() || found.iter().zip(&fences).any(|(row, f)| *f <= row.fence)
        {
            return Ok(TxReply::of(database, TxTaken::Blocking));
        }
        Ok(TxReply::of(database, granted(all, &found, fences)))
    }

    async fn tx_wait(
        &mut self,
        names: &[Name],
        limit: Option<Duration>,
    ) -> Result<TxWaited, Fault> {
        let text = wait_text(&list(names.iter()), limit);
        let until = limit.map(|limit| Moment::now() + limit);
        match send(self, text).await {
            Ok(Some(_)) => Ok(TxWaited::Locked),
            // ER_LOCK_WAIT_TIMEOUT ends only the statement: a caller with time left asks again.
            Ok(None) => Ok(TxWaited::TimedOut),
            Err(fault) if fault.kind == FaultKind::Interrupted && is_over(until) => {
                Ok(TxWaited::TimedOut)
            }
            Err(fault) => Err(fault),
        }
    }

    async fn tx_row(&mut self, name: &Name) -> Result<TxReply<Option<LockRow>>, Fault> {
        let row = sqlx::query_as(ROW).bind(name.as_bytes());
        Ok(row.fetch_optional(self).await?.unwrap_or_default())
    }
}

async fn take_one(
    conn: &mut MySqlConnection,
    params: &TxParams,
) -> Result<TxReply<TxTaken>, Fault> {
    let (rows, changed) = match rows_and_changes(conn, find_and_grant_text(params)).await {
        Err(fault) if fault.kind == FaultKind::LockTimeout => {
            return missed(conn, TxTaken::Missed(None)).await;
        }
        answer => answer?,
    };
    let Some(row) = rows.first() else {
        return missed(conn, TxTaken::NoRow).await;
    };
    let all = std::slice::from_ref(params);
    let found = [FoundRow {
        name: params.name.as_bytes().to_vec(),
        fence: row.try_get(0)?,
        is_free: row.try_get::<i64, _>(1)? == 1,
        is_unheld: row.try_get::<i64, _>(4)? == 1,
    }];
    let database = database_of(conn, row, 3).await?;
    let found = match refusal(conn, all, &found).await? {
        Some(refusal) => refusal,
        None if changed == 0 => TxTaken::Blocking,
        None => granted(all, &found, vec![row.try_get(2)?]),
    };
    Ok(TxReply::of(database, found))
}

/// A row that is locked now, with its previous columns.
struct FoundRow {
    name: Vec<u8>,
    fence: i64,
    is_free: bool,
    /// It is a lock without a live lease, and is not paused.
    is_unheld: bool,
}

/// The rows were found before they got these fences.
fn granted(all: &[TxParams], found: &[FoundRow], fences: Vec<i64>) -> TxTaken {
    let before = |params: &&TxParams| {
        let row = found.iter().find(|row| row.name == params.name.as_bytes());
        params.before.is_some() && params.before == row.map(|row| row.fence)
    };
    let perhaps_again = all.iter().filter(before);
    TxTaken::Granted {
        fences,
        perhaps_again: perhaps_again.map(|params| params.name.clone()).collect(),
    }
}

/// Why the locked rows cannot be granted.
async fn refusal(
    conn: &mut MySqlConnection,
    all: &[TxParams],
    found: &[FoundRow],
) -> Result<Option<TxTaken>, Fault> {
    if found.iter().any(|row| !row.is_unheld) {
        return Ok(Some(TxTaken::Blocking));
    }
    if found.iter().any(|row| !row.is_free) {
        let rows = rows(conn, QUARANTINE.into()).await?;
        let left = rows.first().map(|row| row.try_get(0)).transpose()?;
        return Ok(Some(left.map_or(TxTaken::Blocking, |left| {
            TxTaken::Quarantined(micros(left))
        })));
    }
    for params in all {
        let Some(row) = found.iter().find(|row| row.name == params.name.as_bytes()) else {
            return Ok(Some(TxTaken::NoRow));
        };
        if params.version.is_some_and(|version| version != row.fence) {
            return Ok(Some(TxTaken::Missed(None)));
        }
    }
    Ok(None)
}

/// [`rows`], but `None` when another transaction has a lock.
async fn send(conn: &mut MySqlConnection, text: String) -> Result<Option<Vec<MySqlRow>>, Fault> {
    unlocked(rows(conn, text).await)
}

/// The answer when the text stopped at another transaction's lock.
async fn missed<T>(conn: &mut MySqlConnection, found: T) -> Result<TxReply<T>, Fault> {
    // With innodb_rollback_on_timeout MariaDB has rolled everything back: NOWAIT counts as a time-out there.
    let text = format!("SAVEPOINT rowlock_here; RELEASE SAVEPOINT rowlock_here; {DATABASE}");
    Ok(TxReply::of(id_by(conn, text).await?, found))
}

/// The id of the database in which the transaction is; `None`: it sees none.
pub(super) async fn database(conn: &mut MySqlConnection) -> Result<Option<Uuid>, Fault> {
    id_by(conn, DATABASE.into()).await
}

async fn id_by(conn: &mut MySqlConnection, text: String) -> Result<Option<Uuid>, Fault> {
    let rows = rows(conn, text).await?;
    Ok(rows.first().map_or(Ok(None), |row| row.try_get(0))?)
}

/// [`database`], from a column with a subquery. A subquery that the server cut is empty, without an error.
async fn database_of(
    conn: &mut MySqlConnection,
    row: &MySqlRow,
    column: usize,
) -> Result<Option<Uuid>, Fault> {
    match row.try_get(column)? {
        None => database(conn).await,
        found => Ok(found),
    }
}

fn list<'a>(names: impl Iterator<Item = &'a Name>) -> String {
    let names: Vec<String> = names.map(|name| hex(name.as_bytes())).collect();
    names.join(", ")
}
