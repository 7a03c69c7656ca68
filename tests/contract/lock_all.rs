//! Promise 1 for several names that one transaction locks together.

use std::time::Duration;

use rowlock::Error;
use rowlock_test::{Db, TryLock, eventually, on_every_engine, on_tx, take, takes_less_than};

const TTL: Duration = Duration::from_secs(30);

on_every_engine! {
    async fn the_wait_is_for_all_names_together(db: &Db) {
        if db.one_writer() {
            return; // a transaction has the whole file, and never waits
        }
        let rowlock = db.rowlock().await;
        let limit = Duration::from_millis(1_500);
        // With a wait for each name of its own it would take half as long again.
        let took = takes_less_than(limit * 3 / 2, async || {
            let mut holders = Vec::new();
            for name in ["a", "b", "c"] {
                let mut tx = db.begin().await;
                tx.lock(&rowlock, name).await;
                holders.push(tx);
            }
            // The first holder ends after half of the time. The rest of the time is for the other names.
            let mut tx = db.begin().await;
            let wait = async {
                on_tx!(&mut tx, tx => {
                    rowlock.in_tx(tx).lock_all(["a", "b", "c"]).wait(limit).acquire().await
                })
            };
            let first = holders.remove(0);
            let ends = async {
                // This test is about time: how much of the limit is left for the other names.
                tokio::time::sleep(limit / 2).await;
                first.commit().await.unwrap();
            };
            let (waited, ()) = tokio::join!(wait, ends);
            assert!(matches!(waited, Err(Error::WaitTimeout { .. })), "{waited:?}");
            tx.release().await;
            for tx in holders {
                tx.release().await;
            }
        })
        .await;
        assert!(took >= limit, "{took:?}");
    }

    async fn a_transaction_that_locks_most_names_leaves_the_others_free(db: &Db) {
        if db.one_writer() {
            return; // a transaction has the whole file
        }
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let names: Vec<String> = (0..300).map(|n| format!("name {n}")).collect();
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        for _ in 0..2 {
            drop(take(&two, "other", TTL).await);
            let mut tx = db.begin().await;
            assert!(matches!(tx.lock_all(&one, &all).await.unwrap(), TryLock::Locked(_)));
            drop(take(&two, "other", TTL).await);
            tx.release().await;
        }
    }

    /// Each who joins a queue waits for the locked row for a moment. Those who ask for other names wait for few.
    async fn those_who_wait_for_many_locked_rows_hold_up_no_others(db: &Db) {
        if db.one_writer() {
            return; // a transaction has the whole file
        }
        let rowlock = db.rowlock().await;
        let names: Vec<String> = (0..200).map(|n| format!("locked {n:03}")).collect();
        let take_others = async || {
            for n in 0..10 {
                drop(take(&rowlock, &format!("other {n}"), TTL).await);
            }
        };
        take_others().await;
        let mut tx = db.begin().await;
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(matches!(tx.lock_all(&rowlock, &all).await.unwrap(), TryLock::Locked(_)));
        let waiting: Vec<_> = names.iter().map(|name| {
            let lock = rowlock.lock(name.as_str());
            tokio::spawn(async move { lock.acquire().await.map(drop) })
        }).collect();
        eventually("they join", async || db.waiting().await > 0).await;
        // Without a limit a batch takes two seconds, and each of these waits for one.
        takes_less_than(Duration::from_secs(8), take_others).await;
        tx.release().await;
        for waits in waiting {
            waits.await.unwrap().unwrap();
        }
    }

    async fn several_names_are_granted_together_or_not_at_all(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let before = one.version("b").await.unwrap().fence();
        for name in ["b", "c", "d"] {
            // The second client knows the names, and has seen no lease.
            drop(two.version(name).await.unwrap());
        }
        let held = take(&one, "c", TTL).await;
        let mut tx = db.begin().await;
        let busy = match tx.lock_all(&two, &["d", "c", "b"]).await.unwrap() {
            TryLock::Busy(busy) => busy,
            TryLock::Locked(_) => panic!("one of them is held"),
        };
        assert_eq!(busy.name.as_str(), "c");
        if db.kind.gives_names_back {
            // The transaction has given the free names back.
            let mut other = db.begin().await;
            other.lock(&one, "b").await;
            other.release().await;
        }
        tx.commit().await.unwrap();
        assert_eq!(one.version("b").await.unwrap().fence(), before, "nothing was granted");
        held.release().await.unwrap();

        let mut tx = db.begin().await;
        let locked = tx.lock_all(&two, &["d", "c", "b"]).await.unwrap().locked().unwrap();
        let names: Vec<_> = locked.fences().map(|(name, _)| name.as_str().to_owned()).collect();
        assert_eq!(names, ["b", "c", "d"]);
        tx.commit().await.unwrap();
        for (name, fence) in locked.fences() {
            assert_eq!(one.version(name.as_str()).await.unwrap().fence(), fence);
        }
    }

    async fn names_in_differing_orders_never_deadlock(db: &Db) {
        let rowlock = db.rowlock().await;
        let some = |names: [&'static str; 3]| {
            let rowlock = rowlock.clone();
            async move {
                for _ in 0..40 {
                    let mut tx = db.begin().await;
                    let locked = tx.acquire_all(&rowlock, &names).await.unwrap();
                    assert_eq!(locked.fences().count(), 3);
                    tx.commit().await.unwrap();
                }
            }
        };
        tokio::join!(some(["a", "b", "c"]), some(["c", "b", "a"]), some(["b", "c", "a"]));
    }
}
