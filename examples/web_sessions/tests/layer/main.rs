//! The lock of a session, case by case.
#![allow(missing_docs, reason = "tests are named, not documented")]

use std::sync::Arc;
use std::time::Duration;

use axum::http::{StatusCode, header};
use rowlock::{NameFilter, NameState};
use rowlock_test::patience;
use tower_sessions::{Session, SessionStore};
use web_sessions::rotate::rotate;
use web_sessions::session_lock::{digest, lock_name};

mod world;
use world::{World, id, new_cookie};

/// Waits until a request waits for a lock.
async fn somebody_waits(rowlock: &rowlock::Rowlock) {
    let waits = async {
        let awaited = NameFilter::new().state(NameState::Awaited);
        while rowlock
            .admin()
            .names(&awaited)
            .await
            .unwrap()
            .items
            .is_empty()
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(patience(), waits)
        .await
        .expect("a waiter");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_session_takes_no_lock() {
    let world = World::new(true).await;
    let server = world.server().await;
    for cookie in ["", "id=malformed", "other=1"] {
        let sent = server.begin("add/slow", cookie).await;
        assert_eq!(server.rowlock.admin().list().await.unwrap(), []);
        server.gate.go.notify_one();
        let answer = sent.answer().await;
        assert_eq!(answer.status(), StatusCode::NO_CONTENT);
        assert_eq!(server.cart(&new_cookie(&answer).unwrap()).await, ["slow"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_requests_of_one_session_wait_for_each_other() {
    let world = World::new(true).await;
    let (one, other) = (world.server().await, world.server().await);
    let (mine, yours) = (one.first().await, one.first().await);
    let slow = one.begin("add/slow", &mine).await;

    assert_eq!(other.post("add/quick", &yours).await.status(), 204);
    assert_eq!(other.cart(&mine).await, ["first"]); // reading takes no lock

    let second = other.spawn("add/second", &mine);
    somebody_waits(&one.rowlock).await;
    one.gate.go.notify_one();
    assert_eq!(slow.answer().await.status(), 204);
    assert_eq!(second.answer().await.status(), 204);
    assert_eq!(one.cart(&mine).await, ["first", "slow", "second"]);
    assert_eq!(one.cart(&yours).await, ["first", "quick"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_does_not_have_the_id_of_a_session() {
    let world = World::new(true).await;
    let server = world.server().await;
    let cookie = server.first().await;
    let slow = server.begin("add/slow", &cookie).await;

    let locks = server.rowlock.admin().list().await.unwrap();
    assert_eq!(locks.len(), 1);
    assert_eq!(locks[0].name.as_str(), lock_name(&id(&cookie)));
    let secret = cookie.strip_prefix("id=").unwrap();
    let files = std::fs::read_dir(world.dir.path()).unwrap();
    let bytes: Vec<u8> = files
        .flat_map(|file| std::fs::read(file.unwrap().path()).unwrap())
        .collect();
    let has = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    assert!(has(digest(&id(&cookie)).as_bytes()));
    assert!(!has(secret.as_bytes()));
    assert!(!has(&id(&cookie).0.to_le_bytes()));
    assert!(!has(&id(&cookie).0.to_be_bytes()));

    server.gate.go.notify_one();
    assert_eq!(slow.answer().await.status(), 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_wait_is_over_nothing_has_happened_and_the_client_may_send_again() {
    let world = World::new(true).await;
    let server = world.patient_server(Duration::from_millis(50)).await;
    let cookie = server.first().await;
    let lock = server.rowlock.lock(lock_name(&id(&cookie)));
    let held = lock.acquire().await.unwrap();

    let answer = server.post("add/second", &cookie).await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.headers()[header::RETRY_AFTER], "1");
    assert_eq!(new_cookie(&answer), None);
    held.release().await.unwrap();
    assert_eq!(server.cart(&cookie).await, ["first"]);
    assert_eq!(server.post("add/second", &cookie).await.status(), 204);
    assert_eq!(server.cart(&cookie).await, ["first", "second"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_requests_for_one_session_is_refused_at_once() {
    let world = World::new(true).await;
    let server = world.patient_server(Duration::from_hours(1)).await;
    let cookie = server.first().await;
    let slow = server.begin("add/slow", &cookie).await;
    let mut flood = tokio::task::JoinSet::new();
    for _ in 0..100 {
        flood.spawn(server.spawn("add/quick", &cookie).answer());
    }
    let refused = flood.join_next().await.unwrap().unwrap();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.headers()[header::RETRY_AFTER], "1");
    server.gate.go.notify_one();
    assert_eq!(slow.answer().await.status(), 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_client_hangs_up_keeps_the_lock_and_is_finished() {
    let world = World::new(true).await;
    let (one, other) = (world.server().await, world.server().await);
    let cookie = one.first().await;
    let slow = one.begin("add/slow", &cookie).await;
    slow.0.abort();
    assert!(slow.0.await.unwrap_err().is_cancelled());

    let lock = other.rowlock.lock(lock_name(&id(&cookie)));
    assert!(lock.try_acquire().await.unwrap().is_none());
    one.gate.go.notify_one();
    // A server that stops waits for it.
    let unfinished = one.rowlock.shutdown(Duration::from_mins(1)).await;
    assert!(unfinished.is_empty(), "{unfinished:?}");
    assert_eq!(other.cart(&cookie).await, ["first", "slow"]);
    assert_eq!(other.post("add/second", &cookie).await.status(), 204);
    assert_eq!(other.cart(&cookie).await, ["first", "slow", "second"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_loses_its_lease_is_dropped_and_not_acknowledged() {
    for pins in [false, true] {
        let world = World::new(pins).await;
        let server = world.server().await;
        let cookie = server.first().await;
        let slow = server.begin("add/slow", &cookie).await;
        let name = lock_name(&id(&cookie));
        server
            .rowlock
            .admin()
            .force_release(name)
            .await
            .unwrap()
            .unwrap(); // its own client knows it at once

        let answer = slow.answer().await;
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(!answer.headers().contains_key(header::RETRY_AFTER));
        assert_eq!(server.cart(&cookie).await, ["first"]);
    }
}

/// The first server does not know that it has lost the lease, as after a pause. The second one has the session
/// meanwhile.
async fn lost_without_knowing(pins: bool) -> (StatusCode, Vec<String>) {
    let world = World::new(pins).await;
    let (one, other) = (world.server().await, world.server().await);
    let cookie = one.first().await;
    let slow = one.begin("add/slow", &cookie).await;
    let name = lock_name(&id(&cookie));
    other
        .rowlock
        .admin()
        .force_release(name)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(other.post("add/second", &cookie).await.status(), 204);
    one.gate.go.notify_one();
    (slow.answer().await.status(), other.cart(&cookie).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_save_overwrites_with_a_lease_alone() {
    let (status, cart) = lost_without_knowing(false).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    assert_eq!(cart, ["first", "slow"]); // «second» was acknowledged, and is lost
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_save_commits_nothing_with_a_pin() {
    let (status, cart) = lost_without_knowing(true).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(cart, ["first", "second"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_panics_leaves_the_session_free() {
    let world = World::new(true).await;
    let server = world.server().await;
    let cookie = server.first().await;
    let answer = server.post("add/panic", &cookie).await;
    assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(server.post("add/second", &cookie).await.status(), 204);
    assert_eq!(server.cart(&cookie).await, ["first", "second"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_behind_a_login_is_sent_back_and_leaves_the_new_cookie_alone() {
    let world = World::new(true).await;
    let (one, other) = (world.server().await, world.server().await);
    let old = one.first().await;
    let login = one.begin("login", &old).await;
    let behind = other.spawn("add/second", &old);
    somebody_waits(&one.rowlock).await;
    one.gate.go.notify_one();

    let login = login.answer().await;
    assert_eq!(login.status(), StatusCode::NO_CONTENT);
    let new = new_cookie(&login).unwrap();
    assert_ne!(new, old);
    let behind = behind.answer().await;
    assert_eq!(behind.status(), StatusCode::CONFLICT);
    assert_eq!(new_cookie(&behind), None);
    assert_eq!(other.post("add/second", &new).await.status(), 204);
    assert_eq!(other.cart(&new).await, ["first", "second"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_id_leaves_no_note_under_an_id_that_no_session_has() {
    let world = World::new(false).await;
    let server = world.server().await;
    let gone = server.first().await;
    assert_eq!(server.post("logout", &gone).await.status(), 204);
    let store = Arc::new(server.store.clone());
    let session = Session::new(Some(id(&gone)), store, None);
    rotate(&session, &server.store).await.unwrap();
    assert_eq!(server.store.load(&id(&gone)).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_save_outside_of_the_lock_is_refused_where_saves_are_pinned() {
    for (pins, status) in [(false, 204), (true, 500)] {
        let world = World::new(pins).await;
        let server = world.server().await;
        let cookie = server.first().await;
        assert_eq!(
            server.post("unlocked/second", &cookie).await.status(),
            status
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_save_does_not_bring_back_a_session_that_has_ended() {
    let world = World::new(false).await;
    let server = world.server().await;
    let cookie = server.first().await;
    let late = server.begin("unlocked/slow", &cookie).await;
    assert_eq!(server.post("logout", &cookie).await.status(), 204);
    server.gate.go.notify_one();
    assert_eq!(late.answer().await.status(), 500);
    assert_eq!(server.store.load(&id(&cookie)).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clock_of_the_database_ends_a_session() {
    let world = World::new(false).await;
    let store = Arc::new(world.server().await.store);
    for (seconds, lives) in [(60, true), (-1, false)] {
        let expiry = tower_sessions::Expiry::OnInactivity(time::Duration::seconds(seconds));
        let session = Session::new(None, store.clone(), Some(expiry));
        session.insert("cart", ["first"]).await.unwrap();
        session.save().await.unwrap();
        let id = session.id().unwrap();
        assert_eq!(store.load(&id).await.unwrap().is_some(), lives);
    }
    assert_eq!(store.remove_expired().await.unwrap(), 1);
    assert_eq!(store.remove_expired().await.unwrap(), 0);
}
