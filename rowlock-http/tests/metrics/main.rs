//! What is counted: a recorder for the whole process sees it, so this is a test binary of its own.
#![allow(missing_docs, reason = "tests are named, not documented")]

mod duplicates;
mod names;
mod recipes;
mod recorder;
mod spans;

use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::routing::post;
use rowlock::layer::LayerAttempt as _;
use rowlock::{Begun, Engine, Error, Fingerprint, Outcome, Rowlock, Scope};
use rowlock_http::IdempotencyLayer;
use rowlock_test::Db;
use tokio::sync::{Mutex, MutexGuard};
use tower_service::Service;

use recorder::{counted, gauge, recorded, with_recorder};

const TTL: Duration = Duration::from_secs(6);

/// What is counted is counted for the whole process: one test at a time.
static ALONE: Mutex<()> = Mutex::const_new(());

async fn client() -> (MutexGuard<'static, ()>, Db, Rowlock) {
    client_of(Engine::Sqlite).await
}

async fn client_of(engine: Engine) -> (MutexGuard<'static, ()>, Db, Rowlock) {
    let alone = ALONE.lock().await;
    with_recorder();
    let db = Db::new(engine).await;
    let rowlock = Rowlock::connect(&db.url).await.unwrap();
    (alone, db, rowlock)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_happens_to_locks_is_counted() {
    let (_alone, _db, rowlock) = client().await;
    let lock = rowlock.lock("a").ttl(TTL);
    let held = lock.acquire().await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    let waits = lock.clone().wait(Duration::from_millis(50)).acquire().await;
    assert!(matches!(waits, Err(Error::WaitTimeout { .. })));
    held.release().await.unwrap();
    let taken_over = || {
        let labels = [("what", "lock"), ("loss", "taken_over")];
        counted("rowlock_lost_total", &labels)
    };
    let before = taken_over();
    let lock = rowlock.lock("b").ttl(TTL);
    let lost = lock.acquire().await.unwrap();
    rowlock_test::renewed(&lost).await;
    rowlock.admin().force_release("b").await.unwrap();
    lost.lost().await;
    drop(lost);
    for outcome in ["held", "busy", "timeout"] {
        let acquired = recorded(
            "rowlock_acquire_seconds",
            &[("kind", "lock"), ("outcome", outcome)],
        );
        assert!(!acquired.is_empty(), "{outcome}");
    }
    let waited = recorded("rowlock_acquire_seconds", &[("outcome", "timeout")]);
    assert!(waited.iter().all(|waited| *waited >= 0.05), "{waited:?}");
    assert!(
        recorded("rowlock_hold_seconds", &[])
            .iter()
            .any(|held| *held >= 0.05)
    );
    assert_eq!(taken_over() - before, 1);
    assert!(
        !recorded(
            "rowlock_statement_seconds",
            &[("verb", "exchange"), ("outcome", "ok")]
        )
        .is_empty()
    );
    assert!(
        !recorded(
            "rowlock_statement_seconds",
            &[("verb", "renew"), ("outcome", "ok")]
        )
        .is_empty()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_is_in_the_queue_until_it_has_waited() {
    let (_alone, _db, rowlock) = client().await;
    let held = rowlock.lock("q").acquire().await.unwrap();
    // Without a cohort.
    let lock = rowlock.lock("q").max_hold(TTL);
    let (waited, ()) = tokio::join!(lock.acquire(), async {
        rowlock_test::eventually("it waits", async || {
            gauge("rowlock_queue_waiters", &[]) > 0.5
        })
        .await;
        drop(held);
    });
    drop(waited.unwrap());
    assert!(gauge("rowlock_queue_waiters", &[]).abs() < 0.5);
    // Nobody waits any more, so the next acquire asks for the lock, and joins no queue.
    let joins = || recorded("rowlock_statement_seconds", &[("verb", "join")]).len();
    let before = joins();
    drop(lock.acquire().await.unwrap());
    assert_eq!(joins(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_looks_more_and_more_seldom() {
    let (_alone, _db, rowlock) = client().await;
    let _held = rowlock.lock("l").acquire().await.unwrap();
    let (began, looks) = (Instant::now(), || {
        recorded("rowlock_statement_seconds", &[("verb", "watch")]).len()
    });
    let before = looks();
    let waited = rowlock
        .lock("l")
        .wait(Duration::from_secs(2))
        .acquire()
        .await;
    assert!(
        matches!(waited, Err(Error::WaitTimeout { .. })),
        "{waited:?}"
    );
    // About seventy, of two statements each.
    let (looks, millis) = (looks() - before, began.elapsed().as_millis());
    assert!(
        looks > 4 && looks as u128 * 4 < millis,
        "{looks} in {millis} ms"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_schema_does_not_let_a_search_forget_it_does_not_try_again() {
    let (_alone, db, rowlock) = client().await;
    let owner = rowlock.owner().named("o");
    let other = rowlock.lock("other").acquire().await.unwrap();
    let _own = rowlock.lock("own").owner(&owner).acquire().await.unwrap();
    let lock = rowlock.lock("other").owner(&owner);
    let waits = tokio::spawn(async move { lock.acquire().await });
    let told = async || {
        db.number("SELECT COUNT(*) FROM rowlock_waiting_owner")
            .await
            == 1
    };
    rowlock_test::eventually("what it holds is told", told).await;
    db.execute("ALTER TABLE rowlock_waiting_owner RENAME COLUMN grant_id TO lost")
        .await;
    drop(other);
    drop(waits.await.unwrap().unwrap());
    let tries = || recorded("rowlock_statement_seconds", &[("verb", "deadlocks")]).len();
    rowlock_test::eventually("it tries", async || tries() > 0).await;
    let before = tries();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let since = tries() - before;
    assert!(since <= 2, "{since} tries");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_becomes_of_a_request_is_counted() {
    let (_alone, db, rowlock) = client().await;
    let idempotency = rowlock.idempotency().max_attempts(1);
    let outcome = Outcome::json(&"done").unwrap();
    let request = Fingerprint::of("request");
    let begin = async |key: &str| {
        idempotency
            .begin(Scope("scope").key(key), request)
            .await
            .unwrap()
    };
    let new = async |key: &str| match begin(key).await {
        Begun::New(guard) => guard,
        other => panic!("{other:?}"),
    };
    let guard = new("a").await;
    let _ = begin("a").await;
    guard.complete(&outcome).await.unwrap();
    let _ = begin("a").await;
    let other = Fingerprint::of("other");
    let _ = idempotency
        .begin(Scope("scope").key("a"), other)
        .await
        .unwrap();
    drop(new("vanishes").await);
    rowlock.flush().await;
    let _ = begin("vanishes").await;
    let guard = new("unknown").await;
    drop(guard.begin_whole("charge").await.unwrap());
    drop(guard);
    rowlock.flush().await;
    let _ = begin("unknown").await;
    let taken = new("taken").await;
    db.execute("UPDATE rowlock_idempotency SET attempt_id = x'00112233445566778899aabbccddeeff' WHERE state = 'running'").await;
    taken.complete(&outcome).await.unwrap_err();
    let lost = new("lost").await;
    lost.keep_claimed();
    lost.outcome_is_lost();
    new("released").await.release().await.unwrap();
    for (outcome, times) in [
        ("replayed", 1),
        ("in_flight", 1),
        ("mismatch", 1),
        ("poisoned", 1),
        ("unknown", 1),
        ("superseded", 1),
        ("lost", 1),
    ] {
        let counted = counted("rowlock_idempotency_total", &[("outcome", outcome)]);
        assert!(counted >= times, "{outcome}: {counted}");
    }
    for end in ["completed", "released", "dropped", "superseded"] {
        assert!(
            !recorded("rowlock_attempt_seconds", &[("end", end)]).is_empty(),
            "{end}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_of_the_layer_is_counted() {
    let (_alone, _db, rowlock) = client().await;
    let layer = IdempotencyLayer::new(rowlock.idempotency(), |_| Some("ann")).required(true);
    let mut app: Router = Router::new().route("/", post(async || "paid")).layer(layer);
    let request = Request::post("/").body(Body::empty()).unwrap();
    assert_eq!(app.call(request).await.unwrap().status(), 400);
    let counted = counted("rowlock_http_problems_total", &[("problem", "missing-key")]);
    assert_eq!(counted, 1);
}
