//! An exchange as a transaction, in a real file.

use std::time::Duration;

use tempfile::TempDir;
use uuid::Uuid;

use super::*;
use crate::model::Name;
use crate::store::sqlite::Sqlite;
use crate::store::verbs::lease::{LeaseStore, TakeOutcome};
use crate::store::verbs::release::FreeOutcome;
use crate::store::verbs::schema::SchemaStore;

const TTL: Duration = Duration::from_secs(30);

async fn connect(dir: &TempDir) -> SqliteConnection {
    let url = format!("sqlite:{}", dir.path().join("a.db").display());
    let sqlite = Sqlite::from_url(&url).unwrap();
    sqlite.open(TTL).await.unwrap()
}

async fn run(conn: &mut SqliteConnection, sql: &'static str) {
    sqlx::raw_sql(sql).execute(conn).await.unwrap();
}

fn take(name: &str) -> TakeParams {
    TakeParams {
        name: Name::new(name).unwrap(),
        grant_id: Uuid::new_v4(),
        ttl: TTL,
        holder: "taker".into(),
        session: None,
    }
}

/// Takes `held` and returns its release.
async fn hold(conn: &mut SqliteConnection, held: &str) -> ReleaseParams {
    let params = take(held);
    let taken = conn
        .lease_take(std::slice::from_ref(&params))
        .await
        .unwrap();
    let TakeOutcome::Granted { fence } = taken[0] else {
        panic!("{taken:?}");
    };
    ReleaseParams {
        name: params.name,
        grant_id: params.grant_id,
        fence,
        was_queued: false,
    }
}

/// Exchanges `held` for the name "next": both happen.
async fn exchanges(conn: &mut SqliteConnection, held: ReleaseParams) {
    let exchanged = conn.lease_exchange(&[held], &[take("next")]).await;
    let (freed, taken) = exchanged.unwrap();
    assert_eq!(freed, [FreeOutcome::Released]);
    assert!(
        matches!(taken[..], [TakeOutcome::Granted { .. }]),
        "{taken:?}"
    );
}

#[tokio::test]
async fn an_exchange_that_fails_does_nothing_and_leaves_no_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let (mut conn, mut other) = (connect(&dir).await, connect(&dir).await);
    conn.migrate(crate::store::verbs::schema::MigrateUntil::Now)
        .await
        .unwrap();
    // After the releases, at the second take.
    run(
        &mut conn,
        "CREATE TRIGGER refuse BEFORE INSERT ON rowlock_lock WHEN new.name = CAST('refused' AS BLOB)
         BEGIN SELECT RAISE(ABORT, 'refused'); END",
    )
    .await;
    let held = hold(&mut conn, "held").await;
    let takes = [take("next"), take("refused")];
    let exchanged = conn
        .lease_exchange(std::slice::from_ref(&held), &takes)
        .await;
    let fault = exchanged.unwrap_err();
    assert!(!fault.kind.ends_connection(), "{fault}");
    assert!(fault.to_string().contains("refused"), "{fault}");
    // Nothing is open on it: another connection can write, and then it can.
    let granted = hold(&mut other, "next").await;
    let released = conn.lease_release(&[granted]).await.unwrap();
    assert_eq!(released, [FreeOutcome::Released]);
    exchanges(&mut conn, held).await;
}

#[tokio::test]
async fn an_exchange_with_a_busy_file_does_nothing_and_may_be_sent_again() {
    let dir = tempfile::tempdir().unwrap();
    let (mut conn, mut other) = (connect(&dir).await, connect(&dir).await);
    conn.migrate(crate::store::verbs::schema::MigrateUntil::Now)
        .await
        .unwrap();
    let held = hold(&mut conn, "held").await;
    run(&mut other, "BEGIN IMMEDIATE").await;
    let exchanged = conn
        .lease_exchange(std::slice::from_ref(&held), &[take("next")])
        .await;
    assert_eq!(exchanged.unwrap_err().kind, FaultKind::LockTimeout);
    run(&mut other, "COMMIT").await;
    exchanges(&mut conn, held).await;
}

/// Without a write-ahead log, a reader keeps the file from a commit, and the transaction would stay open.
#[tokio::test]
async fn an_exchange_that_cannot_commit_does_nothing_and_may_be_sent_again() {
    let dir = tempfile::tempdir().unwrap();
    let (mut conn, mut other) = (connect(&dir).await, connect(&dir).await);
    conn.migrate(crate::store::verbs::schema::MigrateUntil::Now)
        .await
        .unwrap();
    let held = hold(&mut conn, "held").await;
    sqlx::Connection::close(other).await.unwrap();
    run(&mut conn, "PRAGMA journal_mode = DELETE").await;
    other = connect(&dir).await;
    run(&mut other, "BEGIN; SELECT * FROM rowlock_lock").await;
    let exchanged = conn
        .lease_exchange(std::slice::from_ref(&held), &[take("next")])
        .await;
    assert_eq!(exchanged.unwrap_err().kind, FaultKind::LockTimeout);
    run(&mut other, "COMMIT").await;
    hold(&mut other, "other").await;
    exchanges(&mut conn, held).await;
}
