//! Transactions that run once for a key: those who wait, and what is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqlitePoolOptions, SqliteSynchronous};

use super::*;
use crate::idempotency::waiting::MAX_MISSES;
use crate::model::Scope;
use crate::store::sqlite::NEXT_ATTEMPT;

async fn client(dir: &tempfile::TempDir) -> Idempotency {
    let client = crate::client::Rowlock::connect(&url(dir)).await.unwrap();
    client.idempotency().max_attempts(1_000)
}

fn url(dir: &tempfile::TempDir) -> String {
    format!("sqlite:{}/test.db?mode=rwc", dir.path().display())
}

#[tokio::test]
async fn nobody_waits_for_a_key_that_no_transaction_has() {
    let dir = tempfile::tempdir().unwrap();
    let idempotency = client(&dir).await;
    let key = RecordKey::new("scope", "k").unwrap();
    let mut waiting = idempotency.waiting();
    assert!(idempotency.ended(&key, &mut waiting).await.unwrap());
}

/// The last change of the key.
const LAST: u32 = MAX_MISSES + 5;

/// Another attempt for the key, which is over. Nothing waits for the disk.
async fn change(conn: &mut SqliteConnection, changes: Arc<AtomicU32>) -> Result<(), sqlx::Error> {
    if changes.fetch_add(1, Ordering::Relaxed) < LAST {
        sqlx::query(NEXT_ATTEMPT).execute(conn).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_key_that_changes_before_every_claim_is_in_flight_in_the_end() {
    let begun = changed_before_every_claim(Duration::ZERO).await;
    assert!(matches!(begun, Begun::InFlight(_)), "{begun:?}");
}

#[tokio::test]
async fn who_waits_outlasts_a_key_that_changes_before_every_claim() {
    let begun = changed_before_every_claim(Duration::from_mins(10)).await;
    assert!(matches!(begun, Begun::New(_)), "{begun:?}");
}

async fn changed_before_every_claim(wait: Duration) -> Begun<Outcome> {
    let dir = tempfile::tempdir().unwrap();
    let here = client(&dir).await.wait(wait);
    let begun = here
        .begin(Scope("scope").key("k"), Fingerprint::of("request"))
        .await;
    let Ok(Begun::New(guard)) = begun else {
        panic!("{begun:?}")
    };
    guard.release().await.unwrap();
    let changes = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&changes);
    // Between the look and the transaction. A connection that takes too long is replaced.
    let one = SqlitePoolOptions::new().max_connections(1);
    let again = Arc::clone(&changes);
    let options = one
        .after_connect(move |conn, _| Box::pin(change(conn, Arc::clone(&changes))))
        .before_acquire(move |conn, _| {
            let changed = change(conn, Arc::clone(&again));
            Box::pin(async { changed.await.map(|()| true) })
        });
    let file: SqliteConnectOptions = url(&dir).parse().unwrap();
    let file = file.synchronous(SqliteSynchronous::Off);
    let pool = options.connect_with(file).await.unwrap();
    let request = Fingerprint::of("request");
    let work = |_| async { Ok::<_, Error>(Outcome::empty()) };
    let begun = here
        .run_in_tx(&pool, Scope("scope").key("k"), request, work)
        .await;
    let begun = begun.unwrap();
    let changes = counted.load(Ordering::Relaxed);
    assert!(changes > MAX_MISSES, "{changes} {begun:?}");
    begun
}
