//! A lease that lingers after its release costs its client no statement, and is given back to whoever waits for it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

use rowlock::{Error, InvalidError, Lock, Rowlock};
use rowlock_test::{Db, eventually, on_app, on_every_engine, release};
use tokio::task::JoinSet;

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_mins(1);

/// Long enough for a recall on each engine, and shorter than `LONG`.
const PATIENCE: Duration = Duration::from_secs(40);

fn lingering(rowlock: &Rowlock) -> Lock {
    rowlock.lock("a").linger(LONG)
}

async fn grant_of(rowlock: &Rowlock) -> Option<uuid::Uuid> {
    let info = rowlock.inspect("a").await.unwrap();
    info.map(|info| info.grant_id)
}

async fn is_free(rowlock: &Rowlock) -> bool {
    grant_of(rowlock).await.is_none()
}

/// Acquires and releases. The lease lingers then.
async fn use_once(lock: &Lock) {
    release(&lock.acquire().await.unwrap()).await;
}

/// Acquires and releases until the lease lingers. (On a busy machine it may find its row locked when it reserves
/// fences.)
async fn lingers(lock: &Lock, watcher: &Rowlock) {
    eventually("it lingers", async || {
        use_once(lock).await;
        !is_free(watcher).await
    })
    .await;
}

on_every_engine! {
    async fn the_next_acquire_takes_the_same_grant_under_a_higher_fence(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let lock = lingering(&one);
        let mut fences: Vec<i64> = Vec::new();
        loop {
            lingers(&lock, &two).await;
            let mut grants = Vec::new();
            for n in 0..6 {
                let held = match n % 2 {
                    0 => lock.acquire().await.unwrap(),
                    _ => lock.try_acquire().await.unwrap().expect("no other client has it"),
                };
                let row = two.inspect("a").await.unwrap().unwrap();
                assert!(held.is_held() && row.fence >= held.fence(), "{row:?}");
                grants.push(row.grant_id);
                fences.push(held.fence());
                release(&held).await;
                assert!(!held.is_held());
                held.release().await.unwrap();
            }
            grants.dedup();
            if grants.len() == 1 {
                break;
            }
        }
        assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
        assert!(two.lock("a").try_acquire().await.unwrap().is_none());
        one.flush().await;
        let next = two.lock("a").try_acquire().await.unwrap().expect("a flush gives it back");
        assert!(Some(&next.fence()) > fences.last(), "{} {fences:?}", next.fence());
    }

    async fn it_ends_in_time(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        use_once(&one.lock("a").linger(Duration::from_millis(50))).await;
        eventually("it is released", async || is_free(&two).await).await;
    }

    async fn who_waits_calls_it_back(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let wait = two.lock("a").wait(PATIENCE);
        for _ in 0..3 {
            use_once(&lingering(&one)).await;
            release(&wait.acquire().await.unwrap()).await;
        }
    }

    async fn who_waits_calls_back_what_is_in_use_again_and_again(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let busy = lingering(&one);
        for work in [Duration::ZERO, Duration::from_millis(20)] {
            let busy = busy.clone();
            let using = tokio::spawn(async move {
                loop {
                    let held = busy.acquire().await.unwrap();
                    // The work that the lock is for: the lease lingers for a small part of the time.
                    tokio::time::sleep(work).await;
                    release(&held).await;
                }
            });
            let wait = two.lock("a").wait(PATIENCE);
            for _ in 0..3 {
                release(&wait.acquire().await.unwrap()).await;
            }
            using.abort();
            let _ = using.await;
        }
    }

    async fn another_request_of_the_same_client_gets_it(db: &Db) {
        let rowlock = db.rowlock().await;
        let others = [
            rowlock.lock("a"),
            rowlock.lock("a").ttl(Duration::from_secs(9)).linger(LONG),
            rowlock.lock("a").max_hold(LONG),
        ];
        for other in others {
            use_once(&lingering(&rowlock)).await;
            let held = other.try_acquire().await.unwrap().expect("nobody needs it");
            release(&held).await;
            use_once(&lingering(&rowlock)).await;
            let held = other.wait(PATIENCE).acquire().await.unwrap();
            release(&held).await;
            rowlock.flush().await;
        }
    }

    async fn a_transaction_of_the_same_client_gets_it(db: &Db) {
        let rowlock = &db.rowlock().await;
        for is_optimistic in [false, true] {
            use_once(&lingering(rowlock)).await;
            let retry = rowlock.retry();
            on_app!(&db.app, pool => retry.run(pool, |mut tx| async move {
                if is_optimistic {
                    let seen = rowlock.in_tx(&mut tx).version("a").await?;
                    return rowlock.in_tx(&mut tx).advance(&seen).await?.or_conflict(&seen).map(drop);
                }
                rowlock.in_tx(&mut tx).lock("a").wait(PATIENCE).acquire().await.map(drop)
            }).await.unwrap());
        }
    }

    /// It has called the lease back while a task had it. Another task takes the name between two of its looks.
    async fn a_transaction_that_waits_gets_what_lingers_since(db: &Db) {
        let rowlock = &db.rowlock().await;
        let lock = lingering(rowlock);
        for _ in 0..20 {
            let held = lock.acquire().await.unwrap();
            let uses = async {
                for _ in 0..10 {
                    assert!(!is_free(rowlock).await, "the transaction looks meanwhile");
                }
                release(&held).await;
                use_once(&lock).await;
            };
            let in_tx = async {
                on_app!(&db.app, pool => rowlock.retry().run(pool, |mut tx| async move {
                    rowlock.in_tx(&mut tx).lock("a").wait(PATIENCE).acquire().await.map(drop)
                }).await.unwrap());
            };
            tokio::join!(uses, in_tx);
        }
    }

    async fn a_transaction_of_the_same_client_asks_once(db: &Db) {
        let (rowlock, one_writer) = (db.rowlock().await, db.one_writer());
        for round in 0..20 {
            use_once(&lingering(&rowlock)).await;
            on_app!(&db.app, pool => {
                let mut tx = pool.begin().await.unwrap();
                let asked = rowlock.in_tx(&mut tx).lock("a").try_acquire().await.unwrap();
                // Where there is one writer, it is this transaction.
                assert!(asked.is_some() || one_writer, "round {round}");
                tx.commit().await.unwrap();
            });
        }
    }

    async fn a_shutdown_gives_it_back(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        use_once(&lingering(&one)).await;
        assert_eq!(one.shutdown(PATIENCE).await, []);
        assert!(is_free(&two).await);
        let error = lingering(&one).acquire().await.unwrap_err();
        assert!(matches!(error, Error::ShutDown { .. }), "{error}");
    }

    async fn a_client_that_shuts_down_keeps_nothing(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = lingering(&one).acquire().await.unwrap();
        assert_eq!(one.shutdown(PATIENCE).await.len(), 1, "the lock is held");
        release(&held).await;
        assert_eq!(one.shutdown(PATIENCE).await, []);
        assert!(is_free(&two).await);
    }

    async fn a_client_that_is_dropped_gives_back_what_lingers(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let lock = lingering(&one);
        lingers(&lock, &two).await;
        drop((lock, one));
        let released = eventually("it is released", async || is_free(&two).await);
        tokio::time::timeout(PATIENCE, released).await.expect("before its time");
    }

    async fn a_pinned_lease_does_not_linger(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = lingering(&one).acquire().await.unwrap();
        let mut tx = db.begin().await;
        tx.pin(&held).await.unwrap();
        tx.commit().await.unwrap();
        drop(held);
        eventually("it is released", async || is_free(&two).await).await;
    }

    async fn a_lease_that_was_lost_does_not_linger(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        lingers(&lingering(&one).ttl(Duration::from_secs(3)), &two).await;
        two.admin().force_release("a").await.unwrap();
        let other = two.lock("a").acquire().await.unwrap();
        let lock = lingering(&one).ttl(Duration::from_secs(3));
        eventually("a renewal finds out", async || lock.try_acquire().await.unwrap().is_none()).await;
        release(&other).await;
    }

    async fn who_frees_it_by_force_does_not_take_it_again(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        lingers(&lingering(&one), &two).await;
        one.admin().force_release("a").await.unwrap();
        let other = two.lock("a").try_acquire().await.unwrap().expect("it is free");
        assert!(lingering(&one).try_acquire().await.unwrap().is_none());
        assert!(other.is_held());
        release(&other).await;
    }

    async fn who_frees_it_by_force_and_goes_does_not_take_it_again(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let mut pause = Duration::from_millis(100);
        loop {
            use_once(&lingering(&one)).await;
            let tx = db.lock_row("a").await;
            let is_sent = async {
                if db.one_writer() {
                    // SQLite does not tell who waits for the file. If the release was not sent, the next round waits
                    // longer.
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                } else {
                    eventually("it waits for the row", async || db.waiting().await > 0).await;
                }
            };
            tokio::select! {
                _ = one.admin().force_release("a") => unreachable!("the row is locked"),
                () = is_sent => {}
            }
            tx.release().await;
            // Long before the lease ends by itself. The next holder asks only then: a forced release that came later
            // would free its lease.
            let freed = eventually("it is freed", async || is_free(&two).await);
            match tokio::time::timeout(PATIENCE / 4, freed).await {
                Ok(()) => break,
                Err(_) => assert!(db.one_writer() && pause < LONG, "it is not freed"),
            }
        }
        let other = two.lock("a").acquire().await.unwrap();
        let mut tries = 0;
        let (tries, lock) = (&mut tries, &lingering(&one));
        eventually("it is called back", || {
            *tries += 1;
            async { lock.try_acquire().await.unwrap().is_none() }
        })
        .await;
        // The forced release told the client. Otherwise it goes on until its fences are used up, or a renewal finds
        // out.
        assert!(*tries < 1_000, "{tries}");
        assert!(other.is_held());
        release(&other).await;
    }

    async fn a_task_that_is_not_polled_keeps_nobody_waiting_for_long(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let lock = lingering(&one);
        let held = lock.acquire().await.unwrap();
        let mut idle = pin!(lock.acquire());
        assert!(tokio::time::timeout(Duration::ZERO, idle.as_mut()).await.is_err());
        // Its turn comes, and nobody polls it.
        release(&held).await;
        release(&two.lock("a").wait(PATIENCE).acquire().await.unwrap()).await;
        release(&idle.await.unwrap()).await;
    }

    async fn one_task_at_a_time_has_a_lease_that_lingers(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let (inside, last) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicI64::new(0)));
        let mut tasks = JoinSet::new();
        for n in 0..6 {
            let lock = lingering(if n % 2 == 0 { &two } else { &one });
            let (inside, last) = (Arc::clone(&inside), Arc::clone(&last));
            tasks.spawn(async move {
                for round in 0..20 {
                    let held = lock.acquire().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two tasks have it");
                    let before = last.swap(held.fence(), Ordering::SeqCst);
                    assert!(before < held.fence(), "{before} {}", held.fence());
                    tokio::task::yield_now().await;
                    assert!(held.is_held());
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if round % 2 == 0 {
                        release(&held).await;
                    }
                }
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
        one.flush().await;
        two.flush().await;
        assert!(is_free(&one).await);
    }

    async fn its_time_has_bounds(db: &Db) {
        let rowlock = db.rowlock().await;
        for wrong in [Duration::ZERO, Duration::from_secs(61)] {
            let error = rowlock.lock("a").linger(wrong).acquire().await.unwrap_err();
            assert!(matches!(error, Error::Invalid(InvalidError::Duration { setting: "linger", .. })), "{error}");
        }
    }
}
