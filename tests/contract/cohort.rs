//! Tasks of one client hand a lease on in memory: one at a time, in their order, under rising fences, for a short
//! time, and never after a pin.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

use rowlock::{Error, Held, Lock, Rowlock};
use rowlock_test::{Db, Tx, eventually, on_every_engine, patience, release, take, waiters};
use tokio::task::{JoinHandle, JoinSet};

pub(crate) const TTL: Duration = Duration::from_mins(30);

pub(crate) type Acquiring = Pin<Box<dyn Future<Output = Result<Held, Error>> + Send>>;

/// A task that waits. It has arrived when this returns.
async fn arrive(lock: Lock) -> Acquiring {
    let mut acquiring: Acquiring = Box::pin(async move { lock.acquire().await });
    let polled =
        std::future::poll_fn(|cx| std::task::Poll::Ready(acquiring.as_mut().poll(cx))).await;
    assert!(polled.is_pending(), "it is held");
    acquiring
}

/// Tasks of a client that wait for a name which another client holds. They have one place in the queue.
pub(crate) async fn all_wait(rowlock: &Rowlock, lock: &Lock, count: usize) -> Vec<Acquiring> {
    let mut waiting = vec![arrive(lock.clone()).await];
    // The first one asks before it waits.
    let first = waiting.remove(0);
    let mut tasks = JoinSet::new();
    tasks.spawn(first);
    waiting.push(Box::pin(async move {
        tasks.join_next().await.unwrap().unwrap()
    }));
    eventually("it waits", async || waiters(rowlock, "a").await.len() == 1).await;
    for _ in 1..count {
        waiting.push(arrive(lock.clone()).await);
    }
    assert_eq!(waiters(rowlock, "a").await.len(), 1);
    waiting
}

/// A client whose tasks wait for a name, the client that holds it, its lease, and the tasks.
pub(crate) async fn all_wait_behind(
    db: &Db,
    count: usize,
) -> (Rowlock, Rowlock, Held, std::vec::IntoIter<Acquiring>) {
    let (one, two) = (db.rowlock().await, db.rowlock().await);
    let held = take(&two, "a", TTL).await;
    let waiting = all_wait(&one, &one.lock("a").ttl(TTL), count).await;
    (one, two, held, waiting.into_iter())
}

/// A transaction locks the name, which is about to be free.
async fn eventually_locked(tx: &mut Tx, rowlock: &Rowlock) -> i64 {
    loop {
        if let Some(locked) = tx.try_lock(rowlock, "a").await.unwrap().locked() {
            return locked.fence();
        }
    }
}

/// How often tasks that wait for a name are handed the lease on, before each gets it in its order.
async fn hands_on_in_order(db: &Db) -> usize {
    let (one, two, held, waiting) = all_wait_behind(db, 5).await;
    let before = held.fence();
    release(&held).await;
    let (mut fences, mut grants) = (Vec::new(), Vec::new());
    for acquiring in waiting {
        let held = acquiring.await.unwrap();
        assert!(held.is_held() && held.remaining() > TTL / 3);
        let row = two.inspect("a").await.unwrap().unwrap();
        assert!(row.fence >= held.fence(), "{} {}", row.fence, held.fence());
        fences.push(held.fence());
        grants.push(row.grant_id);
        release(&held).await;
        assert!(!held.is_held());
    }
    assert!(
        before < fences[0] && fences.is_sorted_by(|a, b| a < b),
        "{before} {fences:?}"
    );
    // It is free again, and a later grant is above all of them.
    let after = two.lock("a").acquire().await.unwrap();
    assert!(after.fence() > fences[4], "{} {fences:?}", after.fence());
    assert_eq!(waiters(&one, "a").await, []);
    release(&after).await;
    grants.windows(2).filter(|pair| pair[0] == pair[1]).count()
}

async fn grant_of(rowlock: &Rowlock) -> uuid::Uuid {
    let info = rowlock.inspect("a").await.unwrap();
    info.expect("it is held").grant_id
}

on_every_engine! {
    async fn a_lease_is_handed_on_in_order_under_rising_fences(db: &Db) {
        // A machine that stands still for the time of a turn hands nothing on.
        eventually("a turn hands the lease on", async || hands_on_in_order(db).await > 0).await;
    }

    async fn one_task_at_a_time_has_the_lease(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let (inside, last) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicI64::new(0)));
        let mut tasks = JoinSet::new();
        for n in 0..24 {
            let lock = if n % 3 == 0 { two.lock("a") } else { one.lock("a") };
            let (inside, last) = (Arc::clone(&inside), Arc::clone(&last));
            tasks.spawn(async move {
                for _ in 0..20 {
                    let held = lock.acquire().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two tasks have it");
                    let before = last.swap(held.fence(), Ordering::SeqCst);
                    assert!(before < held.fence(), "{before} {}", held.fence());
                    tokio::task::yield_now().await;
                    assert!(held.is_held());
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if n % 2 == 0 {
                        release(&held).await;
                    }
                }
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
        eventually("it is free", async || one.inspect("a").await.unwrap().is_none()).await;
        eventually("nobody waits", async || waiters(&one, "a").await.is_empty()).await;
    }

    async fn a_lease_that_a_transaction_has_pinned_is_not_handed_on(db: &Db) {
        let (_one, _two, held, mut waiting) = all_wait_behind(db, 2).await;
        release(&held).await;
        let first = waiting.next().unwrap().await.unwrap();
        let mut next = waiting.next().unwrap();
        let mut tx = db.begin().await;
        tx.pin(&first).await.unwrap();
        let fence = first.fence();
        drop(first);
        let early = tokio::time::timeout(Duration::from_millis(300), &mut next).await;
        assert!(early.is_err(), "the transaction is open");
        tx.commit().await.unwrap();
        assert!(next.await.unwrap().fence() > fence);
    }

    /// Nothing is handed on after a pin. So the tasks join the queue while the next one works.
    async fn tasks_behind_a_pinned_lease_wait_each_by_itself(db: &Db) {
        let (one, _two, held, mut waiting) = all_wait_behind(db, 5).await;
        release(&held).await;
        let first = waiting.next().unwrap().await.unwrap();
        let mut tx = db.begin().await;
        tx.pin(&first).await.unwrap();
        tx.commit().await.unwrap();
        let mut rest: Vec<_> = waiting.map(tokio::spawn).collect();
        release(&first).await;
        eventually("one has it, and the others wait", async || waiters(&one, "a").await.len() == 3).await;
        while !rest.is_empty() {
            eventually("the next one has it", async || rest.iter().any(JoinHandle::is_finished)).await;
            let next = rest.iter().position(JoinHandle::is_finished).unwrap();
            release(&rest.remove(next).await.unwrap().unwrap()).await;
        }
    }

    /// Its statement may have pinned the lease all the same.
    async fn a_lease_that_may_be_pinned_is_not_handed_on(db: &Db) {
        let (_one, two, held, mut waiting) = all_wait_behind(db, 2).await;
        release(&held).await;
        let first = waiting.next().unwrap().await.unwrap();
        let grant = grant_of(&two).await;
        let mut tx = db.begin().await;
        {
            let mut pinning = Box::pin(tx.pin(&first));
            let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(pinning.as_mut().poll(cx))).await;
            drop(polled);
        }
        drop(tx);
        drop(first);
        let next = waiting.next().unwrap().await.unwrap();
        assert_ne!(grant_of(&two).await, grant);
        release(&next).await;
    }

    async fn other_clients_have_their_turns(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let mut busy = JoinSet::new();
        for _ in 0..6 {
            let lock = one.lock("a");
            busy.spawn(async move {
                loop {
                    let held = lock.acquire().await.unwrap();
                    // Work. (Without the end of a turn, its fences would last longer than the other client waits.)
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    drop(held);
                }
            });
        }
        let other = two.lock("a").wait(patience());
        for _ in 0..10 {
            let held = other.acquire().await.unwrap();
            release(&held).await;
        }
        busy.shutdown().await;
        eventually("it is free", async || two.lock("a").try_acquire().await.unwrap().is_some()).await;
    }

    /// The one that gets the guard of the other drops it on another thread.
    async fn guards_that_are_dropped_at_once_leave_nothing_behind(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let runtimes = [runtime(), runtime(), runtime()];
        let wait = two.lock("a").wait(TTL / 3);
        for _ in 0..100 {
            let held = wait.acquire().await.unwrap();
            let tasks = all_wait(&one, &one.lock("a"), 3).await.into_iter().zip(&runtimes);
            let tasks: Vec<_> = tasks.map(|(waits, on)| on.spawn(async { drop(waits.await.unwrap()) })).collect();
            release(&held).await;
            for task in tasks {
                task.await.unwrap();
            }
        }
        release(&wait.acquire().await.unwrap()).await;
        for runtime in runtimes {
            runtime.shutdown_background();
        }
    }

    async fn fences_do_not_run_ahead_of_the_clock(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&two, "a", TTL).await;
        db.execute("UPDATE rowlock_lock SET fence = fence + 100000000").await;
        let before = one.inspect("a").await.unwrap().unwrap().fence;
        let waiting = all_wait(&one, &one.lock("a"), 4).await;
        release(&held).await;
        for (acquiring, fence) in waiting.into_iter().zip(before + 1..) {
            let held = acquiring.await.unwrap();
            assert_eq!(held.fence(), fence, "a grant of its own");
            release(&held).await;
        }
    }

    /// A transaction that is rolled back gives its fence back: the next one must not get it again.
    async fn fences_of_transactions_after_a_turn_are_fresh(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        for _ in 0..5 {
            let held = take(&two, "a", TTL).await;
            // So many that their block of fences ends some milliseconds after now.
            let mut waiting = all_wait(&one, &one.lock("a"), 250).await.into_iter();
            release(&held).await;
            let held = waiting.next().unwrap().await.unwrap();
            drop(waiting);
            release(&held).await;
            let mut last = held.fence();
            for _ in 0..4 {
                let mut tx = db.begin().await;
                let fence = eventually_locked(&mut tx, &two).await;
                assert!(last < fence, "{last} {fence}");
                last = fence;
                tx.release().await;
            }
        }
    }

    async fn a_forced_release_that_the_next_turn_proves_ends_the_guard(db: &Db) {
        let (_one, two, held, mut waiting) = all_wait_behind(db, 3).await;
        let mut next = || waiting.next().unwrap();
        let (first, second, third) = (next(), next(), next());
        release(&held).await;
        let first = first.await.unwrap();
        eventually("a delegate waits for the next turn", async || waiters(&two, "a").await.len() == 1).await;
        assert!(two.admin().force_release("a").await.unwrap().is_some());
        let second = second.await.unwrap();
        assert!(first.fence() < second.fence());
        assert!(!first.is_held(), "a later grant was confirmed in this process");
        assert!(second.is_held());
        drop((first, second, third));
    }
}
