//! Trying a transaction again: what is tried, how often, and what is left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rowlock::{Error, InvalidError, Pool, Retry, Retryable, TransactionError};
use rowlock_test::{App, Db, eventually, on_app, on_every_engine, patience, release};
use sqlx::AssertSqlSafe;
use tokio::sync::Barrier;

const MS: Duration = Duration::from_millis(1);

/// Without end, and without long pauses.
const EAGER: Retry = Retry::new()
    .attempts(u32::MAX)
    .backoff(MS, Duration::from_millis(40));

/// A statement on whichever transaction it is.
macro_rules! run {
    ($tx:expr, $sql:expr) => {
        sqlx::raw_sql(AssertSqlSafe($sql)).execute(&mut *$tx).await
    };
}

macro_rules! number {
    ($tx:expr, $sql:expr) => {
        sqlx::query_scalar::<_, i64>(AssertSqlSafe($sql))
            .fetch_one(&mut *$tx)
            .await
    };
}

async fn table(db: &Db) {
    db.execute("CREATE TABLE app (id BIGINT NOT NULL PRIMARY KEY, n BIGINT NOT NULL, version BIGINT NOT NULL)").await;
    db.execute("INSERT INTO app VALUES (1, 0, 0), (2, 0, 0)")
        .await;
}

on_every_engine! {
    async fn what_was_written_after_a_statement_had_failed_is_there_or_an_error_says_that_it_is_not(db: &Db) {
        table(db).await;
        let rowlock = db.rowlock().await;
        let held = rowlock.lock("a").acquire().await.unwrap();
        // "Insert it; if it is there already, go on."
        let fails = "INSERT INTO app VALUES (1, 0, 0)";
        let writes = |n: i64| format!("UPDATE app SET n = n + {n} WHERE id = 1");
        for (fails, n) in [("SELECT 1", 1), (fails, 10)] {
            let held = &held;
            let told = on_app!(&db.app, pool => Retry::new().run(pool, |mut tx| async move {
                held.pin(&mut tx).await?;
                let _ = run!(tx, fails);
                let _ = run!(tx, writes(n));
                Ok::<_, Error>(())
            }).await);
            let is_there = db.number("SELECT n FROM app WHERE id = 1").await >= n;
            assert_eq!(told.is_ok(), is_there, "{n}: {told:?}");
        }
        eventually("no transaction is left open", async || db.open_transactions().await == 0).await;
        release(&held).await;
    }

    async fn counting_by_a_version_loses_nothing(db: &Db) {
        table(db).await;
        let rowlock = db.rowlock().await;
        let (tries, together) = (AtomicU32::new(0), Barrier::new(4));
        let count = || async {
            let has_met = AtomicBool::new(db.one_writer());
            for _ in 0..10 {
                let (rowlock, tries) = (&rowlock, &tries);
                let (together, has_met) = (&together, &has_met);
                on_app!(&db.app, pool => EAGER.run(pool, |mut tx| async move {
                    tries.fetch_add(1, Ordering::Relaxed);
                    let seen = rowlock.in_tx(&mut tx).version("a").await?;
                    if !has_met.swap(true, Ordering::Relaxed) {
                        // All four have seen this version.
                        together.wait().await;
                    }
                    let n = number!(tx, "SELECT n FROM app WHERE id = 1")?;
                    run!(tx, format!("UPDATE app SET n = {} WHERE id = 1", n + 1))?;
                    rowlock.in_tx(&mut tx).advance(&seen).await?.or_conflict(&seen)
                }).await.unwrap());
            }
        };
        tokio::join!(count(), count(), count(), count());
        assert_eq!(db.number("SELECT n FROM app WHERE id = 1").await, 40);
        if !db.one_writer() {
            assert!(tries.into_inner() > 40, "they got in each other's way");
        }
    }

    async fn counting_by_a_column_of_ones_own_loses_nothing(db: &Db) {
        table(db).await;
        let count = || async {
            for _ in 0..10 {
                on_app!(&db.app, pool => EAGER.run(pool, |mut tx| async move {
                    // Both in one statement: under READ COMMITTED two might see different times.
                    let row = "SELECT n, version FROM app WHERE id = 1";
                    let (n, version): (i64, i64) = sqlx::query_as(row).fetch_one(&mut *tx).await?;
                    let sql = format!(
                        "UPDATE app SET n = {}, version = version + 1 WHERE id = 1 AND version = {version}",
                        n + 1
                    );
                    rowlock::one_changed(run!(tx, sql)?.rows_affected())
                }).await.unwrap());
            }
        };
        tokio::join!(count(), count(), count(), count());
        assert_eq!(db.number("SELECT n FROM app WHERE id = 1").await, 40);
        let error = rowlock::one_changed(2).unwrap_err();
        assert!(matches!(error, Error::Transaction(TransactionError::NotOneRow { rows: 2 })) && !error.is_retryable(), "{error}");
    }

    async fn deadlocks_are_tried_again(db: &Db) {
        table(db).await;
        let (met, tries) = (tokio::sync::Barrier::new(2), AtomicU32::new(0));
        let both = |first: i64, second: i64| {
            let (met, tries) = (&met, &tries);
            async move {
                let run = AtomicU32::new(0);
                let run = &run;
                on_app!(&db.app, pool => EAGER.run(pool, |mut tx| async move {
                    tries.fetch_add(1, Ordering::Relaxed);
                    run!(tx, format!("UPDATE app SET n = n + 1 WHERE id = {first}"))?;
                    if run.fetch_add(1, Ordering::Relaxed) == 0 && !db.one_writer() {
                        met.wait().await; // each has one row, and wants the other's
                    }
                    run!(tx, format!("UPDATE app SET n = n + 1 WHERE id = {second}"))?;
                    Ok::<_, Error>(())
                }).await.unwrap());
            }
        };
        tokio::join!(both(1, 2), both(2, 1));
        assert_eq!(db.number("SELECT n FROM app WHERE id = 1").await, 2);
        assert_eq!(db.number("SELECT n FROM app WHERE id = 2").await, 2);
        let tries = tries.into_inner();
        if db.one_writer() {
            assert_eq!(tries, 2);
        } else {
            // Its next try may take a row again before the other transaction wakes up, and then there is one more
            // deadlock.
            assert!(tries >= 3, "one was chosen to go: {tries} tries");
        }
    }

    async fn serialization_failures_are_tried_again(db: &Db) {
        table(db).await;
        let (met, tries) = (tokio::sync::Barrier::new(2), AtomicU32::new(0));
        let swap = |read: i64, write: i64| {
            let (met, tries) = (&met, &tries);
            async move {
                let run = AtomicU32::new(0);
                let run = &run;
                on_app!(&db.app, pool => EAGER.run(pool, |mut tx| async move {
                    tries.fetch_add(1, Ordering::Relaxed);
                    if let Some(serializable) = db.kind.serializable {
                        run!(tx, serializable.to_owned())?;
                    }
                    let share = db.kind.share;
                    let n = number!(tx, format!("SELECT n FROM app WHERE id = {read}{share}"))?;
                    if run.fetch_add(1, Ordering::Relaxed) == 0 && !db.one_writer() {
                        met.wait().await;
                    }
                    run!(tx, format!("UPDATE app SET n = {} WHERE id = {write}", n + 1))?;
                    Ok::<_, Error>(())
                }).await.unwrap());
            }
        };
        tokio::join!(swap(1, 2), swap(2, 1));
        // One after the other, in whatever order: one of them is 1, the other 2.
        let (one, two) = (
            db.number("SELECT n FROM app WHERE id = 1").await,
            db.number("SELECT n FROM app WHERE id = 2").await,
        );
        assert_eq!(one + two, 3, "{one} {two}");
        let wanted = if db.one_writer() { 2 } else { 3 };
        assert_eq!(tries.into_inner(), wanted);
    }

    async fn what_is_not_retryable_is_returned_at_once_and_rolled_back(db: &Db) {
        table(db).await;
        let tries = AtomicU32::new(0);
        let tries = &tries;
        let error = on_app!(&db.app, pool => EAGER.run(pool, |mut tx| async move {
            tries.fetch_add(1, Ordering::Relaxed);
            run!(tx, "UPDATE app SET n = 9 WHERE id = 1".to_owned())?;
            run!(tx, "INSERT INTO app VALUES (1, 0, 0)".to_owned())?; // a duplicate
            Ok::<_, Error>(())
        }).await.unwrap_err());
        assert!(matches!(error, Error::Application { .. }), "{error}");
        assert_eq!(tries.load(Ordering::Relaxed), 1);
        assert_eq!(db.number("SELECT n FROM app WHERE id = 1").await, 0);
        assert_eq!(db.open_transactions().await, 0);
    }

    async fn attempts_are_counted_and_the_last_error_is_told(db: &Db) {
        let tries = AtomicU32::new(0);
        let tries = &tries;
        let policy = Retry::new().attempts(3).backoff(MS, MS);
        let error = on_app!(&db.app, pool => policy.run(pool, |tx| async move {
            drop(tx);
            tries.fetch_add(1, Ordering::Relaxed);
            rowlock::one_changed(0)
        }).await.unwrap_err());
        assert!(matches!(error, Error::Conflict { .. }), "{error}");
        assert_eq!(tries.load(Ordering::Relaxed), 3);
    }

    async fn a_policy_that_makes_no_sense_is_refused(db: &Db) {
        let hour = Duration::from_hours(1);
        for policy in [
            Retry::new().attempts(0),
            Retry::new().backoff(hour, MS),
            Retry::new().backoff(MS, hour + MS),
        ] {
            let error = on_app!(&db.app, pool => refused(&policy, pool).await);
            let named = matches!(error, Error::Invalid(InvalidError::Setting { .. } | InvalidError::Duration { .. }));
            assert!(named, "{error}");
        }
        // The bounds themselves are fine.
        for policy in [Retry::new().backoff(hour, hour).attempts(1), Retry::new().backoff(MS, MS)] {
            on_app!(&db.app, pool => {
                policy.run(pool, async |_| Ok::<_, Error>(())).await.unwrap();
            });
        }
    }

    async fn a_closure_that_keeps_the_transaction_is_told(db: &Db) {
        let error = on_app!(&db.app, pool => {
            let kept = std::sync::Mutex::new(None);
            let kept = &kept;
            EAGER.run(pool, |tx| async move {
                *kept.lock().unwrap() = Some(tx);
                Ok::<_, Error>(())
            }).await.unwrap_err()
        });
        assert!(error.to_string().contains("kept the transaction"), "{error}");
    }

    async fn boxed_errors_are_looked_into(db: &Db) {
        type Boxed = Box<dyn std::error::Error + Send + Sync>;
        let tries = AtomicU32::new(0);
        let tries = &tries;
        on_app!(&db.app, pool => EAGER.run(pool, |tx| async move {
            drop(tx);
            if tries.fetch_add(1, Ordering::Relaxed) == 0 {
                rowlock::one_changed(0)?;
            }
            Ok::<_, Boxed>(())
        }).await.unwrap());
        assert_eq!(tries.load(Ordering::Relaxed), 2);
        assert!(!Boxed::from("something else").is_retryable());
        assert!(!Boxed::from(sqlx::Error::RowNotFound).is_retryable());
    }

    async fn a_cancelled_run_leaves_no_transaction_and_a_whole_pool(db: &Db) {
        table(db).await;
        let rowlock = db.rowlock().await;
        drop(rowlock.version("a").await.unwrap());
        let others = App::connect(&db.url, 1).await;
        for round in 0..60 {
            let rowlock = &rowlock;
            let mut run = Box::pin(async {
                on_app!(&db.app, pool => EAGER.run(pool, |mut tx| async move {
                    rowlock.in_tx(&mut tx).lock("a").acquire().await?;
                    run!(tx, "UPDATE app SET n = n + 1 WHERE id = 1".to_owned())?;
                    Ok::<_, Error>(())
                }).await.unwrap());
            });
            // Cut off after so many polls: in the middle of the beginning, the work, the commit.
            for _ in 0..round % 20 {
                let mut done = false;
                std::future::poll_fn(|cx| {
                    done = run.as_mut().poll(cx).is_ready();
                    std::task::Poll::Ready(())
                })
                .await;
                if done {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(run);
            // What each connection of the pool writes by itself is committed: none is inside a transaction.
            for n in 0..4 {
                let id = 100 + round * 4 + n;
                db.execute(&format!("INSERT INTO app VALUES ({id}, 0, 0)")).await;
                let seen = others.number(&format!("SELECT COUNT(*) FROM app WHERE id = {id}")).await;
                assert_eq!(seen, 1, "round {round}");
            }
        }
        drop(rowlock.lock("a").acquire().await.unwrap());
        let mut all = Vec::new();
        for _ in 0..if db.one_writer() { 1 } else { 4 } {
            all.push(db.begin().await);
        }
        for tx in all {
            tx.commit().await.unwrap();
        }
    }

    async fn a_cancelled_wait_in_a_run_leaves_a_whole_pool(db: &Db) {
        if db.one_writer() {
            return; // whoever has the file waits for nobody
        }
        let rowlock = db.rowlock().await;
        drop(rowlock.version("a").await.unwrap());
        let app = App::connect(&db.url, 4).await;
        let (long, rowlock) = (Duration::from_secs(30), &rowlock);
        for round in 0..200 {
            // Another transaction has the name, so that statements of the run fail while nobody waits for them.
            let mut tx = db.begin().await;
            tx.acquire(rowlock, "a", long).await.unwrap();
            let timeout = Duration::from_micros(300 * (round % 20));
            let run = async {
                on_app!(&app, pool => EAGER.run(pool, |mut tx| async move {
                    rowlock.in_tx(&mut tx).lock("a").acquire().await
                }).await.map(drop))
            };
            assert!(tokio::time::timeout(timeout, run).await.is_err());
            tx.commit().await.unwrap();
        }
        let all = async {
            tokio::join!(app.begin(), app.begin(), app.begin(), app.begin());
        };
        let all = tokio::time::timeout(patience(), Box::pin(all)).await;
        all.expect("every connection of the pool is there");
    }

    async fn a_run_can_be_spawned(db: &Db) {
        let rowlock = Arc::new(db.rowlock().await);
        let name = String::from("a");
        on_app!(db.app.clone(), pool => tokio::spawn(async move {
            let (rowlock, name) = (&rowlock, &name);
            EAGER.run(&pool, |mut tx| async move {
                let locked = rowlock.in_tx(&mut tx).lock(name).acquire().await?;
                Ok::<_, Error>(locked.fence())
            }).await.unwrap()
        }).await.unwrap());
    }
}

async fn refused<P: Pool>(policy: &Retry, pool: &P) -> Error {
    let work = |tx| async move {
        drop(tx);
        Ok::<(), Error>(())
    };
    policy.run(pool, work).await.unwrap_err()
}
