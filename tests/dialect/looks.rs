//! Looks and administrators' orders have connections of their own, so that no operation waits for them.

use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use rowlock::{Engine, Held, RecordFilter, Rowlock};
use rowlock_test::{Db, Mode, eventually, patience, take, through_proxy};

const TTL: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_release_that_waits_for_a_transaction_holds_up_no_operation() {
    for engine in [Engine::Postgres, Engine::MariaDb, Engine::MySql] {
        let db = Db::new(engine).await;
        let rowlock = db.rowlock().await;
        let held = take(&rowlock, "pinned", TTL).await;
        let tx = db.lock_row("pinned").await;
        let forced = tokio::spawn({
            let rowlock = rowlock.clone();
            async move { rowlock.admin().force_release("pinned").await }
        });
        let waits = async || db.waiting().await == 1;
        eventually("the forced release waits for the row", waits).await;
        // Enough names for each lane to have some.
        for number in 0..32 {
            let other = take(&rowlock, &format!("other-{number}"), TTL).await;
            other.release().await.unwrap();
        }
        assert!(
            !forced.is_finished(),
            "{engine}: the operations waited for it"
        );
        tx.release().await;
        let was = forced.await.unwrap().unwrap().expect("it was held");
        assert_eq!(was.fence, held.fence());
        db.remove().await;
    }
}

#[tokio::test]
async fn lists_that_follow_each_other_share_a_connection() {
    for engine in [Engine::Postgres, Engine::MariaDb, Engine::MySql] {
        let db = Db::new(engine).await;
        let (proxy, url) = through_proxy(&db).await;
        let rowlock = Rowlock::builder()
            .max_connections(7)
            .clean_every(None)
            .connect(&url);
        let rowlock = rowlock.await.unwrap();
        let admin = rowlock.admin();
        admin.list().await.unwrap();
        let before = proxy.connections();
        for _ in 0..20 {
            admin.list().await.unwrap();
        }
        // The answer may come a little before the connection is free: then the next list makes another one, if there
        // may be more.
        let made = proxy.connections() - before;
        assert!(made < 7, "{engine}: {made} connections for 20 lists");
        // There is one connection for both.
        let rowlock = Rowlock::builder().max_connections(2).connect(&url);
        let rowlock = rowlock.await.unwrap();
        let admin = rowlock.admin();
        let (sessions, runs) = tokio::join!(admin.sessions(), admin.runs());
        assert!(sessions.is_ok() && runs.is_ok());
        db.remove().await;
    }
}

/// Freed one after the other, each permit would cost a connection and several statements.
#[tokio::test]
async fn a_forced_release_of_many_permits_sends_no_more_than_one_of_two() {
    for engine in [Engine::Postgres, Engine::MariaDb, Engine::MySql] {
        let db = Db::new(engine).await;
        let (proxy, url) = through_proxy(&db).await;
        let (admin, holder) = (Rowlock::connect(&url).await.unwrap(), db.rowlock().await);
        let permit = holder.semaphore("s", 40).ttl(TTL);
        // It makes its connection.
        admin.admin().list().await.unwrap();
        let mut sent = Vec::new();
        for permits in [2, 40] {
            let mut held = Vec::new();
            for _ in 0..permits {
                held.push(permit.acquire().await.unwrap());
            }
            let before = proxy.requests();
            let first = admin.admin().force_release("s").await.unwrap().unwrap();
            sent.push(proxy.requests() - before);
            assert_eq!(
                first.fence,
                held[0].fence(),
                "the one that was granted first"
            );
            assert!(admin.admin().holders("s").await.unwrap().is_empty());
            drop(held);
            holder.flush().await;
        }
        assert!(sent[1] < sent[0] + 20, "{engine}: {sent:?}");
        db.remove().await;
    }
}

/// The server has freed them, and its answer is lost.
#[tokio::test]
async fn a_forced_release_whose_answer_is_lost_says_what_it_has_freed() {
    for engine in [Engine::Postgres, Engine::MariaDb, Engine::MySql] {
        let db = Db::new(engine).await;
        let (proxy, url) = through_proxy(&db).await;
        let rowlock = Rowlock::connect(&url).await.unwrap();
        let permit = rowlock.semaphore("s", 100).ttl(TTL);
        let mut held = Vec::new();
        for _ in 0..100 {
            held.push(permit.acquire().await.unwrap());
        }
        proxy.set(Mode::CutNextBatch);
        let first = rowlock.admin().force_release("s").await.unwrap();
        assert!(first.is_some(), "{engine}");
        // This client's guards know at once.
        assert!(!held.iter().any(Held::is_held), "{engine}");
        assert!(rowlock.admin().holders("s").await.unwrap().is_empty());
        db.remove().await;
    }
}

/// A client with spare connections for several slow operations at a time.
async fn with_room(db: &Db) -> Rowlock {
    let builder = Rowlock::builder().max_connections(8).clean_every(None);
    builder.connect(&db.url).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_hold_up_neither_operations_nor_looks() {
    let db = Db::new(Engine::Postgres).await;
    let rowlock = with_room(&db).await;
    let held = take(&rowlock, "n", TTL).await;
    let mut tx = db.begin().await;
    tx.execute("LOCK TABLE rowlock_idempotency").await.unwrap();
    let listed = tokio::spawn({
        let idempotency = rowlock.idempotency();
        async move { idempotency.list(&RecordFilter::new()).await }
    });
    let waits = async || db.waiting().await == 1;
    eventually("the list waits for the table", waits).await;
    for number in 0..32 {
        let other = take(&rowlock, &format!("other-{number}"), TTL).await;
        other.release().await.unwrap();
    }
    assert!(rowlock.inspect("n").await.unwrap().is_some());
    assert_eq!(
        rowlock.admin().list().await.unwrap().len(),
        1,
        "nor another list"
    );
    assert!(!listed.is_finished(), "the operations waited for it");
    tx.release().await;
    listed.await.unwrap().unwrap();
    drop(held);
    rowlock.flush().await;
    db.remove().await;
}

/// Its turn comes when another holder has the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_release_whose_caller_has_gone_frees_no_later_holder() {
    let db = Db::new(Engine::Postgres).await;
    // It has one spare connection.
    let (rowlock, other) = (db.rowlock().await, db.rowlock().await);
    let held = take(&other, "n", TTL).await;
    let mut tx = db.begin().await;
    tx.execute("LOCK TABLE rowlock_idempotency").await.unwrap();
    let idempotency = rowlock.idempotency();
    let listed = tokio::spawn(async move { idempotency.list(&RecordFilter::new()).await });
    let waits = async || db.waiting().await == 1;
    eventually("the list waits for the table", waits).await;
    {
        let mut release = Box::pin(rowlock.admin().force_release("n"));
        let begun = release
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        assert!(begun.is_pending(), "it is in the queue");
    }
    held.release().await.unwrap();
    let next = take(&other, "n", TTL).await;
    tx.release().await;
    listed.await.unwrap().unwrap();
    // (Another slow operation has its turn after it.)
    assert_eq!(rowlock.admin().list().await.unwrap().len(), 1);
    rowlock.flush().await;
    next.release().await.unwrap();
    drop((rowlock, other));
    db.remove().await;
}

/// What a list brings is a lot of work for this process, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_list_holds_up_no_operation() {
    let db = Db::new(Engine::Postgres).await;
    let rowlock = db.rowlock().await;
    db.execute(
        "INSERT INTO rowlock_lock (name, fence, grant_id, holder, acquired_at, expires_at)
         SELECT convert_to('row ' || n, 'UTF8'), n, md5(n::text)::uuid, 'another', now(), now() + interval '1 hour'
         FROM generate_series(1, 100000) n",
    )
    .await;
    let began = Instant::now();
    let listed = tokio::spawn({
        let rowlock = rowlock.clone();
        async move { rowlock.admin().list().await.unwrap().len() }
    });
    let mut longest = Duration::ZERO;
    while !listed.is_finished() {
        let began = Instant::now();
        let held = take(&rowlock, "n", TTL).await;
        held.release().await.unwrap();
        longest = longest.max(began.elapsed());
    }
    let took = began.elapsed();
    assert!(listed.await.unwrap() >= 100_000);
    assert!(longest < took / 4, "{longest:?} of {took:?}");
    drop(rowlock);
    db.remove().await;
}

/// Cleaning may take long, and nobody is in a hurry for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_cleanings_at_once_hold_up_neither_lists_nor_forced_releases() {
    let db = Db::new(Engine::Postgres).await;
    let rowlock = with_room(&db).await;
    let held = take(&rowlock, "n", TTL).await;
    let mut tx = db.begin().await;
    tx.execute("LOCK TABLE rowlock_idempotency").await.unwrap();
    let mut cleanings = Vec::new();
    for _ in 0..8 {
        let rowlock = rowlock.clone();
        let mut clean = Box::pin(async move { rowlock.admin().clean(10).await });
        // From the first look at it on it is in the queue.
        let begun = clean.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(begun.is_pending());
        cleanings.push(tokio::spawn(clean));
    }
    let waits = async || db.waiting().await > 0;
    eventually("a cleaning waits for the table", waits).await;
    assert_eq!(rowlock.admin().list().await.unwrap().len(), 1);
    assert!(rowlock.admin().force_release("n").await.unwrap().is_some());
    let finished = cleanings.iter().filter(|clean| clean.is_finished()).count();
    assert_eq!(finished, 0, "the list waited for cleanings");
    assert_eq!(db.waiting().await, 1, "they wait for each other");
    tx.release().await;
    for clean in cleanings {
        let done = tokio::time::timeout(patience(), clean).await;
        done.expect("its turn comes").unwrap().unwrap();
    }
    drop((held, rowlock));
    db.remove().await;
}

/// Slow operations take turns; each of these takes all of its time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_of_a_slow_operation_counts_from_its_turn() {
    let db = Db::new(Engine::Postgres).await;
    let timeout = Duration::from_secs(1);
    let rowlock = Rowlock::builder().operation_timeout(timeout);
    let rowlock = rowlock.connect(&db.url).await.unwrap();
    let mut held = Vec::new();
    for number in 0..8 {
        held.push(take(&rowlock, &format!("n{number}"), TTL).await);
    }
    let mut tx = db.begin().await;
    tx.execute("SELECT fence FROM rowlock_lock FOR UPDATE")
        .await
        .unwrap();
    let mut forced = Vec::new();
    for held in &held {
        let (rowlock, name) = (rowlock.clone(), held.name().clone());
        let mut force = Box::pin(async move { rowlock.admin().force_release(name.as_str()).await });
        // From the first look at it on it is in the queue.
        let begun = force.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(begun.is_pending());
        forced.push(tokio::spawn(force));
    }
    let began = Instant::now();
    assert_eq!(rowlock.admin().list().await.unwrap().len(), 8);
    assert!(began.elapsed() > timeout, "it had to wait for its turn");
    for forced in forced {
        assert!(forced.await.unwrap().is_err(), "the row is locked");
    }
    tx.release().await;
    drop(held);
    rowlock.flush().await;
    db.remove().await;
}
