//! Promises 1 and 5 where leases and waiting transactions meet: waiting robs nobody.

use std::time::Duration;

use rowlock::{Error, Locked};
use rowlock_test::{Db, LEVELS, Tx, eventually, on_every_engine, take};

const TTL: Duration = Duration::from_secs(30);
const LONG: Duration = Duration::from_secs(30);

/// A lease that has run out, as others see it, and the open transaction that makes it live again: what a grant does
/// while its commit is on its way to the disk.
async fn grant_under_way(db: &Db, name: &str) -> Tx {
    let name = db.bytes(name);
    let lapsed = format!("UPDATE rowlock_lock SET expires_at = acquired_at WHERE name = {name}");
    db.execute(&lapsed).await;
    let mut tx = db.begin().await;
    let live = format!(
        "UPDATE rowlock_lock SET expires_at = acquired_at + INTERVAL '1' HOUR WHERE name = {name}"
    );
    tx.execute(&live).await.unwrap();
    tx
}

/// Whether a transaction has the row of `name` locked.
async fn is_locked(db: &Db, name: &str) -> bool {
    let name = db.bytes(name);
    let lock = format!("SELECT fence FROM rowlock_lock WHERE name = {name} FOR UPDATE NOWAIT");
    let mut tx = db.begin().await;
    let locked = tx.execute(&lock).await.is_err();
    tx.release().await;
    locked
}

/// The transaction waits for the lease's end, or has to make way.
fn check(db: &Db, level: &str, waited: Result<Locked, Error>, before: i64) {
    let waits = db.kind.waits_for_leases && level == "READ COMMITTED";
    match waited {
        Ok(locked) => assert!(waits && locked.fences().all(|(_, fence)| fence > before)),
        Err(error) => {
            assert!(!waits, "{error}");
            assert!(matches!(error, Error::Conflict { .. }), "{error}");
        }
    }
}

on_every_engine! {
    async fn a_lease_that_is_granted_while_a_transaction_waits_is_not_robbed(db: &Db) {
        if db.one_writer() {
            return; // a transaction that waits for the file has seen nothing yet
        }
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        for level in LEVELS {
            // The second client knows the name, and has seen no lease of it.
            drop(two.version(level).await.unwrap());
            let held = take(&one, level, TTL).await;
            let grant = grant_under_way(db, level).await;
            let mut tx = db.begin_at(level).await;
            let wait = async {
                let waited = tx.acquire(&two, level, LONG).await;
                tx.release().await;
                waited
            };
            let grant = async {
                eventually("the transaction waits", async || db.waiting().await == 1).await;
                grant.commit().await.unwrap();
                eventually("the row is unlocked", async || !is_locked(db, level).await).await;
                let mut tx = db.begin().await;
                tx.pin(&held).await.unwrap();
                tx.commit().await.unwrap();
                held.release().await.unwrap();
            };
            let (waited, ()) = tokio::join!(wait, grant);
            check(db, level, waited, held.fence());
        }
    }

    async fn who_waits_for_one_of_several_names_locks_none_of_the_others(db: &Db) {
        if db.one_writer() {
            return; // the same
        }
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        for name in ["a", "b", "c"] {
            drop(two.version(name).await.unwrap());
        }
        for level in LEVELS {
            let held = take(&one, "b", TTL).await;
            let grant = grant_under_way(db, "b").await;
            let mut tx = db.begin_at(level).await;
            let wait = async {
                let waited = tx.acquire_all(&two, &["a", "b", "c"]).await;
                tx.release().await;
                waited
            };
            let grant = async {
                eventually("the transaction waits", async || db.waiting().await == 1).await;
                grant.commit().await.unwrap();
                for name in ["b", "a", "c"] {
                    eventually("the row is unlocked", async || !is_locked(db, name).await).await;
                }
                // So a transaction gets the others, and may then wait for the lease, too.
                let mut tx = db.begin().await;
                for name in ["a", "c"] {
                    let _ = tx.acquire(&one, name, LONG).await.unwrap();
                }
                held.release().await.unwrap();
                tx.release().await;
            };
            let (waited, ()) = tokio::join!(wait, grant);
            check(db, level, waited, held.fence());
        }
    }
}
