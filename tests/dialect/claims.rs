//! Claims in transactions on MySQL and MariaDB: what they leave behind in the session of the pool's.

use std::sync::Arc;

use rowlock::{Begun, Engine, Error, Fingerprint, Outcome, Rowlock, Scope};
use rowlock_test::{App, Db};
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

async fn pay(rowlock: &Rowlock, pool: &MySqlPool, key: &str) -> Begun<Outcome> {
    let idempotency = rowlock.idempotency();
    let work = |tx| async move {
        drop(tx);
        Outcome::json(&1)
    };
    let request = Fingerprint::of("request");
    let begun = idempotency.run_in_tx(pool, Scope("scope").key(key), request, work);
    begun.await.unwrap()
}

#[tokio::test]
async fn a_claim_leaves_the_lock_wait_of_the_session_as_it_was() {
    for engine in [Engine::MariaDb, Engine::MySql] {
        let db = Db::new(engine).await;
        let App::MySql(elsewhere) = &db.app else {
            unreachable!("a pool of MySQL's")
        };
        let one = MySqlPoolOptions::new().max_connections(1);
        let pool = one.connect(&db.url).await.unwrap();
        sqlx::raw_sql("SET SESSION innodb_lock_wait_timeout = 77")
            .execute(&pool)
            .await
            .unwrap();
        let as_before = async || {
            let wait = "SELECT CAST(@@innodb_lock_wait_timeout AS SIGNED)";
            let wait: i64 = sqlx::query_scalar(wait).fetch_one(&pool).await.unwrap();
            assert_eq!(wait, 77, "{engine}");
        };

        let rowlock = db.rowlock().await;
        let begun = pay(&rowlock, &pool, "k").await;
        assert!(matches!(begun, Begun::New(_)), "{begun:?}");
        as_before().await;
        // Another process, that has not seen the key, finds it inserted.
        let begun = pay(&db.rowlock().await, &pool, "k").await;
        assert!(matches!(begun, Begun::Replay(_)), "{begun:?}");
        as_before().await;

        let (inside, is_inside) = oneshot::channel();
        let go_on = Arc::new(Notify::new());
        let slow = {
            let (rowlock, pool, go_on) = (rowlock.clone(), elsewhere.clone(), Arc::clone(&go_on));
            tokio::spawn(async move {
                let inside = std::sync::Mutex::new(Some(inside));
                let (inside, go_on) = (&inside, &go_on);
                let idempotency = rowlock.idempotency();
                let work = |tx| async move {
                    inside.lock().unwrap().take().unwrap().send(()).unwrap();
                    go_on.notified().await;
                    drop(tx);
                    Outcome::json(&1)
                };
                let request = Fingerprint::of("request");
                let run = idempotency.run_in_tx(&pool, Scope("scope").key("slow"), request, work);
                run.await.map_err(|error: Error| error)
            })
        };
        is_inside.await.unwrap();
        let begun = pay(&db.rowlock().await, &pool, "slow").await;
        assert!(matches!(begun, Begun::InFlight(_)), "{begun:?}");
        as_before().await;
        go_on.notify_one();
        let begun = slow.await.unwrap();
        assert!(matches!(begun, Ok(Begun::New(_))), "{begun:?}");
        pool.close().await;
        db.remove().await;
    }
}

/// Also a client that has not seen the key, as after a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_no_writes_replays_outcomes() {
    for engine in [Engine::MariaDb, Engine::MySql] {
        let db = Db::new(engine).await;
        let App::MySql(pool) = &db.app else {
            unreachable!("a pool of MySQL's")
        };
        let begun = pay(&db.rowlock().await, pool, "k").await;
        assert!(matches!(begun, Begun::New(_)), "{begun:?}");
        let other = db.rowlock().await;
        db.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON rowlock_idempotency FOR EACH ROW
             SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1290, MESSAGE_TEXT = 'read only'",
        )
        .await;
        let idempotency = other.idempotency();
        let request = Fingerprint::of("request");
        let begin = async |key| idempotency.begin(Scope("scope").key(key), &request).await;
        let begun = begin("k").await;
        assert!(matches!(begun, Ok(Begun::Replay(_))), "{engine}: {begun:?}");
        let begun = begin("another").await;
        assert!(begun.is_err(), "{engine}: {begun:?}");
        db.execute("DROP TRIGGER refuse").await;
        db.remove().await;
    }
}

/// Each of them needs more than one record of TLS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_large_outcomes_are_kept_at_once() {
    for engine in [Engine::MariaDb, Engine::MySql] {
        let db = Db::new(engine).await;
        let idempotency = db.rowlock().await.idempotency();
        let mut tasks = JoinSet::new();
        for number in 0..300 {
            let idempotency = idempotency.clone();
            tasks.spawn(async move {
                let (key, request) = (format!("k{number}"), Fingerprint::of("request"));
                let begun = idempotency.begin(Scope("scope").key(key), &request).await;
                let Begun::New(guard) = begun.unwrap() else {
                    unreachable!("it is new")
                };
                let outcome = Outcome::new("text/plain", "x".repeat(8_200)).unwrap();
                guard.complete(&outcome).await
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.unwrap().unwrap();
        }
        db.remove().await;
    }
}
