//! Promise 3: a pin proves the lease inside the caller's transaction, and keeps it so until that ends.

use std::time::Duration;

use rowlock::{Error, Loss};
use rowlock_test::{Db, LEVELS, eventually, loss, on_every_engine, take};

const TTL: Duration = Duration::from_secs(30);
/// A lease that runs out within the test.
const SHORT: Duration = Duration::from_secs(4);

on_every_engine! {
    async fn a_pinned_name_is_granted_to_nobody_until_the_transaction_ends(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", SHORT).await;
        let mut tx = db.begin().await;
        tx.pin(&held).await.unwrap();
        eventually("the lease runs out", async || held.loss() == Some(Loss::Expired)).await;
        eventually("by the database's clock, too", async || {
            two.inspect("a").await.unwrap().is_none()
        })
        .await;
        // Where there is one writer, no other session gets an answer.
        assert!(!matches!(two.lock("a").try_acquire().await, Ok(Some(_))));
        tx.commit().await.unwrap();
        let taken = two.lock("a").acquire().await.unwrap();
        assert!(taken.fence() > held.fence());
    }

    async fn a_lease_that_was_taken_over_cannot_be_pinned(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", TTL).await;
        two.admin().force_release("a").await.unwrap();
        let other = take(&two, "a", TTL).await;
        assert!(held.is_held(), "its process has heard nothing yet");
        let mut tx = db.begin().await;
        let error = tx.pin(&held).await.unwrap_err();
        assert!(matches!(error, Error::Lost { loss: Loss::TakenOver, .. }), "{error}");
        tx.release().await;
        assert!(!held.is_held());
        let mut tx = db.begin().await;
        tx.pin(&other).await.unwrap();
        tx.commit().await.unwrap();
    }

    async fn a_lease_that_was_freed_cannot_be_pinned(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", TTL).await;
        two.admin().force_release("a").await.unwrap();
        let mut tx = db.begin().await;
        let error = tx.pin(&held).await.unwrap_err();
        assert!(matches!(error, Error::Lost { loss: Loss::TakenOver, .. }), "{error}");
        tx.release().await;
    }

    async fn a_lease_that_has_run_out_in_the_database_cannot_be_pinned(db: &Db) {
        let rowlock = db.rowlock().await;
        let held = take(&rowlock, "a", TTL).await;
        db.execute("UPDATE rowlock_lock SET expires_at = acquired_at").await;
        let mut tx = db.begin().await;
        let error = tx.pin(&held).await.unwrap_err();
        assert!(matches!(error, Error::Lost { loss: Loss::Expired, .. }), "{error}");
        assert!(!held.is_held());
        tx.release().await;
    }

    async fn what_was_written_under_a_lost_lease_is_not_committed(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        db.execute("CREATE TABLE app (n BIGINT)").await;
        let held = take(&one, "a", TTL).await;
        two.admin().force_release("a").await.unwrap();
        let mut tx = db.begin().await;
        tx.execute("INSERT INTO app VALUES (1)").await.unwrap();
        tx.pin(&held).await.unwrap_err();
        drop(tx); // what `?` does
        eventually("it is rolled back", async || db.open_transactions().await == 0).await;
        assert_eq!(db.number("SELECT COUNT(*) FROM app").await, 0);
    }

    async fn renewals_go_on_behind_a_pin_and_beside_it(db: &Db) {
        let rowlock = db.rowlock().await;
        let ttl = Duration::from_secs(3);
        let (held, beside) = (take(&rowlock, "a", ttl).await, take(&rowlock, "b", ttl).await);
        let mut tx = db.begin().await;
        tx.pin(&held).await.unwrap();
        if !db.one_writer() {
            // A third of the TTL: at least one renewal of "b" is due, "a" is passed over.
            let before = beside.deadline();
            eventually("the other lease is renewed", async || beside.deadline() > before).await;
        }
        tx.commit().await.unwrap();
        let before = held.deadline();
        eventually("the pinned one is renewed", async || held.deadline() > before).await;
        assert!(held.is_held() && beside.is_held());
    }

    async fn a_pin_holds_up_no_other_name(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", TTL).await;
        let mut tx = db.begin().await;
        tx.pin(&held).await.unwrap();
        if !db.one_writer() {
            let others = ["b", "c", "d", "e"].map(|name| two.lock(name));
            for lock in &others {
                let _ = loss(lock.acquire().await.unwrap().release().await);
            }
            let busy = two.lock("a").try_acquire().await.unwrap();
            assert!(busy.is_none());
        }
        tx.commit().await.unwrap();
    }

    async fn a_lease_may_be_pinned_twice_and_by_several_transactions(db: &Db) {
        let rowlock = db.rowlock().await;
        let held = take(&rowlock, "a", TTL).await;
        let mut tx = db.begin().await;
        tx.pin(&held).await.unwrap();
        tx.pin(&held).await.unwrap();
        if !db.one_writer() {
            let mut other = db.begin().await;
            other.pin(&held).await.unwrap();
            other.commit().await.unwrap();
        }
        tx.commit().await.unwrap();
        assert!(held.is_held());
    }

    async fn a_released_guard_cannot_be_pinned(db: &Db) {
        let rowlock = db.rowlock().await;
        let held = take(&rowlock, "a", TTL).await;
        let _ = loss(held.release().await);
        let mut tx = db.begin().await;
        let error = tx.pin(&held).await.unwrap_err();
        assert!(matches!(error, Error::Released { .. }), "{error}");
        tx.commit().await.unwrap();
    }

    async fn a_pin_works_at_every_level_of_isolation(db: &Db) {
        let rowlock = db.rowlock().await;
        db.execute("CREATE TABLE app (n BIGINT)").await;
        for level in LEVELS {
            let held = take(&rowlock, level, TTL).await;
            let mut tx = db.begin_at(level).await;
            tx.pin(&held).await.unwrap();
            tx.execute("INSERT INTO app VALUES (1)").await.unwrap();
            tx.pin(&held).await.unwrap();
            tx.commit().await.unwrap();
            let _ = loss(held.release().await);
        }
        assert_eq!(db.number("SELECT COUNT(*) FROM app").await, 3);
    }

    async fn a_renewal_behind_the_snapshot_is_no_false_verdict(db: &Db) {
        let rowlock = db.rowlock().await;
        for level in LEVELS {
            let held = take(&rowlock, level, TTL).await;
            let mut tx = db.begin_at(level).await;
            tx.number("SELECT COUNT(*) FROM rowlock_database").await; // takes the snapshot
            if !db.one_writer() {
                // As a renewal would.
                let later = db.moved("expires_at", 1);
                db.execute(&format!("UPDATE rowlock_lock SET expires_at = {later}")).await;
            }
            match tx.pin(&held).await {
                Ok(()) => tx.commit().await.unwrap(),
                // The row is newer than the snapshot.
                Err(error) => {
                    assert!(db.kind.refuses_newer_rows && level != "READ COMMITTED", "{error}");
                    assert!(matches!(error, Error::Conflict { .. }), "{error}");
                    assert!(error.is_retryable());
                    tx.release().await;
                }
            }
            assert!(held.is_held());
            let _ = loss(held.release().await);
        }
    }

    async fn a_lease_that_is_younger_than_the_snapshot_is_pinned_or_told(db: &Db) {
        let rowlock = db.rowlock().await;
        for level in LEVELS {
            let mut tx = db.begin_at(level).await;
            tx.number("SELECT COUNT(*) FROM rowlock_database").await; // takes the snapshot
            if db.one_writer() {
                tx.release().await; // a lease could not be granted while it has the file
                continue;
            }
            let held = take(&rowlock, level, TTL).await;
            match tx.pin(&held).await {
                Ok(()) => tx.commit().await.unwrap(),
                Err(error) => {
                    assert!(db.kind.refuses_newer_rows && level != "READ COMMITTED", "{error}");
                    assert!(matches!(error, Error::Conflict { .. }), "{error}");
                    tx.release().await;
                }
            }
            assert!(held.is_held());
        }
    }

    async fn a_pin_ends_when_the_guard_is_released_meanwhile(db: &Db) {
        let rowlock = db.rowlock().await;
        for round in 0..40 {
            let held = take(&rowlock, "a", TTL).await;
            let mut tx = db.begin().await;
            let release = async {
                for _ in 0..round % 8 {
                    tokio::task::yield_now().await;
                }
                drop(held.release().await);
            };
            if db.one_writer() {
                // The release needs the file that the transaction has.
                drop(tx.pin(&held).await);
                tx.release().await;
                release.await;
                continue;
            }
            let pin = async {
                let pinned = tx.pin(&held).await;
                tx.release().await;
                pinned
            };
            let (pinned, ()) = tokio::join!(pin, release);
            if let Err(error) = pinned {
                assert!(matches!(error, Error::Released { .. }), "{error}");
            }
        }
    }

    async fn a_cancelled_pin_leaves_the_pool_whole(db: &Db) {
        let rowlock = db.rowlock().await;
        let held = take(&rowlock, "a", TTL).await;
        for polls in 0..200 {
            let mut tx = db.begin().await;
            let mut pin = std::pin::pin!(tx.pin(&held));
            for _ in 0..polls % 20 {
                let mut done = false;
                std::future::poll_fn(|cx| {
                    done = pin.as_mut().poll(cx).is_ready();
                    std::task::Poll::Ready(())
                })
                .await;
                if done {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        eventually("all is rolled back", async || db.open_transactions().await == 0).await;
        // Every slot of the pool is there, and works.
        let mut all = Vec::new();
        for _ in 0..if db.one_writer() { 1 } else { 4 } {
            let mut tx = db.begin().await;
            tx.pin(&held).await.unwrap();
            all.push(tx);
        }
        for tx in all {
            tx.commit().await.unwrap();
        }
    }

    async fn an_outcome_that_exists_is_returned_though_the_lease_was_lost_under_the_commit(db: &Db) {
        let rowlock = db.rowlock().await;
        db.execute("CREATE TABLE app (n BIGINT)").await;
        let held = take(&rowlock, "a", SHORT).await;
        let done = held.with(async || {
            let mut tx = db.begin().await;
            tx.execute("INSERT INTO app VALUES (1)").await.unwrap();
            tx.pin(&held).await.unwrap();
            // The deadline passes and the commit is done before anybody looks again, as on a runtime that is busy.
            tokio::task::block_in_place(|| {
                let runtime = tokio::runtime::Handle::current();
                runtime.block_on(eventually("it runs out", async || held.loss().is_some()));
                runtime.block_on(tx.commit()).unwrap();
            });
            7
        }).await;
        assert_eq!(done.unwrap(), 7);
        assert_eq!(db.number("SELECT COUNT(*) FROM app").await, 1);
        assert_eq!(held.loss(), Some(Loss::Expired), "which is still told");
    }

    async fn work_that_is_cut_off_behind_a_pin_is_unknown_not_lost(db: &Db) {
        let rowlock = db.rowlock().await;
        db.execute("CREATE TABLE app (n BIGINT)").await;
        let held = take(&rowlock, "a", SHORT).await;
        let cut = held.with(async || {
            let mut tx = db.begin().await;
            tx.execute("INSERT INTO app VALUES (1)").await.unwrap();
            tx.pin(&held).await.unwrap();
            // Nothing is renewed while it is pinned.
            eventually("it runs out", async || held.remaining() < SHORT / 4).await;
            tx.commit().await.unwrap();
            if db.one_writer() {
                // A renewal that has waited for the file may be in time now.
                rowlock.admin().force_release("a").await.unwrap();
            } else {
                db.execute("UPDATE rowlock_lock SET expires_at = acquired_at").await;
            }
            std::future::pending::<()>().await;
        }).await;
        assert!(matches!(cut, Err(Error::CutOff { .. })), "{cut:?}");
        assert_eq!(db.number("SELECT COUNT(*) FROM app").await, 1, "it was committed");

        // What was pinned before is not this work's.
        let held = take(&rowlock, "b", SHORT).await;
        let mut tx = db.begin().await;
        tx.pin(&held).await.unwrap();
        tx.commit().await.unwrap();
        rowlock.admin().force_release("b").await.unwrap();
        let cut = held.with(std::future::pending::<()>).await;
        assert!(matches!(cut, Err(Error::Lost { .. })), "{cut:?}");
    }
}
