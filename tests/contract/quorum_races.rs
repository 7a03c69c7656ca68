//! A lock over several databases, while members lose it, come back, and its guard ends.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rowlock::{Loss, Rowlock};
use rowlock_recipes::Quorum;
use rowlock_test::{Db, eventually, loss, on_every_engine};
use tokio::task::JoinSet;

use crate::quorum::{Three, holders};

const TTL: Duration = Duration::from_secs(30);

on_every_engine! {
    async fn fences_rise_although_a_member_loses_every_lease(db: &Db) {
        let three = Three::of(db).await;
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
            let quorum = three.quorum().await;
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
        three.remove().await;
    }

    async fn a_release_while_a_member_is_taken_again_leaves_nothing(db: &Db) {
        let three = Three::of(db).await;
        let quorum = three.quorum().await;
        let client = db.rowlock().await;
        let mut names = Vec::new();
        for round in 0_u64.. {
            if round >= 6 && !names.is_empty() {
                break;
            }
            let name = format!("a{round}");
            let ttl = Duration::from_secs(3);
            let held = quorum.lock(name.as_str()).ttl(ttl).acquire().await.unwrap();
            client.admin().force_release(name.as_str()).await.unwrap();
            // The repair comes after a third of the TTL.
            tokio::time::sleep(Duration::from_millis(990 + 4 * (round % 6))).await;
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
            for database in [db, &three.others[0], &three.others[1]] {
                let of_name = database.bytes(&name);
                let grants = format!("SELECT COUNT(*) FROM rowlock_lock WHERE grant_id IS NOT NULL AND name = {of_name}");
                eventually("nothing is left", async || database.number(&grants).await == 0).await;
            }
        }
        three.remove().await;
    }

    async fn a_release_that_a_majority_does_not_answer_fails(db: &Db) {
        let three = Three::of(db).await;
        let quorum = three.quorum().await;
        let all = [&three.others[0], &three.others[1], db];
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
        three.remove().await;
    }

    async fn a_release_tells_of_a_loss_that_no_renewal_has_found_yet(db: &Db) {
        let three = Three::of(db).await;
        let quorum = three.quorum().await;
        let clients = three.clients().await;
        let released = async |freed: usize| {
            let held = three.granted_by_all(&quorum, "a", TTL).await;
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
        three.remove().await;
    }

    async fn a_release_does_not_wait_for_a_minority(db: &Db) {
        let three = Three::of(db).await;
        let builder = Rowlock::builder().operation_timeout(Duration::from_mins(5));
        let quorum = Quorum::connect_with(builder, three.urls()).await.unwrap();
        let clients = three.clients().await;
        let held = three.granted_by_all(&quorum, "a", TTL).await;
        let mut tx = db.begin().await;
        tx.execute("UPDATE rowlock_lock SET fence = fence").await.unwrap();
        let _ = loss(held.release().await);
        tx.release().await;
        eventually("it is free", async || holders(&clients, "a").await == 0).await;
        three.remove().await;
    }

    async fn a_lock_is_at_risk_before_it_is_lost(db: &Db) {
        let three = Three::of(db).await;
        let quorum = three.quorum().await;
        let held = three.granted_by_all(&quorum, "a", Duration::from_secs(9)).await;
        for database in &three.others {
            database.execute("ALTER TABLE rowlock_lock RENAME TO away").await;
        }
        held.at_risk().await;
        assert!(held.is_held() && held.loss().is_none() && held.remaining() < Duration::from_secs(4));
        let loss = held.lost().await;
        assert_eq!((loss, held.loss()), (Loss::Expired, Some(Loss::Expired)));
        for database in &three.others {
            database.execute("ALTER TABLE away RENAME TO rowlock_lock").await;
        }
        three.remove().await;
    }

    async fn a_guard_that_outlives_its_runtime_is_trusted_and_released(db: &Db) {
        let three = Three::of(db).await;
        let urls = three.urls().map(str::to_owned);
        let clients = three.clients().await;
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
        three.remove().await;
    }

    async fn a_lost_lock_gives_its_last_leases_up_although_its_guard_lives_on(db: &Db) {
        let three = Three::of(db).await;
        let quorum = three.quorum().await;
        let clients = three.clients().await;
        let held = three.granted_by_all(&quorum, "a", Duration::from_secs(3)).await;
        // The first lease may be there again when the second one goes.
        eventually("a majority is lost", async || {
            for client in &clients[..2] {
                client.admin().force_release("a").await.unwrap();
            }
            !held.is_held()
        })
        .await;
        held.lost().await;
        eventually("nobody holds the third", async || holders(&clients, "a").await == 0).await;
        assert!(!held.is_held());
        let next = quorum.lock("a").acquire().await.unwrap();
        assert_eq!(loss(held.release().await), Some(Loss::TakenOver));
        assert!(next.is_held());
        let _ = loss(next.release().await);
        three.remove().await;
    }

    async fn a_database_that_cannot_be_used_does_not_end_a_wait(db: &Db) {
        let three = Three::of(db).await;
        let quorum = three.quorum().await;
        let clients = three.clients().await;
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
        three.remove().await;
    }
}
