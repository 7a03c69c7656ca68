//! Locks in the caller's transaction: the statements.
//!
//! A writer has the whole file to itself. So holding the write lock is the pin, and no other row lock can get in the
//! way. A transaction that was begun without IMMEDIATE gets the write lock here, by a statement that changes nothing.
//! It fails at once when the transaction's reads are out of date (`SQLITE_BUSY_SNAPSHOT`).
//!
//! `BEGIN` inside a transaction fails: each verb uses this to find out that there is a transaction. SQLite rolls back
//! by itself when a disk is full (<https://sqlite.org/lang_transaction.html>, section 3), and sqlx does not notice.

use std::future::poll_fn;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::{Either, Executor, Row, SqliteConnection};
use time::UtcDateTime;
use uuid::Uuid;

use super::grant_rule::{freed, is_unpaused, may_grant, next_fence};
use super::lock_row::{row_columns, row_ends};
use super::quarantine;
use crate::model::{FaultKind, Kind, Name};
use crate::store::driver::json;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::in_tx::{
    FURTHEST_AHEAD, InTxStore, PinOutcome, PinParams, TxParams, TxReply, TxTaken, TxWaited,
};
use crate::store::verbs::lock_row::{LockRowStore, RowAction};
use crate::store::verbs::row::LockRow;
use crate::store::verbs::session::{LeftBehind, SessionStore};
use crate::store::verbs::time::micros;

/// Takes the write lock, then looks. (Without RETURNING, the change has a row when `PRAGMA count_changes` is on.)
const LOOK: &str = concat!(
    "
UPDATE rowlock_lock SET fence = fence WHERE false RETURNING 1;
SELECT d.id,",
    row_columns!(""),
    "
FROM rowlock_database d
CROSS JOIN json_each(?1) a
LEFT JOIN rowlock_lock l ON l.name = unhex(a.value ->> 0)
LEFT JOIN rowlock_session s ON s.id = l.session_id"
);

const GRANT: &str = concat!(
    "
INSERT INTO rowlock_lock (name, fence)
SELECT unhex(a.value ->> 0), ?2
FROM json_each(?1) a
WHERE true
ON CONFLICT (name) DO UPDATE
SET ",
    freed!(),
    ", fence = ",
    next_fence!("excluded.fence"),
    "
RETURNING name, fence"
);

const ROW: &str = concat!(
    "
SELECT d.id,",
    row_columns!(),
    "
FROM rowlock_database d LEFT JOIN rowlock_lock l ON l.name = ?1
LEFT JOIN rowlock_session s ON s.id = l.session_id"
);

/// Grants a lone name that is free, in a transaction that has the write lock. The BEGIN fails, as it should.
const TAKE_ONE: &str = concat!(
    "
UPDATE rowlock_lock SET fence = ?2
WHERE name = ?1 AND fence < ?2 AND (?3 IS NULL OR fence = ?3)
  AND grant_id IS NULL AND expires_at IS NULL AND capacity = 0
  AND ",
    is_unpaused!(),
    " AND ",
    may_grant!(),
    "
RETURNING (SELECT id FROM rowlock_database);
BEGIN"
);

#[async_trait]
impl InTxStore for SqliteConnection {
    async fn tx_pin(&mut self, params: &PinParams) -> Result<TxReply<PinOutcome>, Fault> {
        in_transaction(self).await?;
        let rows = look(self, [&params.name]).await?;
        let told = rows.into_iter().next().unwrap_or_default();
        let found = match told.found {
            Some(row) if !row.is_of(params.grant_id) => PinOutcome::Gone,
            Some(row) if row.is_live() => PinOutcome::Live,
            Some(_) => PinOutcome::Expired,
            None => PinOutcome::Gone,
        };
        Ok(TxReply::of(told.database, found))
    }

    async fn tx_take(&mut self, all: &[TxParams]) -> Result<TxReply<TxTaken>, Fault> {
        if let [params] = all
            && params.begun
            && params.before.is_none()
            && let Some(granted) = take_one(self, params).await?
        {
            return Ok(granted);
        }
        in_transaction(self).await?;
        let rows = look(self, all.iter().map(|params| &params.name)).await?;
        let database = rows.first().and_then(|row| row.database);
        let rows: Vec<LockRow> = rows.into_iter().filter_map(|row| row.found).collect();
        let is_held = |row: &&LockRow| row.is_live() || row.pause.is_some();
        if let Some(held) = rows.iter().find(is_held) {
            return Ok(TxReply::of(database, TxTaken::Missed(Some(held.clone()))));
        }
        if rows.iter().any(|row| row.kind != Some(Kind::Lock)) {
            return Ok(TxReply::of(database, TxTaken::Missed(None)));
        }
        if let Some(quarantine) = quarantine::seen(self).await? {
            return Ok(TxReply::of(database, TxTaken::Quarantined(quarantine.left)));
        }
        let left: Vec<LeftBehind> = rows.iter().filter_map(LockRow::left_behind).collect();
        if !left.is_empty() {
            self.session_reclaim(&left).await?;
        }
        let before = |params: &TxParams| {
            let row = rows.iter().find(|row| row.name == params.name.as_bytes());
            row.map(|row| row.fence)
        };
        let outdated =
            |params: &TxParams| params.version.is_some() && params.version != before(params);
        if all.iter().any(outdated) {
            return Ok(TxReply::of(database, TxTaken::Missed(None)));
        }
        let again = |params: &&TxParams| params.before.is_some() && params.before == before(params);
        let perhaps_again = all.iter().filter(again);
        let perhaps_again = perhaps_again.map(|params| params.name.clone()).collect();

        let now = now();
        // For the same reason it must have passed the last fence: a lease's fence is the end of its millisecond, or of
        // a block.
        let ahead = rows.iter().map(|row| row.fence + 1 - now).max();
        if let Some(ahead) = ahead.filter(|ahead| (1..=FURTHEST_AHEAD).contains(ahead)) {
            return Ok(TxReply::of(database, TxTaken::Early(micros(ahead))));
        }
        let granted: Vec<(Vec<u8>, i64)> = sqlx::query_as(GRANT)
            .bind(json::names(all.iter().map(|params| &params.name)))
            .bind(now)
            .fetch_all(self)
            .await?;
        let fence = |params: &TxParams| {
            let row = granted.iter().find(|row| row.0 == params.name.as_bytes());
            row.map(|row| row.1)
        };
        let fences: Option<Vec<i64>> = all.iter().map(fence).collect();
        let found = match fences {
            Some(fences) => TxTaken::Granted {
                fences,
                perhaps_again,
            },
            None => TxTaken::NoRow,
        };
        Ok(TxReply::of(database, found))
    }

    /// The holder of the write lock has nothing to wait for.
    async fn tx_wait(
        &mut self,
        _names: &[Name],
        _limit: Option<Duration>,
    ) -> Result<TxWaited, Fault> {
        Ok(TxWaited::Locked)
    }

    async fn tx_row(&mut self, name: &Name) -> Result<TxReply<Option<LockRow>>, Fault> {
        let told = read(self, name).await?;
        let is_settled = told.found.as_ref().is_some_and(|row| !row.has_lapsed());
        if told.database.is_none() || is_settled {
            return Ok(told);
        }
        // While this transaction may write, no other connection could make or free the row.
        self.lock_row(name, RowAction::Make).await?;
        read(self, name).await
    }
}

/// SQLite's clock is this host's, in milliseconds. A transaction that is rolled back gives its fence back, and the
/// next one in the same millisecond would get the same fence. So the host's clock is read here in microseconds, after
/// the write lock was got.
fn now() -> i64 {
    i64::try_from(UtcDateTime::now().unix_timestamp_nanos() / 1_000).unwrap_or(0)
}

/// Grants a free name, in one hop to SQLite's thread. `None`: it has done nothing, and `tx_take` finds out why.
///
/// If the transaction is over, the name has got a new fence all the same, as if it had been granted for a moment.
async fn take_one(
    conn: &mut SqliteConnection,
    params: &TxParams,
) -> Result<Option<TxReply<TxTaken>>, Fault> {
    let fence = now();
    let take = sqlx::query(TAKE_ONE)
        .bind(params.name.as_bytes())
        .bind(fence)
        .bind(params.version);
    let (mut database, mut has_taken) = (None, false);
    let mut answers = conn.fetch_many(take);
    let ended = loop {
        match poll_fn(|cx| answers.as_mut().poll_next(cx)).await {
            Some(Ok(Either::Right(row))) => database = Some(row.try_get(0)?),
            Some(Ok(Either::Left(_))) => has_taken = true,
            Some(Err(error)) => break Some(Fault::from(error)),
            None => break None,
        }
    };
    drop(answers);
    match ended {
        // SQLITE_ERROR: "cannot start a transaction within a transaction"
        Some(fault) if has_taken && fault.kind == FaultKind::Other => {}
        Some(fault) => {
            in_transaction(conn).await?;
            return Err(fault);
        }
        None => {
            sqlx::raw_sql("ROLLBACK").execute(conn).await?;
            return Err(Fault::transaction_over());
        }
    }
    let granted = TxTaken::Granted {
        fences: vec![fence],
        perhaps_again: Vec::new(),
    };
    Ok(database.map(|database| TxReply::of(database, granted)))
}

async fn read(conn: &mut SqliteConnection, name: &Name) -> Result<TxReply<Option<LockRow>>, Fault> {
    let row = sqlx::query_as(ROW).bind(name.as_bytes());
    Ok(row.fetch_optional(conn).await?.unwrap_or_default())
}

async fn look<'a>(
    conn: &mut SqliteConnection,
    names: impl IntoIterator<Item = &'a Name>,
) -> Result<Vec<TxReply<Option<LockRow>>>, Fault> {
    let rows = sqlx::query_as(LOOK)
        .bind(json::names(names))
        .fetch_all(conn)
        .await?;
    Ok(rows)
}

/// The id of the connection's database.
pub(super) async fn database(conn: &mut SqliteConnection) -> Result<Option<Uuid>, sqlx::Error> {
    sqlx::query_scalar("SELECT id FROM rowlock_database")
        .fetch_optional(conn)
        .await
}

pub(super) async fn in_transaction(conn: &mut SqliteConnection) -> Result<(), Fault> {
    if let Err(error) = sqlx::raw_sql("BEGIN").execute(&mut *conn).await {
        // SQLITE_ERROR: "cannot start a transaction within a transaction"
        let fault = Fault::from(error);
        return match fault.kind {
            FaultKind::Other => Ok(()),
            _ => Err(fault),
        };
    }
    sqlx::raw_sql("ROLLBACK").execute(conn).await?;
    Err(Fault::transaction_over())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sqlx::Connection;

    use super::*;
    use crate::store::sqlite::Sqlite;
    use crate::store::sqlite::writing::BEGIN_TO_WRITE;
    use crate::store::verbs::schema::SchemaStore;

    async fn connect(file: &Path) -> SqliteConnection {
        let url = format!("sqlite:{}?mode=rwc", file.display());
        let sqlite = Sqlite::from_url(&url).unwrap();
        let timeout = Duration::from_millis(100);
        sqlite.open(timeout).await.unwrap()
    }

    #[tokio::test]
    async fn a_look_at_a_row_that_is_settled_keeps_nobody_from_writing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("test.db");
        let (mut reader, mut writer) = (connect(&file).await, connect(&file).await);
        writer
            .migrate(crate::store::verbs::schema::MigrateUntil::Now)
            .await
            .unwrap();
        let name = Name::new("a").unwrap();
        writer.lock_row(&name, RowAction::Make).await.unwrap();
        let mut tx = reader.begin().await.unwrap();
        let seen = tx.tx_row(&name).await.unwrap();
        assert!(seen.found.is_some() && seen.database.is_some());
        let mut writing = writer.begin_with(BEGIN_TO_WRITE).await.unwrap();
        writing
            .lock_row(&Name::new("b").unwrap(), RowAction::Make)
            .await
            .unwrap();
        writing.commit().await.unwrap();
        tx.rollback().await.unwrap();
    }

    #[tokio::test]
    async fn nothing_is_granted_before_the_clock_has_passed_the_last_fence() {
        let dir = tempfile::tempdir().unwrap();
        let mut conn = connect(&dir.path().join("test.db")).await;
        conn.migrate(crate::store::verbs::schema::MigrateUntil::Now)
            .await
            .unwrap();
        let name = Name::new("a").unwrap();
        conn.lock_row(&name, RowAction::Make).await.unwrap();
        let params = TxParams {
            name,
            version: None,
            before: None,
            begun: false,
        };
        let mut tx = conn.begin_with(BEGIN_TO_WRITE).await.unwrap();
        // The clock may pass the fence between two statements.
        for _ in 0..1_000 {
            let now = UtcDateTime::now().unix_timestamp_nanos() / 1_000;
            let fence = i64::try_from(now).unwrap() + 1_990;
            let set = sqlx::query("UPDATE rowlock_lock SET fence = ?1");
            set.bind(fence).execute(&mut *tx).await.unwrap();
            let told = tx.tx_take(std::slice::from_ref(&params)).await.unwrap();
            match told.found {
                TxTaken::Early(pause) => {
                    assert!(pause <= Duration::from_millis(2), "{pause:?}");
                    return;
                }
                TxTaken::Granted { fences, .. } => assert!(fences[0] > fence),
                other => panic!("{other:?}"),
            }
        }
        panic!("never too early");
    }
}
