//! A lock over several databases, while members lose it, come back, and its guard ends.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rowlock::{Error, Loss, Rowlock};
use rowlock_recipes::Quorum;
use rowlock_recipes::quorum::QuorumHeld;
use rowlock_test::{Db, eventually, loss, on_every_engine, on_tx};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(30);

/// The database of the test, and two of other engines.
async fn databases(db: &Db) -> [Db; 2] {
    let other = |n: usize| Db::new(db.engine_after(n));
    [other(1).await, other(2).await]
}

fn urls(db: &Db, others: &[Db; 2]) -> [String; 3] {
    [db.url.clone(), others[0].url.clone(), others[1].url.clone()]
}

async fn clients(db: &Db, others: &[Db; 2]) -> [Rowlock; 3] {
    [
        db.rowlock().await,
        others[0].rowlock().await,
        others[1].rowlock().await,
    ]
}

async fn holders(clients: &[Rowlock], name: &str) -> usize {
    let mut held = 0;
    for client in clients {
        held += usize::from(client.inspect(name).await.unwrap().is_some());
    }
    held
}

async fn remove(others: [Db; 2]) {
    for other in others {
        other.remove().await;
    }
}

/// A lock whose guard has the leases of all databases. (The slowest database of a round grants it later. The guard has
/// that lease when it also has the fence of the others: a release before that counts the leases of the others only.)
async fn of_all(quorum: &Quorum, databases: [&Db; 3], name: &str, ttl: Duration) -> QuorumHeld {
    let held = quorum.lock(name).ttl(ttl).acquire().await.unwrap();
    for (member, database) in databases.into_iter().enumerate() {
        let has_lease = async || {
            let mut tx = database.begin().await;
            let pinned = on_tx!(&mut tx, tx => held.pin_on(member, tx).await);
            tx.release().await;
            assert!(
                matches!(pinned, Ok(()) | Err(Error::Lost { .. })),
                "{pinned:?}"
            );
            pinned.is_ok()
        };
        eventually("the guard has the lease of each member", has_lease).await;
    }
    held
}

on_every_engine! {
    async fn fences_rise_although_a_member_loses_every_lease(db: &Db) {
        let others = databases(db).await;
        let stop = Arc::new(AtomicBool::new(false));
        // It forgets leases between both rounds, in the work, and while the repair takes it again.
        let forgetful = tokio::spawn({
            let (client, stop) = (db.rowlock().await, Arc::clone(&stop));
            async move {
                while !stop.load(Ordering::SeqCst) {
                    let _ = client.admin().force_release("a").await.unwrap();
                }
            }
        });
        // Two may hold it: one with the forgetful member and the second, one with the forgetful member and the third.
        // Their fences still differ, and rise.
        let granted = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        for _ in 0..3 {
            let quorum = Quorum::connect(urls(db, &others)).await.unwrap();
            let granted = Arc::clone(&granted);
            tasks.spawn(async move {
                for _ in 0..6 {
                    let highest = granted.lock().unwrap().iter().max().copied().unwrap_or(0);
                    let held = quorum.lock("a").ttl(Duration::from_secs(3)).acquire().await.unwrap();
                    assert!(held.fence() > highest, "{} {highest}", held.fence());
                    granted.lock().unwrap().push(held.fence());
                    let _ = loss(held.release().await);
                }
            });
        }
        tasks.join_all().await;
        stop.store(true, Ordering::SeqCst);
        forgetful.await.unwrap();
        let granted: Vec<i64> = granted.lock().unwrap().clone();
        let distinct: BTreeSet<i64> = granted.iter().copied().collect();
        assert_eq!(distinct.len(), granted.len(), "{granted:?}");
        remove(others).await;
    }

    async fn a_release_while_a_member_is_taken_again_leaves_nothing(db: &Db) {
        let others = databases(db).await;
        let quorum = Quorum::connect(urls(db, &others)).await.unwrap();
        let client = db.rowlock().await;
        let mut names = Vec::new();
        for round in 0..6_u64 {
            let name = format!("a{round}");
            let ttl = Duration::from_secs(3);
            let held = quorum.lock(name.as_str()).ttl(ttl).acquire().await.unwrap();
            client.admin().force_release(name.as_str()).await.unwrap();
            // The repair comes after a third of the TTL.
            tokio::time::sleep(Duration::from_millis(990 + 4 * round)).await;
            // On a busy machine the lock may have been lost. Then its grants stay.
            if held.is_held() && held.remaining() > ttl / 4 {
                names.push(name);
            }
            if round % 2 == 0 {
                let _ = loss(held.release().await);
            } else {
                drop(held);
            }
        }
        // What is left is a grant, also when its time is over. (What was taken after the release is given back a
        // moment later.)
        for name in names {
            for database in [db, &others[0], &others[1]] {
                let of_name = database.bytes(&name);
                let grants = format!("SELECT COUNT(*) FROM rowlock_lock WHERE grant_id IS NOT NULL AND name = {of_name}");
                eventually("nothing is left", async || database.number(&grants).await == 0).await;
            }
        }
        remove(others).await;
    }

    async fn a_release_that_a_majority_does_not_answer_fails(db: &Db) {
        let others = databases(db).await;
        let quorum = Quorum::connect(urls(db, &others)).await.unwrap();
        let all = [&others[0], &others[1], db];
        for lost in [1, 3] {
            let held = quorum.lock(format!("a{lost}")).acquire().await.unwrap();
            for database in &all[..lost] {
                database.execute("ALTER TABLE rowlock_lock RENAME TO lost").await;
            }
            let released = held.release().await;
            assert_eq!(released.is_ok(), lost == 1, "{released:?}");
            for database in &all[..lost] {
                database.execute("ALTER TABLE lost RENAME TO rowlock_lock").await;
            }
        }
        remove(others).await;
    }

    async fn a_release_tells_of_a_loss_that_no_renewal_has_found_yet(db: &Db) {
        let others = databases(db).await;
        let quorum = Quorum::connect(urls(db, &others)).await.unwrap();
        let clients = clients(db, &others).await;
        let released = async |freed: usize| {
            let held = of_all(&quorum, [db, &others[0], &others[1]], "a", TTL).await;
            for client in &clients[..freed] {
                client.admin().force_release("a").await.unwrap();
            }
            assert!(held.is_held(), "no renewal is due yet");
            let told = loss(held.release().await);
            eventually("it is free", async || holders(&clients, "a").await == 0).await;
            told
        };
        for freed in 0..=1 {
            assert_eq!(released(freed).await, None, "{freed}");
        }
        for freed in 2..=3 {
            // A release that the database has refused, and that was sent again, cannot tell its own work from a forced
            // release.
            eventually("the loss is told", async || {
                released(freed).await == Some(Loss::TakenOver)
            })
            .await;
        }
        remove(others).await;
    }

    async fn a_release_does_not_wait_for_a_minority(db: &Db) {
        let others = databases(db).await;
        let builder = Rowlock::builder().operation_timeout(Duration::from_mins(5));
        let quorum = Quorum::connect_with(builder, urls(db, &others)).await.unwrap();
        let clients = clients(db, &others).await;
        let held = of_all(&quorum, [db, &others[0], &others[1]], "a", TTL).await;
        let mut tx = db.begin().await;
        tx.execute("UPDATE rowlock_lock SET fence = fence").await.unwrap();
        let _ = loss(held.release().await);
        tx.release().await;
        eventually("it is free", async || holders(&clients, "a").await == 0).await;
        remove(others).await;
    }

    async fn a_lock_is_at_risk_before_it_is_lost(db: &Db) {
        let others = databases(db).await;
        let quorum = Quorum::connect(urls(db, &others)).await.unwrap();
        let held = of_all(&quorum, [db, &others[0], &others[1]], "a", Duration::from_secs(9)).await;
        for database in &others {
            database.execute("ALTER TABLE rowlock_lock RENAME TO away").await;
        }
        held.at_risk().await;
        assert!(held.is_held() && held.loss().is_none() && held.remaining() < Duration::from_secs(4));
        let loss = held.lost().await;
        assert_eq!((loss, held.loss()), (Loss::Expired, Some(Loss::Expired)));
        for database in &others {
            database.execute("ALTER TABLE away RENAME TO rowlock_lock").await;
        }
        remove(others).await;
    }

    async fn a_guard_that_outlives_its_runtime_is_trusted_and_released(db: &Db) {
        let others = databases(db).await;
        let urls = urls(db, &others);
        let clients = clients(db, &others).await;
        let thread = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let held = runtime.block_on(async {
                let quorum = Quorum::connect(urls).await.unwrap();
                quorum.lock("a").ttl(Duration::from_secs(4)).acquire().await.unwrap()
            });
            drop(runtime);
            std::thread::sleep(Duration::from_secs(6));
            assert!(held.is_held(), "its leases are renewed on threads of their own");
            drop(held);
        });
        thread.await.unwrap();
        eventually("it is free", async || holders(&clients, "a").await == 0).await;
        remove(others).await;
    }

    async fn a_lost_lock_gives_its_last_leases_up_although_its_guard_lives_on(db: &Db) {
        let others = databases(db).await;
        let quorum = Quorum::connect(urls(db, &others)).await.unwrap();
        let clients = clients(db, &others).await;
        let held = of_all(&quorum, [db, &others[0], &others[1]], "a", Duration::from_secs(3)).await;
        for client in &clients[..2] {
            client.admin().force_release("a").await.unwrap();
        }
        held.lost().await;
        eventually("nobody holds the third", async || holders(&clients, "a").await == 0).await;
        assert!(!held.is_held());
        let next = quorum.lock("a").acquire().await.unwrap();
        assert_eq!(loss(held.release().await), Some(Loss::TakenOver));
        assert!(next.is_held());
        let _ = loss(next.release().await);
        remove(others).await;
    }

    async fn a_database_that_cannot_be_used_does_not_end_a_wait(db: &Db) {
        let others = databases(db).await;
        let quorum = Quorum::connect(urls(db, &others)).await.unwrap();
        let clients = clients(db, &others).await;
        let busy = clients[1].lock("a").acquire().await.unwrap();
        db.execute("ALTER TABLE rowlock_lock RENAME TO gone").await;
        let asked = quorum.lock("a").try_acquire().await;
        assert!(asked.is_err() || matches!(asked, Ok(None)), "{asked:?}");
        let waiting = tokio::spawn({
            let quorum = quorum.clone();
            async move { quorum.lock("a").acquire().await }
        });
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!waiting.is_finished(), "{:?}", waiting.await);
        let _ = loss(busy.release().await);
        let held = waiting.await.unwrap().unwrap();
        let _ = loss(held.release().await);
        db.execute("ALTER TABLE gone RENAME TO rowlock_lock").await;
        remove(others).await;
    }
}
