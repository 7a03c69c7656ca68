//! `MySQL` and `MariaDB`: a client that waits sleeps on a connection, and is woken. SQLite: it is told by a datagram.

use std::time::{Duration, Instant};

use rowlock::{Engine, Rowlock};
use rowlock_test::{Db, Own, User, eventually, join, patience, take, takes_less_than};
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(30);

/// How many connections of the user sleep.
async fn asleep(db: &Db, user: &User) -> i64 {
    let user = &user.name;
    let sleeps = if db.engine == Engine::MariaDb {
        format!(
            "SELECT COUNT(*) FROM information_schema.processlist
             WHERE user = '{user}' AND state LIKE 'Waiting in MASTER_GTID_WAIT%'"
        )
    } else {
        format!(
            "SELECT COUNT(*) FROM performance_schema.threads
             WHERE processlist_user = '{user}' AND processlist_state = 'User sleep'"
        )
    };
    db.number(&sleeps).await
}

/// How many statements the user has sent.
async fn sent(db: &Db, user: &User) -> i64 {
    let user = &user.name;
    db.number(&format!(
        "SELECT CAST(SUM(count_star) AS SIGNED)
         FROM performance_schema.events_statements_summary_by_user_by_event_name WHERE user = '{user}'"
    ))
    .await
}

/// The user of one client may not end the statements of the other one.
#[tokio::test]
async fn a_client_that_nobody_may_wake_looks_often() {
    let db = Db::new(Engine::MySql).await;
    let (one, two) = (User::new(&db, "").await, User::new(&db, "").await);
    let holds = Rowlock::connect(&one.url).await.unwrap();
    let waits = Rowlock::connect(&two.url).await.unwrap();
    // A hand-over long after the waiter came. The first one is late: then the waiter knows.
    let hand_over = async || {
        let held = take(&holds, "a", TTL).await;
        let waiting = join(&waits, "a", "waits").await;
        let before = sent(&db, &two).await;
        eventually("it waits for long", async || {
            sent(&db, &two).await > before + 100
        })
        .await;
        held.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
    };
    hand_over().await;
    // In the pace of clients that are told, these are the statements of 20 seconds.
    takes_less_than(Duration::from_secs(6), hand_over).await;
    drop((holds, waits));
    one.remove(&db).await;
    two.remove(&db).await;
    db.remove().await;
}

#[tokio::test]
async fn a_client_that_shuts_down_leaves_no_sleeping_connection() {
    for engine in [Engine::MySql, Engine::MariaDb] {
        let db = Db::new(engine).await;
        let user = User::new(&db, "").await;
        let holds = db.rowlock().await;
        let waits = Rowlock::connect(&user.url).await.unwrap();
        let held = take(&holds, "a", TTL).await;
        let waiting = join(&waits, "a", "waits").await;
        eventually("it sleeps", async || asleep(&db, &user).await == 1).await;
        waiting.abort();
        assert!(waits.shutdown(patience()).await.is_empty());
        assert_eq!(asleep(&db, &user).await, 0);
        held.release().await.unwrap();
        drop(holds);
        user.remove(&db).await;
        db.remove().await;
    }
}

/// A few waits as `MariaDB`'s clients have them would keep the threads of the pool busy.
#[tokio::test]
async fn nobody_sleeps_in_the_pool_of_threads_of_mariadb() {
    let server = Own::start("mariadb", &["--thread-handling=pool-of-threads"]);
    let db = Db::on(Engine::MariaDb, &server.url).await;
    let user = User::new(&db, "").await;
    let holds = db.rowlock().await;
    let waits = Rowlock::connect(&user.url).await.unwrap();
    for _ in 0..3 {
        let held = take(&holds, "a", TTL).await;
        let waiting = join(&waits, "a", "waits").await;
        held.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
    }
    // It would sleep for ten more seconds.
    assert_eq!(asleep(&db, &user).await, 0);
    drop((holds, waits));
    user.remove(&db).await;
    db.remove().await;
}

/// Passes a name on to its waiter, as a client in another container does, which cannot tell it. Returns how long the
/// waiter took.
async fn pass_on_silently(db: &Db, clients: (&Rowlock, &Rowlock)) -> Duration {
    let (holds, waits) = clients;
    let _held = take(holds, "a", TTL).await;
    let waiting = join(waits, "a", "waits").await;
    // Longer than a new place is looked at soon.
    sleep(Duration::from_millis(300)).await;
    let now = "CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000";
    db.execute(&format!(
        "BEGIN IMMEDIATE;
         UPDATE rowlock_lock
         SET grant_id = (SELECT grant_id FROM rowlock_waiter), fence = fence + 1, holder = 'waits', acquired_at = {now},
             expires_at = {now} + 2000000, waiters = 0, passed = next_position - 1;
         DELETE FROM rowlock_waiter;
         COMMIT"
    ))
    .await;
    let passed = Instant::now();
    let held = waiting.await.unwrap().unwrap();
    let took = passed.elapsed();
    held.release().await.unwrap();
    took
}

#[tokio::test]
async fn a_client_that_nobody_tells_looks_often() {
    let db = Db::new(Engine::Sqlite).await;
    let (holds, waits) = (db.rowlock().await, db.rowlock().await);
    // The first one is late: then the waiter knows.
    pass_on_silently(&db, (&holds, &waits)).await;
    // In the pace of clients that are told, these take some eight seconds.
    takes_less_than(Duration::from_secs(5), async || {
        for _ in 0..10 {
            // What comes from its own process does not show that others reach it.
            let held = take(&holds, "a", TTL).await;
            let waiting = join(&waits, "a", "waits").await;
            held.release().await.unwrap();
            waiting.await.unwrap().unwrap().release().await.unwrap();
            pass_on_silently(&db, (&holds, &waits)).await;
        }
    })
    .await;
    drop((holds, waits));
    db.remove().await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_client_that_is_told_looks_seldom() {
    let db = Db::new(Engine::Sqlite).await;
    let holds = db.rowlock().await;
    let began = Instant::now();
    // Looks find what was not told. A client that looks often does so within milliseconds.
    loop {
        assert!(began.elapsed() < patience(), "it looks often");
        let waits = db.rowlock().await;
        if pass_on_silently(&db, (&holds, &waits)).await > Duration::from_millis(100) {
            break;
        }
    }
    drop(holds);
    db.remove().await;
}
