//! A client for tests, in one line, and a runtime whose time a test has stopped.

use std::time::Duration;

use rowlock::testing::TestClient;
use rowlock::{Begun, Fingerprint, Outcome, Scope};

const SHORT: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_runtime_whose_time_is_paused() {
    let rowlock = TestClient::new().await.unwrap();
    let held = rowlock.lock("a").ttl(SHORT).acquire().await.unwrap();
    // Hours pass for tokio, and nothing for the lease.
    tokio::time::sleep(Duration::from_hours(5)).await;
    assert!(held.is_held());
    let (waits, lock) = (rowlock.clone(), "a");
    let next = tokio::spawn(async move { waits.lock(lock).acquire().await });
    eventually_yielding(async || !rowlock.admin().queue("a").await.unwrap().is_empty()).await;
    held.release().await.unwrap();
    assert!(next.await.unwrap().unwrap().is_held());
    let request = Fingerprint::of("pay 5");
    let pay = async || {
        let idempotency = rowlock.idempotency();
        let begun = idempotency.begin(Scope("me").key("k"), &request).await;
        begun.unwrap()
    };
    let Begun::New(guard) = pay().await else {
        panic!("it is new")
    };
    guard.complete(&Outcome::json(&5).unwrap()).await.unwrap();
    assert!(matches!(pay().await, Begun::Replay(_)));
    assert_eq!(rowlock.shutdown(Duration::from_secs(5)).await, []);
}

/// Asks again and again, without a timer.
async fn eventually_yielding(condition: impl AsyncFn() -> bool) {
    while !condition().await {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_test_client_has_a_file_of_its_own_which_goes_with_it() {
    let (one, other) = (
        TestClient::new().await.unwrap(),
        TestClient::new().await.unwrap(),
    );
    let _held = one.lock("a").acquire().await.unwrap();
    assert!(other.lock("a").try_acquire().await.unwrap().is_some());
    sqlx::raw_sql("CREATE TABLE t (n INT)")
        .execute(one.pool())
        .await
        .unwrap();
    let file: String =
        sqlx::query_scalar("SELECT file FROM pragma_database_list WHERE name = 'main'")
            .fetch_one(one.pool())
            .await
            .unwrap();
    assert!(std::path::Path::new(&file).exists());
    drop(one);
    assert!(!std::path::Path::new(&file).exists());
}
