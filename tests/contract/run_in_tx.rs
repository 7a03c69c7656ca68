//! Claim, work and outcome in one transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rowlock::{
    Begun, Error, Fingerprint, Outcome, RecordError, Retry, Rowlock, Scope, TransactionError,
};
use rowlock_test::{App, Db, on_app, on_every_engine};
use tokio::sync::{Notify, oneshot};
use tokio::task::{JoinHandle, JoinSet};

fn request() -> Fingerprint {
    Fingerprint::of("request")
}

async fn table(db: &Db) {
    db.execute("CREATE TABLE payment (id VARCHAR(40) NOT NULL)")
        .await;
}

async fn payments(db: &Db) -> i64 {
    db.number("SELECT COUNT(*) FROM payment").await
}

async fn pay(rowlock: &Rowlock, app: &App, key: &str) -> Result<Begun<Outcome>, Error> {
    pay_within(rowlock, app, key, Duration::from_mins(1)).await
}

async fn pay_within(
    rowlock: &Rowlock,
    app: &App,
    key: &str,
    wait: Duration,
) -> Result<Begun<Outcome>, Error> {
    let idempotency = rowlock.idempotency().wait(wait);
    let idempotency = idempotency.retry(Retry::new().attempts(50));
    on_app!(app, pool => {
        idempotency.run_in_tx(pool, Scope("scope").key(key), &request(), |mut tx| async move {
            sqlx::raw_sql("INSERT INTO payment VALUES ('a')").execute(&mut *tx).await?;
            Outcome::json(&"paid")
        }).await
    })
}

/// A transaction that has the key and stands still in the middle of its work.
struct Slow {
    running: JoinHandle<Result<Begun<Outcome>, Error>>,
    go_on: Arc<Notify>,
}

impl Slow {
    async fn begin(rowlock: &Rowlock, app: &App, key: &'static str, fails: bool) -> Self {
        let (inside, is_inside) = oneshot::channel();
        let go_on = Arc::new(Notify::new());
        let running = {
            let (rowlock, app, go_on) = (rowlock.clone(), app.clone(), Arc::clone(&go_on));
            tokio::spawn(async move {
                let inside = std::sync::Mutex::new(Some(inside));
                let (inside, go_on) = (&inside, &go_on);
                let idempotency = rowlock.idempotency();
                on_app!(&app, pool => {
                    idempotency.run_in_tx(pool, Scope("scope").key(key), &request(), |mut tx| async move {
                        sqlx::raw_sql("INSERT INTO payment VALUES ('slow')").execute(&mut *tx).await?;
                        let _ = inside.lock().unwrap().take().unwrap().send(());
                        go_on.notified().await;
                        if fails {
                            return Err(Error::Transaction(TransactionError::NotOneRow { rows: 2 }));
                        }
                        Outcome::json(&"slow")
                    }).await
                })
            })
        };
        is_inside.await.unwrap();
        Self { running, go_on }
    }

    async fn end(self) -> Result<Begun<Outcome>, Error> {
        self.go_on.notify_one();
        self.running.await.unwrap()
    }
}

/// Another key, or a reader, gets a connection of the pool. (The one writer lets no other transaction write
/// meanwhile.)
async fn strangers_get_through(db: &Db, rowlock: &Rowlock, app: &App) {
    for n in 0..40 {
        // Some of them sort right before the key that is slow.
        let key = format!("{} {n}", ["sloo", "stranger"][n % 2]);
        if db.one_writer() {
            assert!(
                rowlock
                    .idempotency()
                    .inspect(Scope("scope").key(&key))
                    .await
                    .unwrap()
                    .is_none()
            );
            let is_left = on_app!(app, pool => pool.try_acquire().is_some() || pool.size() < 5);
            assert!(is_left, "the pool has none left");
        } else {
            let begun = pay_within(rowlock, app, &key, Duration::ZERO).await;
            assert!(matches!(begun, Ok(Begun::New(_))), "{begun:?}");
        }
    }
    assert_eq!(payments(db).await, if db.one_writer() { 0 } else { 40 });
}

on_every_engine! {
    async fn a_slow_key_leaves_the_pool_to_others(db: &Db) {
        table(db).await;
        let app = App::connect(&db.url, 5).await;
        let (here, there) = (db.rowlock().await, db.rowlock().await);
        let slow = Slow::begin(&here, &app, "slow", false).await;
        let mut duplicates = JoinSet::new();
        for n in 0..20 {
            let (rowlock, app) = (if n < 10 { here.clone() } else { there.clone() }, app.clone());
            duplicates.spawn(async move { pay(&rowlock, &app, "slow").await });
        }
        strangers_get_through(db, &here, &app).await;
        assert!(duplicates.try_join_next().is_none(), "they wait");
        assert!(matches!(slow.end().await.unwrap(), Begun::New(_)));
        while let Some(duplicate) = duplicates.join_next().await {
            let Begun::Replay(replay) = duplicate.unwrap().unwrap() else { panic!("replay") };
            assert_eq!(replay.parse_json::<String>().unwrap(), "slow");
        }
    }

    async fn without_a_wait_a_key_in_a_transaction_is_in_flight(db: &Db) {
        table(db).await;
        let (here, there) = (db.rowlock().await, db.rowlock().await);
        let slow = Slow::begin(&here, &db.app, "slow", false).await;
        for _ in 0..3 {
            // Where there is one writer, another process waits for it.
            for client in [&here, if db.one_writer() { &here } else { &there }] {
                let begun = pay_within(client, &db.app, "slow", Duration::ZERO).await.unwrap();
                let Begun::InFlight(in_flight) = begun else { panic!("{begun:?}") };
                assert_eq!(in_flight.remaining, None);
            }
        }
        assert!(matches!(slow.end().await.unwrap(), Begun::New(_)));
        let begun = pay_within(&there, &db.app, "slow", Duration::ZERO).await.unwrap();
        assert!(matches!(begun, Begun::Replay(_)), "{begun:?}");
        assert_eq!(payments(db).await, 1);
    }

    async fn a_freed_key_that_a_transaction_has_is_waited_for_likewise(db: &Db) {
        table(db).await;
        let app = App::connect(&db.url, 5).await;
        let (here, there) = (db.rowlock().await, db.rowlock().await);
        // There is a record, which the transaction takes over: its row is what the others find locked.
        let Begun::New(freed) = here.idempotency().begin(Scope("scope").key("slow"), &request()).await.unwrap() else {
            panic!("new")
        };
        freed.release().await.unwrap();
        let slow = Slow::begin(&here, &app, "slow", false).await;
        for client in [&here, if db.one_writer() { &here } else { &there }] {
            let begun = pay_within(client, &app, "slow", Duration::ZERO).await.unwrap();
            assert!(matches!(begun, Begun::InFlight(_)), "{begun:?}");
        }
        let mut duplicates = JoinSet::new();
        for n in 0..20 {
            let (rowlock, app) = (if n < 10 { here.clone() } else { there.clone() }, app.clone());
            duplicates.spawn(async move { pay(&rowlock, &app, "slow").await });
        }
        strangers_get_through(db, &here, &app).await;
        assert!(matches!(slow.end().await.unwrap(), Begun::New(_)));
        while let Some(duplicate) = duplicates.join_next().await {
            let begun = duplicate.unwrap().unwrap();
            assert!(matches!(begun, Begun::Replay(_)), "{begun:?}");
        }
    }

    async fn one_of_those_who_wait_runs_it_when_the_first_one_fails(db: &Db) {
        table(db).await;
        let app = App::connect(&db.url, 5).await;
        let (here, there) = (db.rowlock().await, db.rowlock().await);
        let slow = Slow::begin(&here, &app, "slow", true).await;
        let mut duplicates = JoinSet::new();
        for n in 0..20 {
            let (rowlock, app) = (if n < 10 { here.clone() } else { there.clone() }, app.clone());
            duplicates.spawn(async move { pay(&rowlock, &app, "slow").await });
        }
        assert!(matches!(slow.end().await, Err(Error::Transaction(TransactionError::NotOneRow { rows: 2 }))));
        let mut new = 0;
        while let Some(duplicate) = duplicates.join_next().await {
            match duplicate.unwrap().unwrap() {
                Begun::New(_) => new += 1,
                Begun::Replay(_) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((new, payments(db).await), (1, 1));
    }

    async fn it_is_run_once_and_replayed(db: &Db) {
        table(db).await;
        let rowlock = db.rowlock().await;
        let begun = pay(&rowlock, &db.app, "k").await.unwrap();
        assert!(matches!(begun, Begun::New(_)), "{begun:?}");
        for _ in 0..3 {
            let begun = pay(&db.rowlock().await, &db.app, "k").await.unwrap();
            let Begun::Replay(replay) = begun else { panic!("{begun:?}") };
            assert_eq!(replay.parse_json::<String>().unwrap(), "paid");
        }
        assert_eq!(payments(db).await, 1);
        let idempotency = rowlock.idempotency();
        let other = Fingerprint::of("another request");
        let begun = idempotency.begin(Scope("scope").key("k"), &other).await.unwrap();
        assert!(matches!(begun, Begun::Mismatch), "{begun:?}");
    }

    async fn concurrent_duplicates_wait_and_get_the_same_outcome(db: &Db) {
        table(db).await;
        let rowlock = db.rowlock().await;
        let app = App::connect(&db.url, 10).await;
        let mut tasks = JoinSet::new();
        for task in 0..60 {
            let (rowlock, app) = (rowlock.clone(), app.clone());
            tasks.spawn(async move { pay(&rowlock, &app, &format!("key {}", task % 6)).await });
        }
        let mut new = 0;
        while let Some(task) = tasks.join_next().await {
            match task.unwrap().unwrap() {
                Begun::New(_) => new += 1,
                Begun::Replay(_) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((new, payments(db).await), (6, 6));
    }

    async fn an_error_of_the_work_rolls_everything_back(db: &Db) {
        table(db).await;
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        let failed: Result<_, Error> = on_app!(&db.app, pool => {
            idempotency.run_in_tx(pool, Scope("scope").key("k"), &request(), |mut tx| async move {
                sqlx::raw_sql("INSERT INTO payment VALUES ('a')").execute(&mut *tx).await?;
                Err(Error::Transaction(TransactionError::NotOneRow { rows: 2 }))
            }).await
        });
        assert!(matches!(failed, Err(Error::Transaction(TransactionError::NotOneRow { .. }))), "{failed:?}");
        assert_eq!(payments(db).await, 0);
        assert_eq!(db.number("SELECT COUNT(*) FROM rowlock_idempotency").await, 0);
        assert!(matches!(pay(&rowlock, &db.app, "k").await.unwrap(), Begun::New(_)));
    }

    async fn an_outcome_that_is_too_large_rolls_everything_back(db: &Db) {
        table(db).await;
        let idempotency = db.rowlock().await.idempotency().max_outcome(3);
        let failed: Result<_, Error> = on_app!(&db.app, pool => {
            idempotency.run_in_tx(pool, Scope("scope").key("k"), &request(), |mut tx| async move {
                sqlx::raw_sql("INSERT INTO payment VALUES ('a')").execute(&mut *tx).await?;
                Outcome::json(&"four")
            }).await
        });
        assert!(matches!(failed, Err(Error::Record(RecordError::OutcomeTooLarge { .. }))), "{failed:?}");
        assert_eq!(payments(db).await, 0);
    }

    async fn a_conflict_is_tried_again(db: &Db) {
        table(db).await;
        let idempotency = db.rowlock().await.idempotency();
        let tries = AtomicU32::new(0);
        let tries = &tries;
        let begun: Result<_, Error> = on_app!(&db.app, pool => {
            idempotency.run_in_tx(pool, Scope("scope").key("k"), &request(), |mut tx| async move {
                sqlx::raw_sql("INSERT INTO payment VALUES ('a')").execute(&mut *tx).await?;
                if tries.fetch_add(1, Ordering::Relaxed) < 2 {
                    return Err(Error::Conflict { what: "a test".into() });
                }
                Outcome::json(&1)
            }).await
        });
        assert!(matches!(begun, Ok(Begun::New(_))), "{begun:?}");
        assert_eq!((tries.load(Ordering::Relaxed), payments(db).await), (3, 1));
    }

    async fn a_transaction_that_is_cut_off_leaves_nothing_behind(db: &Db) {
        table(db).await;
        let rowlock = db.rowlock().await;
        for after in 0..80 {
            let pay = pay(&rowlock, &db.app, "k");
            tokio::pin!(pay);
            tokio::select! {
                biased;
                _ = &mut pay => {}
                () = async { for _ in 0..after * after { tokio::task::yield_now().await } } => {}
            }
        }
        let begun = pay(&rowlock, &db.app, "k").await.unwrap();
        assert!(matches!(begun, Begun::New(_) | Begun::Replay(_)), "{begun:?}");
        assert_eq!(payments(db).await, 1);
    }

    async fn a_begin_meets_a_transaction_that_has_the_key(db: &Db) {
        table(db).await;
        let rowlock = db.rowlock().await;
        let (inside, is_inside) = oneshot::channel();
        let go_on = Arc::new(Notify::new());
        let running = {
            let (rowlock, app, go_on) = (rowlock.clone(), db.app.clone(), Arc::clone(&go_on));
            tokio::spawn(async move {
                let inside = std::sync::Mutex::new(Some(inside));
                let (inside, go_on) = (&inside, &go_on);
                let idempotency = rowlock.idempotency();
                on_app!(&app, pool => {
                    idempotency.run_in_tx(pool, Scope("scope").key("k"), &request(), |tx| async move {
                        let _ = inside.lock().unwrap().take().unwrap().send(());
                        go_on.notified().await;
                        drop(tx);
                        Outcome::json(&"in a transaction")
                    }).await
                })
            })
        };
        is_inside.await.unwrap();
        if !db.one_writer() {
            // Nothing is held up: the key is in flight, others go on. (Whoever waited for the transaction would
            // have no answer before the test ends: the server's lock time-out is half as long as an operation has.)
            let patient = Rowlock::builder().operation_timeout(Duration::from_mins(10));
            let idempotency = patient.connect(&db.url).await.unwrap().idempotency();
            let begun = idempotency.begin(Scope("scope").key("k"), &request()).await.unwrap();
            let Begun::InFlight(in_flight) = begun else { panic!("{begun:?}") };
            assert_eq!(in_flight.remaining, None);
            let others = (0..40).map(|n| {
                let idempotency = idempotency.clone();
                async move { idempotency.begin(Scope("scope").key(format!("other {n}")), &request()).await }
            });
            for begun in others.map(tokio::spawn).collect::<Vec<_>>() {
                assert!(matches!(begun.await.unwrap().unwrap(), Begun::New(_)));
            }
        }
        let waiting = {
            let idempotency = rowlock.idempotency().wait(Duration::from_mins(1));
            tokio::spawn(async move { idempotency.begin(Scope("scope").key("k"), &request()).await })
        };
        go_on.notify_one();
        let begun = running.await.unwrap();
        let begun: Begun<Outcome> = begun.map_err(|error: Error| error).unwrap();
        assert!(matches!(begun, Begun::New(_)));
        let waited = waiting.await.unwrap().unwrap();
        assert!(matches!(waited, Begun::Replay(_)), "{waited:?}");
    }

    async fn an_attempt_outside_is_in_flight_for_a_transaction(db: &Db) {
        table(db).await;
        let rowlock = db.rowlock().await;
        let begun = rowlock.idempotency().begin(Scope("scope").key("k"), &request()).await.unwrap();
        let Begun::New(guard) = begun else { panic!("new") };
        for wait in [Duration::ZERO, Duration::from_millis(50)] {
            let began = Instant::now();
            let begun = pay_within(&rowlock, &db.app, "k", wait).await.unwrap();
            assert!(matches!(begun, Begun::InFlight(_)), "{begun:?}");
            assert!(began.elapsed() >= wait);
        }
        guard.release().await.unwrap();
        let begun = pay(&rowlock, &db.app, "k").await.unwrap();
        assert!(matches!(begun, Begun::New(_)), "{begun:?}");
        assert_eq!(payments(db).await, 1);
    }

    async fn what_the_closure_reads_is_not_older_than_a_lock_it_takes(db: &Db) {
        db.execute("CREATE TABLE counter (n BIGINT NOT NULL)").await;
        db.execute("INSERT INTO counter VALUES (0)").await;
        let rowlock = db.rowlock().await;
        let mut tasks = JoinSet::new();
        for task in 0..40 {
            let (rowlock, app) = (rowlock.clone(), db.app.clone());
            tasks.spawn(async move {
                let idempotency = rowlock.idempotency().retry(Retry::new().attempts(100));
                let (key, rowlock) = (format!("key {task}"), &rowlock);
                let begun: Result<_, Error> = on_app!(&app, pool => {
                    idempotency.run_in_tx(pool, Scope("scope").key(&key), &request(), |mut tx| async move {
                        rowlock.in_tx(&mut tx).lock("counter").acquire().await?;
                        let n: i64 = sqlx::query_scalar("SELECT n FROM counter").fetch_one(&mut *tx).await?;
                        let update = sqlx::AssertSqlSafe(format!("UPDATE counter SET n = {}", n + 1));
                        sqlx::raw_sql(update).execute(&mut *tx).await?;
                        Outcome::json(&n)
                    }).await
                });
                assert!(matches!(begun.unwrap(), Begun::New(_)));
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
        assert_eq!(db.number("SELECT n FROM counter").await, 40);
    }
}
