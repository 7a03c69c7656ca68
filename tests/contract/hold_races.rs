//! What a holder changes in its own lease, while something else happens to it.

use std::sync::Arc;
use std::time::Duration;

use rowlock::extend::raise_fence;
use rowlock::{Error, Held, Loss, Rowlock};
use rowlock_test::{Db, eventually, join, loss, on_every_engine, release, take};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(30);

/// The fence of a century.
const FAR: i64 = 3_000_000_000_000_000;

/// Somebody has the name, or it stays taken.
async fn is_taken(rowlock: &Rowlock, name: &str) -> bool {
    rowlock.lock(name).try_acquire().await.unwrap().is_none()
}

async fn fence_in_row(rowlock: &Rowlock, name: &str) -> i64 {
    rowlock.inspect(name).await.unwrap().unwrap().fence
}

/// The lease of `name`, and of what it belongs to, has expired by the database's clock. This process does not know it
/// yet.
async fn expire(db: &Db, name: &str) {
    let (past, name) = (db.past(), db.bytes(name));
    db.execute(&format!(
        "UPDATE rowlock_lock SET expires_at = {past}, acquired_at = {past} WHERE name = {name}"
    ))
    .await;
}

fn is_lost<T: std::fmt::Debug>(changed: &Result<T, Error>) {
    assert!(matches!(changed, Err(Error::Lost { .. })), "{changed:?}");
}

on_every_engine! {
    async fn a_pinned_lease_keeps_its_fence(db: &Db) {
        let quick = Rowlock::builder().operation_timeout(Duration::from_secs(2));
        let one = quick.connect(&db.url).await.unwrap();
        let held = take(&one, "a", TTL).await;
        let before = held.fence();
        let mut tx = db.begin().await;
        tx.pin(&held).await.unwrap();
        for at_least in [0, before, FAR] {
            let error = raise_fence(&held, at_least).await.unwrap_err();
            assert!(matches!(error, Error::RowLocked { .. } | Error::Unreachable { .. }), "{error}");
            assert_eq!(held.fence(), before);
        }
        // It cannot be left either, and then it runs out.
        let error = held.release_in(TTL).await.unwrap_err();
        assert!(matches!(error, Error::RowLocked { .. } | Error::Unreachable { .. }), "{error}");
        assert!(!held.is_held() && held.loss().is_none());
        tx.commit().await.unwrap();
        let info = db.rowlock().await.inspect("a").await.unwrap();
        assert!(info.is_none_or(|info| info.remaining <= TTL));
    }

    async fn a_lease_that_has_expired_is_not_changed(db: &Db) {
        let one = db.rowlock().await;
        for leaves in [false, true] {
            let held = take(&one, "a", TTL).await;
            expire(db, "a").await;
            if leaves {
                assert!(matches!(held.release_in(TTL).await, Err(Error::Lost { loss: Loss::TakenOver, .. })));
            } else {
                is_lost(&raise_fence(&held, FAR).await);
            }
            let next = take(&one, "a", TTL).await;
            assert!(next.fence() < FAR);
            release(&next).await;
        }
    }

    async fn a_lock_of_a_session_that_has_expired_is_not_changed(db: &Db) {
        for leaves in [false, true] {
            let one = db.rowlock().await;
            let held = one.lock("a").in_session().acquire().await.unwrap();
            let past = db.past();
            db.execute(&format!("UPDATE rowlock_session SET expires_at = {past}")).await;
            if leaves {
                assert!(loss(held.release_in(TTL).await).is_some());
            } else {
                is_lost(&raise_fence(&held, FAR).await);
            }
            let next = take(&db.rowlock().await, "a", TTL).await;
            assert!(next.fence() < FAR);
            release(&next).await;
        }
    }

    async fn many_tasks_raise_one_fence(db: &Db) {
        let one = db.rowlock().await;
        let held = Arc::new(take(&one, "a", TTL).await);
        let mut tasks = JoinSet::new();
        for n in 0..20 {
            let held = Arc::clone(&held);
            tasks.spawn(async move { raise_fence(&held, FAR + n % 3).await.unwrap() });
        }
        let highest = tasks.join_all().await.into_iter().max().unwrap();
        assert_eq!((held.fence(), fence_in_row(&one, "a").await), (highest, highest));
        release(&held).await;
        assert!(take(&one, "a", TTL).await.fence() > highest);
    }

    async fn a_fence_that_is_raised_while_the_lease_ends_is_smaller_than_the_next(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let mut floor = FAR;
        for round in 0..12 {
            let name = format!("a{}", round % 3);
            let held = Arc::new(take(&one, &name, TTL).await);
            let waiting = join(&two, &name, "w").await;
            let end = async |held: &Held| match round % 4 {
                0 => drop(held.release().await),
                1 => drop(held.release_in(Duration::from_millis(50)).await),
                2 => drop(two.admin().force_release(name.as_str()).await),
                _ => {
                    let mut tx = db.begin().await;
                    let _ = tx.pin(held).await;
                    tx.commit().await.unwrap();
                    drop(held.release().await);
                }
            };
            let (raised, ()) = tokio::join!(raise_fence(&held, floor), end(&held));
            let next = waiting.await.unwrap().unwrap();
            if let Ok(raised) = raised {
                assert!(raised >= floor && next.fence() > raised, "{raised} {}", next.fence());
                floor = raised;
            }
            floor += 1_000;
            release(&next).await;
        }
    }

    async fn a_name_that_is_left_while_the_session_ends_is_taken_or_lost(db: &Db) {
        let two = db.rowlock().await;
        for round in 0..8 {
            let one = db.rowlock().await;
            let name = format!("a{round}");
            let held = one.lock(name.as_str()).in_session().acquire().await.unwrap();
            let (left, ()) = tokio::join!(held.release_in(TTL), async {
                if round % 2 == 0 {
                    one.end_session().await.unwrap();
                } else {
                    one.shutdown(TTL).await;
                }
            });
            match left {
                Ok(()) => assert!(is_taken(&two, &name).await),
                // The end of the session came first.
                Err(Error::Lost { .. }) => assert!(!is_taken(&two, &name).await),
                // The client has shut down: the release may have happened or not.
                Err(other) => assert!(round % 2 == 1, "{other}"),
            }
        }
    }

    async fn a_name_that_is_left_while_it_is_renewed_is_free_in_time(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let mut tasks = JoinSet::new();
        for n in 0..40 {
            // A renewal comes every second.
            let lock = one.lock(format!("a{n}")).ttl(Duration::from_secs(3));
            tasks.spawn(async move {
                let held = lock.acquire().await.unwrap();
                tokio::time::sleep(Duration::from_millis(900 + n * 9)).await;
                held.release_in(Duration::ZERO).await.unwrap();
                held
            });
        }
        for held in tasks.join_all().await {
            assert!(two.inspect(held.name().clone()).await.unwrap().is_none(), "{held:?}");
        }
    }

    async fn a_task_of_the_same_client_follows_a_name_that_was_left(db: &Db) {
        let one = db.rowlock().await;
        let held = take(&one, "a", TTL).await;
        let mut tasks = JoinSet::new();
        for _ in 0..3 {
            let lock = one.lock("a");
            tasks.spawn(async move {
                let next = lock.acquire().await.unwrap();
                // In the turn of their cohort.
                next.release_in(Duration::from_millis(50)).await.unwrap();
                next.fence()
            });
        }
        eventually("they wait", async || !one.admin().queue("a").await.unwrap().is_empty()).await;
        held.release_in(Duration::from_millis(300)).await.unwrap();
        let mut fences = tasks.join_all().await;
        fences.sort_unstable();
        fences.dedup();
        assert!(fences.len() == 3 && fences[0] > held.fence(), "{fences:?}");
    }
}
