//! Rows of locks that nobody uses go, fences survive that, and looking at all rows holds up no operation.

use std::time::Duration;

use rowlock::{Error, Rowlock};
use rowlock_test::{Db, eventually, on_every_engine, take};

const TTL: Duration = Duration::from_secs(30);

/// So many days pass for the row of `name`: its last grant, and its lease where it has one.
async fn pass(db: &Db, name: &str, days: i64) {
    let (bytes, us) = (db.bytes(name), days * 24 * 3_600 * 1_000_000);
    let earlier = |column| db.moved(column, -days * 24 * 3_600);
    let sql = format!(
        "UPDATE rowlock_lock SET fence = fence - {us}, acquired_at = {}, expires_at = {} WHERE name = {bytes}",
        earlier("acquired_at"),
        earlier("expires_at"),
    );
    assert_eq!(db.execute(&sql).await, 1);
}

async fn rows(db: &Db) -> i64 {
    db.number("SELECT COUNT(*) FROM rowlock_lock").await
}

async fn used(rowlock: &Rowlock, name: &str) -> i64 {
    let held = take(rowlock, name, TTL).await;
    held.release().await.unwrap();
    held.fence()
}

on_every_engine! {
    async fn a_row_that_nobody_uses_for_ten_days_goes_and_its_fences_go_on_rising(db: &Db) {
        let rowlock = Rowlock::builder().clean_every(None).connect(&db.url).await.unwrap();
        for name in ["a", "b", "c", "crashed", "d"] {
            used(&rowlock, name).await;
        }
        let crashed = take(&rowlock, "crashed", TTL).await;
        let held = take(&rowlock, "held", TTL).await;
        for (name, days) in [("a", 9), ("b", 11), ("crashed", 11), ("d", 11)] {
            pass(db, name, days).await;
        }
        // Batches of one: the walk goes through all of them.
        let cleaned = rowlock.admin().clean(1).await.unwrap();
        assert_eq!((cleaned.locks, rows(db).await), (3, 3), "b, d, and the lease that ran out");
        assert!(held.is_held());
        assert_eq!(rowlock.admin().clean(500).await.unwrap().locks, 0);
        let (before, after) = (crashed.fence(), used(&rowlock, "crashed").await);
        assert!(after > before, "{before} {after}");
        for name in ["b", "d"] {
            used(&rowlock, name).await;
        }
        assert_eq!(rows(db).await, 6);
    }

    async fn a_row_that_a_transaction_has_locked_stays(db: &Db) {
        let rowlock = Rowlock::builder().clean_every(None).connect(&db.url).await.unwrap();
        for name in ["locked", "unused"] {
            used(&rowlock, name).await;
            pass(db, name, 11).await;
        }
        let tx = db.lock_row("locked").await;
        match rowlock.admin().clean(500).await {
            Ok(cleaned) => assert_eq!((cleaned.locks, rows(db).await), (1, 1)),
            // The file is locked whole.
            Err(error) => {
                assert!(matches!(error, Error::Unreachable { .. }), "{error}");
                assert_eq!((db.one_writer(), rows(db).await), (true, 2));
            }
        }
        tx.release().await;
        assert!(rowlock.admin().clean(500).await.unwrap().locks >= 1);
        assert_eq!(rows(db).await, 0);
    }

    async fn a_fence_that_is_ahead_of_the_clock_keeps_its_row(db: &Db) {
        let rowlock = Rowlock::builder().clean_every(None).connect(&db.url).await.unwrap();
        let held = take(&rowlock, "n", TTL).await;
        pass(db, "n", 11).await;
        // The clock was set back.
        let ahead = held.fence() + 3_600_000_000;
        db.execute(&format!("UPDATE rowlock_lock SET fence = {ahead}")).await;
        assert_eq!(rowlock.admin().clean(500).await.unwrap().locks, 0);
        assert_eq!(used(&rowlock, "n").await, ahead + 1);
    }

    async fn the_cleaner_of_a_client_that_only_locks_removes_them(db: &Db) {
        let rowlock = Rowlock::builder().clean_every(Duration::from_secs(1)).connect(&db.url).await.unwrap();
        used(&rowlock, "n").await;
        pass(db, "n", 11).await;
        eventually("the row is gone", async || rows(db).await == 0).await;
    }

    async fn a_name_whose_row_was_removed_is_not_busy_for_a_transaction(db: &Db) {
        let rowlock = Rowlock::builder().clean_every(None).connect(&db.url).await.unwrap();
        for names in [&["n"][..], &["a", "b"][..]] {
            // This client knows the rows from here on.
            let mut tx = db.begin().await;
            assert!(tx.lock_all(&rowlock, names).await.unwrap().locked().is_some());
            tx.commit().await.unwrap();
            for name in names {
                pass(db, name, 11).await;
            }
            assert_eq!(rowlock.admin().clean(500).await.unwrap().locks, names.len() as u64);
            let mut tx = db.begin().await;
            match tx.lock_all(&rowlock, names).await {
                Ok(tried) => assert!(tried.locked().is_some(), "nobody has it"),
                // Where the row cannot be made for this transaction, it has to be begun again.
                Err(error) => assert!(matches!(error, Error::Conflict { .. }), "{error}"),
            }
            tx.release().await;
        }
    }

    async fn a_version_can_be_read_after_its_row_was_removed(db: &Db) {
        let rowlock = Rowlock::builder().clean_every(None).connect(&db.url).await.unwrap();
        let mut tx = db.begin().await;
        let before = tx.version(&rowlock, "n").await.unwrap();
        tx.commit().await.unwrap();
        pass(db, "n", 11).await;
        assert_eq!(rowlock.admin().clean(500).await.unwrap().locks, 1);
        // A snapshot that is older than the new row does not see it: such a transaction is begun again, once.
        for try_again in [true, false] {
            let mut tx = db.begin().await;
            match tx.version(&rowlock, "n").await {
                Ok(version) => {
                    assert!(version.fence() > before.fence());
                    tx.commit().await.unwrap();
                    return;
                }
                Err(error) => {
                    assert!(try_again && matches!(error, Error::Conflict { .. }), "{error}");
                    tx.release().await;
                }
            }
        }
    }

    async fn a_transaction_locks_a_name_whose_row_was_removed(db: &Db) {
        let rowlock = Rowlock::builder().clean_every(None).connect(&db.url).await.unwrap();
        // This client knows the row from here on.
        let mut tx = db.begin().await;
        let before = tx.lock(&rowlock, "n").await.fence();
        tx.commit().await.unwrap();
        pass(db, "n", 11).await;
        assert_eq!(rowlock.admin().clean(500).await.unwrap().locks, 1);
        // Where the row cannot be made in the transaction, it has to be begun again, once.
        for try_again in [true, false] {
            let mut tx = db.begin().await;
            match tx.acquire(&rowlock, "n", Duration::from_secs(5)).await {
                Ok(locked) => {
                    assert!(locked.fence() > before);
                    tx.commit().await.unwrap();
                    return;
                }
                Err(error) => {
                    assert!(try_again && matches!(error, Error::Conflict { .. }), "{error}");
                    tx.release().await;
                }
            }
        }
    }
}
