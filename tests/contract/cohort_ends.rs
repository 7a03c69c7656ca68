//! Tasks of one client that wait together: they leave, are not polled, give up, and end with their client.

use std::time::Duration;

use rowlock::Error;
use rowlock_test::{Db, eventually, on_every_engine, queue_is, release, take, waiters};
use tokio::task::JoinSet;

use crate::cohort::{TTL, all_wait, all_wait_behind};

on_every_engine! {
    async fn a_task_that_leaves_takes_nothing_with_it(db: &Db) {
        let (one, two, held, waiting) = all_wait_behind(db, 6).await;
        let mut waiting: Vec<_> = waiting.into_iter().map(|waits| tokio::spawn(waits)).collect();
        // The first, one in the middle, and the last.
        for n in [5, 2, 0] {
            waiting.remove(n).abort();
        }
        release(&held).await;
        let mut fences = Vec::new();
        for waits in waiting {
            let held = waits.await.unwrap().unwrap();
            fences.push(held.fence());
            // Dropped while the next one is cancelled, or handed on.
            drop(held);
        }
        assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
        // All leave, and so does their place in the queue.
        let held = two.lock("a").acquire().await.unwrap();
        queue_is(&two, "a", &[]).await;
        drop(all_wait(&one, &one.lock("a"), 3).await);
        queue_is(&two, "a", &[]).await;
        release(&held).await;
        drop(take(&two, "a", TTL).await);
    }

    async fn a_task_that_leaves_during_a_turn_takes_its_place_with_it(db: &Db) {
        let (one, two, held, mut waiting) = all_wait_behind(db, 3).await;
        release(&held).await;
        let first = waiting.next().unwrap().await.unwrap();
        eventually("it waits for the next turn", async || waiters(&one, "a").await.len() == 1).await;
        drop(waiting);
        queue_is(&two, "a", &[]).await;
        release(&first).await;
    }

    async fn a_task_that_is_dropped_with_its_lease_hands_it_on(db: &Db) {
        let (_one, two, held, mut waiting) = all_wait_behind(db, 3).await;
        let mut next = || waiting.next().unwrap();
        let (first, second, third) = (next(), next(), next());
        release(&held).await;
        release(&first.await.unwrap()).await;
        // It is the second one's turn.
        drop(second);
        let third = third.await.unwrap();
        release(&third).await;
        let wait = two.lock("a").wait(TTL / 3);
        release(&wait.acquire().await.unwrap()).await;
    }

    async fn a_task_that_is_not_polled_loses_its_turn(db: &Db) {
        let (one, two, held, mut waiting) = all_wait_behind(db, 3).await;
        let mut next = || waiting.next().unwrap();
        let (first, second, third) = (next(), next(), next());
        release(&held).await;
        release(&first.await.unwrap()).await;
        // It is the second one's turn.
        let third = third.await.unwrap();
        release(&third).await;
        let other = two.lock("a").wait(TTL / 3).acquire().await.unwrap();
        let second = tokio::spawn(second);
        eventually("it waits again", async || waiters(&one, "a").await.len() == 1).await;
        release(&other).await;
        release(&second.await.unwrap().unwrap()).await;
    }

    async fn a_runtime_that_rests_keeps_no_place(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&two, "a", TTL).await;
        let (lock, (rests, resting), (ends, ended)) = (one.lock("a"), std::sync::mpsc::channel(), std::sync::mpsc::channel());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let waited = runtime.block_on(lock.wait(Duration::from_millis(100)).acquire());
            assert!(matches!(waited, Err(Error::WaitTimeout { .. })), "{waited:?}");
            rests.send(()).unwrap();
            ended.recv().unwrap();
        });
        tokio::task::spawn_blocking(move || resting.recv().unwrap()).await.unwrap();
        one.flush().await;
        assert_eq!(waiters(&two, "a").await, []);
        ends.send(()).unwrap();
        thread.join().unwrap();
        release(&held).await;
    }

    async fn who_holds_alone_waits_for_no_turn(db: &Db) {
        let (_one, two, held, mut waiting) = all_wait_behind(db, 3).await;
        let mut next = || waiting.next().unwrap();
        let (first, second, third) = (next(), next(), next());
        release(&held).await;
        let first = first.await.unwrap();
        eventually("a delegate waits for the next turn", async || waiters(&two, "a").await.len() == 1).await;
        release(&first).await;
        release(&second.await.unwrap()).await;
        // Nobody waits while it works, but the delegate may.
        let third = third.await.unwrap();
        queue_is(&two, "a", &[]).await;
        release(&third).await;
    }

    async fn a_task_that_a_shutdown_waits_for_still_gets_its_lock(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&two, "a", TTL).await;
        let others = all_wait(&one, &one.lock("a"), 2).await;
        let others: Vec<_> = others.into_iter().map(|waits| tokio::spawn(waits)).collect();
        let lock = one.lock("a");
        let work = one.spawn("a letter", async move {
            let held = lock.acquire().await.unwrap();
            release(&held).await;
        });
        let (left, ()) = tokio::join!(one.shutdown(Duration::from_secs(10)), async {
            for other in others {
                let error = other.await.unwrap().unwrap_err();
                assert!(matches!(error, Error::ShutDown { .. }), "{error}");
            }
            release(&held).await;
            work.await.unwrap();
        });
        assert_eq!(left, []);
        assert!(two.inspect("a").await.unwrap().is_none());
    }

    async fn waits_have_limits_and_queues_too(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&two, "a", TTL).await;
        let lock = || one.lock("a").queue_limit(2);
        let mut waiting = JoinSet::new();
        for wait in all_wait(&two, &lock(), 2).await {
            waiting.spawn(wait);
        }
        let full = lock().acquire().await.unwrap_err();
        assert!(matches!(full, Error::QueueFull { .. }), "{full}");
        let short = one.lock("a").wait(Duration::from_millis(50));
        let (first, second) = tokio::join!(short.acquire(), short.acquire());
        for error in [first.unwrap_err(), second.unwrap_err()] {
            let Error::WaitTimeout { busy, .. } = error else { panic!("{error}") };
            assert_eq!(busy.holder.map(|holder| holder.fence), Some(held.fence()));
        }
        release(&held).await;
        while let Some(acquired) = waiting.join_next().await {
            release(&acquired.unwrap().unwrap()).await;
        }
    }

    async fn a_client_that_shuts_down_hands_nothing_on(db: &Db) {
        let (one, two, held, mut waiting) = all_wait_behind(db, 3).await;
        release(&held).await;
        let first = waiting.next().unwrap().await.unwrap();
        let others: Vec<_> = waiting.map(|waits| tokio::spawn(waits)).collect();
        let left = one.shutdown(Duration::from_secs(10)).await;
        assert_eq!(left.len(), 1, "the lock is held: {left:?}");
        for other in others {
            let error = other.await.unwrap().unwrap_err();
            assert!(matches!(error, Error::ShutDown { .. }), "{error}");
        }
        drop(first);
        assert_eq!(one.shutdown(Duration::from_secs(10)).await, []);
        release(&two.lock("a").acquire().await.unwrap()).await;
    }
}
