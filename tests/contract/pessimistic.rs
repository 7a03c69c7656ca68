//! Promises 1, 2 and 5 for locks in the caller's transaction.

use std::sync::Arc;
use std::time::Duration;

use rowlock::Error;
use rowlock_test::{Db, LEVELS, TryLock, eventually, on_every_engine, take};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(30);
const LONG: Duration = Duration::from_secs(30);

/// Whether the transaction has to begin again because of its snapshot.
fn is_of_the_snapshot(db: &Db, error: &Error) -> bool {
    let said = error.to_string().to_lowercase();
    db.kind.refuses_newer_rows && error.is_retryable() && !said.contains("deadlock")
}

on_every_engine! {
    async fn a_locked_name_is_busy_until_the_transaction_ends(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let before = take(&one, "a", TTL).await.fence();
        one.flush().await;
        let mut tx = db.begin().await;
        let locked = tx.lock(&one, "a").await;
        assert!(locked.fence() > before);
        if !db.one_writer() {
            let mut other = db.begin().await;
            let TryLock::Busy(busy) = other.try_lock(&two, "a").await.unwrap() else {
                panic!("two transactions have it");
            };
            assert!(busy.to_string().contains("transaction"), "{busy}");
            let _ = other.lock(&two, "b").await; // and it goes on
            other.commit().await.unwrap();
        }
        assert!(!matches!(two.lock("a").try_acquire().await, Ok(Some(_))));
        tx.commit().await.unwrap();
        let lease = two.lock("a").acquire().await.unwrap();
        assert!(lease.fence() > locked.fence());
    }

    async fn rolling_back_frees_the_name_and_the_next_fence_is_greater(db: &Db) {
        let rowlock = db.rowlock().await;
        let mut last = 0;
        for round in 0..30 {
            let mut tx = db.begin().await;
            let fence = tx.lock(&rowlock, "a").await.fence();
            assert!(fence > last, "{fence} {last}");
            last = fence;
            if round % 3 == 0 {
                tx.commit().await.unwrap();
            } else {
                tx.release().await;
            }
        }
        let lease = take(&rowlock, "a", TTL).await;
        assert!(lease.fence() > last, "also of a lease");
    }

    async fn a_transaction_that_is_dropped_frees_the_name(db: &Db) {
        let rowlock = db.rowlock().await;
        let mut tx = db.begin().await;
        tx.lock(&rowlock, "a").await;
        drop(tx);
        drop(rowlock.lock("a").acquire().await.unwrap());
    }

    async fn a_waiter_gets_it_when_the_transaction_ends(db: &Db) {
        let rowlock = db.rowlock().await;
        let mut tx = db.begin().await;
        let first = tx.lock(&rowlock, "a").await;
        let (waiting, waits) = tokio::sync::oneshot::channel();
        let second = async {
            let _ = waiting.send(());
            let mut tx = db.begin().await;
            let locked = tx.acquire(&rowlock, "a", LONG).await.unwrap();
            // No savepoint of the wait is left.
            assert!(tx.execute("RELEASE SAVEPOINT rowlock_wait").await.is_err());
            tx.release().await;
            locked
        };
        let ends = async {
            waits.await.unwrap();
            if !db.one_writer() {
                eventually("it waits", async || db.waiting().await > 0).await;
            }
            tx.commit().await.unwrap();
        };
        let (second, ()) = tokio::join!(second, ends);
        assert!(second.fence() > first.fence());
    }

    async fn waiting_ends_in_time_and_the_transaction_goes_on(db: &Db) {
        let rowlock = db.rowlock().await;
        db.execute("CREATE TABLE app (n BIGINT)").await;
        if db.one_writer() {
            return; // a transaction has the whole file, and never waits
        }
        let mut holder = db.begin().await;
        holder.lock(&rowlock, "a").await;
        let lease = take(&rowlock, "leased", TTL).await;
        drop(rowlock.version("free").await.unwrap()); // its row is older than the snapshots
        let ends_in_time = async |level| {
            let mut tx = db.begin_at(level).await;
            tx.execute("INSERT INTO app VALUES (1)").await.unwrap();
            for name in ["a", "leased"] {
                let wait = Duration::from_millis(300);
                let started = std::time::Instant::now();
                let error = tx.acquire(&rowlock, name, wait).await.unwrap_err();
                // A busy server has not told in time that there is a lease, and the transaction has locked its row.
                if matches!(error, Error::Conflict { .. }) && name == "leased" {
                    tx.release().await;
                    return false;
                }
                assert!(matches!(error, Error::WaitTimeout { .. }), "{level} {name}: {error}");
                assert!(started.elapsed() >= wait);
            }
            // The settings of the session are unchanged.
            if let Some(settings) = db.kind.settings {
                assert_eq!(tx.number(settings).await, 1);
            }
            tx.lock(&rowlock, "free").await;
            tx.commit().await.unwrap();
            true
        };
        for level in LEVELS {
            eventually("the waits end in time", || ends_in_time(level)).await;
        }
        assert_eq!(db.number("SELECT COUNT(*) FROM app").await, 3);
        assert!(lease.is_held());
        holder.release().await;
    }

    async fn a_lease_is_waited_for_outside_of_sqlite(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        for level in LEVELS {
            let held = take(&one, "a", TTL).await;
            let mut tx = db.begin_at(level).await;
            if db.one_writer() {
                let error = tx.acquire(&two, "a", LONG).await.unwrap_err();
                assert!(matches!(error, Error::Conflict { .. }), "{error}");
                assert!(error.is_retryable());
                tx.release().await;
                held.release().await.unwrap();
                continue;
            }
            let release = async {
                // Time for at least two tries, so that the call is waiting. A try locks nothing that another session
                // could see. Without this pause the test stays correct, but tests less.
                tokio::time::sleep(Duration::from_millis(50)).await;
                held.release().await.unwrap();
            };
            let (locked, ()) = tokio::join!(tx.acquire(&two, "a", LONG), release);
            match locked {
                Ok(locked) => {
                    assert!(locked.fence() > held.fence());
                    tx.commit().await.unwrap();
                }
                Err(error) => {
                    // The release is newer than the snapshot.
                    assert!(level != "READ COMMITTED" && is_of_the_snapshot(db, &error), "{error}");
                    tx.release().await;
                }
            }
        }
    }

    async fn a_busy_answer_does_not_cost_the_holder_its_lease(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", Duration::from_secs(6)).await;
        for level in &LEVELS[..2] {
            let mut tx = db.begin_at(level).await;
            let busy = match tx.try_lock(&two, "a").await.unwrap() {
                TryLock::Busy(busy) => busy,
                TryLock::Locked(_) => panic!("it is held"),
            };
            assert_eq!(busy.holder.unwrap().fence, held.fence());
            if !db.one_writer() {
                // The transaction stays open, and the row can be renewed.
                let before = held.deadline();
                eventually("it is renewed", async || held.deadline() > before).await;
            }
            tx.release().await;
        }
        assert!(held.is_held());
    }

    async fn a_lease_that_comes_as_a_surprise_is_not_robbed(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        for level in LEVELS {
            let name = format!("surprise {level}");
            drop(two.version(name.as_str()).await.unwrap());
            let mut tx = db.begin_at(level).await;
            // From now on this client knows the name, and has seen no lease of it.
            let _ = tx.acquire(&two, &name, LONG).await.unwrap();
            tx.commit().await.unwrap();
            let held = take(&one, &name, Duration::from_secs(5)).await;
            let mut tx = db.begin_at(level).await;
            // Longer than a lease.
            let error = tx.acquire(&two, &name, Duration::from_secs(6)).await.unwrap_err();
            let told = matches!(
                error,
                Error::WaitTimeout { .. } | Error::Conflict { .. }
            );
            assert!(told, "{level}: {error}");
            tx.release().await;
            let before = held.deadline();
            eventually("it is renewed", async || held.deadline() > before).await;
            assert!(held.is_held(), "{level}");
        }
    }

    async fn names_that_have_no_row_yet_do_not_deadlock(db: &Db) {
        let rowlock = db.rowlock().await;
        for level in LEVELS {
            let db_of = |task: usize, rowlock: rowlock::Rowlock| async move {
                for round in 0..5 {
                    // New names, side by side in the index. Two tasks want each name.
                    let name = format!("{level}-{round}-{}", task / 2);
                    loop {
                        let mut tx = db.begin_at(level).await;
                        match tx.acquire(&rowlock, &name, LONG).await {
                            Ok(_) => match tx.commit().await {
                                Ok(()) => break,
                                Err(error) => assert!(is_of_the_snapshot(db, &Error::from(error))),
                            },
                            Err(error) => {
                                assert!(is_of_the_snapshot(db, &error), "{level}: {error}");
                                tx.release().await;
                            }
                        }
                    }
                }
            };
            // As many as the pool has connections.
            let (a, b, c, d) = (rowlock.clone(), rowlock.clone(), rowlock.clone(), rowlock.clone());
            tokio::join!(db_of(0, a), db_of(1, b), db_of(2, c), db_of(3, d));
        }
    }

    async fn a_transaction_on_a_new_name_holds_up_no_lane(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let mut tx = db.begin().await;
        tx.lock(&one, "new").await;
        if !db.one_writer() {
            let busy = two.lock("new").try_acquire().await.unwrap();
            assert!(busy.is_none());
            for name in ["newer", "newest", "a", "z"] {
                drop(two.lock(name).acquire().await.unwrap());
            }
        }
        tx.release().await;
        drop(two.lock("new").acquire().await.unwrap());
    }

    async fn a_lock_works_at_every_level_of_isolation(db: &Db) {
        let rowlock = db.rowlock().await;
        db.execute("CREATE TABLE app (n BIGINT)").await;
        db.execute("INSERT INTO app VALUES (0)").await;
        for level in LEVELS {
            for _ in 0..5 {
                let mut tx = db.begin_at(level).await;
                tx.lock(&rowlock, "a").await;
                let n = tx.number("SELECT n FROM app").await;
                tx.execute(&format!("UPDATE app SET n = {}", n + 1)).await.unwrap();
                tx.commit().await.unwrap();
            }
        }
        assert_eq!(db.number("SELECT n FROM app").await, 15);
    }

    async fn counting_under_the_lock_loses_nothing(db: &Db) {
        let rowlock = db.rowlock().await;
        db.execute("CREATE TABLE app (n BIGINT)").await;
        db.execute("INSERT INTO app VALUES (0)").await;
        let count = || async {
            for _ in 0..25 {
                let mut tx = db.begin().await;
                tx.acquire(&rowlock, "a", LONG).await.unwrap();
                // A plain read: under REPEATABLE READ its snapshot must not be older than the lock.
                let n = tx.number("SELECT n FROM app").await;
                tx.execute(&format!("UPDATE app SET n = {}", n + 1)).await.unwrap();
                tx.commit().await.unwrap();
            }
        };
        tokio::join!(count(), count(), count(), count());
        assert_eq!(db.number("SELECT n FROM app").await, 100);
    }

    async fn a_cancelled_wait_leaves_nothing_behind(db: &Db) {
        let rowlock = db.rowlock().await;
        for round in 0..60 {
            let mut tx = db.begin().await;
            // Both get a connection before one gets the lock: statements of earlier rounds may still wait for the
            // lock, and keep their connections.
            let waiting = if db.one_writer() { None } else { Some(db.begin().await) };
            // The cut-off transaction may have got the lock in its last moment. Its rollback may still run.
            tx.acquire(&rowlock, "a", LONG).await.unwrap();
            if let Some(mut waiting) = waiting {
                let timeout = Duration::from_micros(300 * (round % 20));
                let wait = waiting.acquire(&rowlock, "a", LONG);
                assert!(tokio::time::timeout(timeout, wait).await.is_err());
            }
            tx.commit().await.unwrap();
        }
        eventually("all is rolled back", async || db.open_transactions().await == 0).await;
        drop(rowlock.lock("a").acquire().await.unwrap());
        let all = if db.one_writer() { 1 } else { 4 };
        let mut open = Vec::new();
        for n in 0..all {
            let mut tx = db.begin().await;
            tx.lock(&rowlock, &format!("slot-{n}")).await;
            open.push(tx);
        }
        for tx in open {
            tx.commit().await.unwrap();
        }
    }

    async fn every_call_can_be_spawned(db: &Db) {
        let rowlock = Arc::new(db.rowlock().await);
        let mut tasks = JoinSet::new();
        let held = take(&rowlock, "a", TTL).await;
        let seen = rowlock.version("v").await.unwrap();
        drop(rowlock.version("e").await.unwrap());
        let mut tx = db.begin().await;
        tasks.spawn(async move {

            tx.pin(&held).await.unwrap();
            let _ = tx.acquire(&rowlock, "b", LONG).await.unwrap();
            let _ = tx.acquire_all(&rowlock, &["c", "d"]).await.unwrap();
            let _ = tx.version(&rowlock, "e").await.unwrap();
            let _ = tx.advance(&rowlock, &seen).await.unwrap();
            tx.commit().await.unwrap();
        });
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    }
}
