//! Re-entry: through an explicit owner, counted in the process; never by thread, process or host.

use std::time::Duration;

use rowlock::{Error, InvalidError, Loss, Rowlock};
use rowlock_test::{App, Db, eventually, on_every_engine, patience, take, takes_less_than};

on_every_engine! {
    async fn an_owner_enters_again_and_others_do_not(db: &Db) {
        let rowlock = db.rowlock().await;
        let (me, other) = (rowlock.owner(), rowlock.owner());
        let outer = rowlock.lock("a").owner(&me).acquire().await.unwrap();
        let inner = rowlock.lock("a").owner(&me.clone()).acquire().await.unwrap();
        assert_eq!(outer.fence(), inner.fence());
        // Neither another owner nor the same process, task and thread without one.
        assert!(rowlock.lock("a").owner(&other).try_acquire().await.unwrap().is_none());
        assert!(rowlock.lock("a").try_acquire().await.unwrap().is_none());

        inner.release().await.unwrap();
        inner.release().await.unwrap();
        assert!(outer.is_held());
        assert_eq!(rowlock.inspect("a").await.unwrap().unwrap().fence, outer.fence());
        drop(outer);
        rowlock.flush().await;
        assert_eq!(rowlock.inspect("a").await.unwrap(), None);
        // And with a new grant again.
        let again = rowlock.lock("a").owner(&me).acquire().await.unwrap();
        assert!(again.fence() > inner.fence());
    }

    async fn an_owner_enters_each_of_its_names_again(db: &Db) {
        let rowlock = db.rowlock().await;
        let me = rowlock.owner();
        let mut held = Vec::new();
        for name in ["a", "b", "c"] {
            held.push(rowlock.lock(name).owner(&me).acquire().await.unwrap());
        }
        for outer in &held {
            let inner = rowlock.lock(outer.name().clone()).owner(&me).try_acquire().await.unwrap();
            assert_eq!(inner.expect("it is this owner's").fence(), outer.fence());
        }
    }

    async fn each_task_of_an_owner_waits_for_one_operation_at_most(db: &Db) {
        let limit = Duration::from_secs(1);
        let builder = Rowlock::builder().operation_timeout(limit);
        let rowlock = builder.connect(&db.url).await.unwrap();
        // A pool of its own: the table is locked until the session ends.
        let app = App::connect(&db.url, 1).await;
        let mut tx = app.begin().await;
        tx.execute(db.kind.lock_table).await.unwrap(); // no other session gets an answer
        let me = rowlock.owner();
        // One after the other they would take eight times the limit.
        takes_less_than(8 * limit, async || {
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..8 {
                let lock = rowlock.lock("a").owner(&me);
                tasks.spawn(async move { lock.try_acquire().await.unwrap_err() });
            }
            while let Some(error) = tasks.join_next().await {
                let error = error.unwrap();
                assert!(error.is_transient(), "{error}");
            }
        })
        .await;
        tx.release().await;
        app.close().await;
    }

    async fn tasks_of_one_owner_share_one_grant(db: &Db) {
        let rowlock = db.rowlock().await;
        let me = rowlock.owner();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let lock = rowlock.lock("a").owner(&me);
            tasks.spawn(async move { lock.try_acquire().await.unwrap().expect("mine") });
        }
        let mut guards = Vec::new();
        while let Some(guard) = tasks.join_next().await {
            guards.push(guard.unwrap());
        }
        assert!(guards.iter().all(|guard| guard.fence() == guards[0].fence()));
        for _ in 0..19 {
            drop(guards.pop());
        }
        rowlock.flush().await;
        assert!(guards[0].is_held());
        assert_eq!(rowlock.inspect("a").await.unwrap().unwrap().fence, guards[0].fence());
    }

    async fn a_task_that_stands_in_line_enters_when_its_owner_is_granted(db: &Db) {
        let rowlock = db.rowlock().await;
        let me = rowlock.owner();
        let held = take(&rowlock, "a", Duration::from_mins(5)).await;
        let locks = [rowlock.lock("a").owner(&me), rowlock.lock("a"), rowlock.lock("a").owner(&me)];
        let mut waiting = Vec::new();
        // In this order they queue.
        for lock in locks {
            waiting.push(tokio::spawn(async move { lock.acquire().await.unwrap() }));
            eventually("it waits", async || {
                rowlock.admin().queue("a").await.unwrap().len() == waiting.len()
            })
            .await;
        }
        held.release().await.unwrap();
        let [mine, stranger, again] = <[_; 3]>::try_from(waiting).unwrap();
        let first = mine.await.unwrap();
        assert_eq!(again.await.unwrap().fence(), first.fence(), "it enters");
        assert!(!stranger.is_finished(), "the owner has it");
    }

    async fn entering_again_waits_for_nobody_in_line(db: &Db) {
        let rowlock = db.rowlock().await;
        let me = rowlock.owner();
        let outer = rowlock.lock("a").owner(&me).acquire().await.unwrap();
        let others = rowlock.lock("a");
        let waiting = tokio::spawn(async move { others.acquire().await.unwrap() });
        eventually("another waiter is first in the queue", async || !waiting.is_finished() && {
            rowlock.lock("a").wait(Duration::from_millis(20)).acquire().await.is_err()
        })
        .await;
        let again = rowlock.lock("a").owner(&me);
        // Not behind the one who waits for us.
        let inner = again.acquire().await.unwrap();
        assert_eq!(inner.fence(), outer.fence());
        drop((inner, outer));
        assert!(waiting.await.unwrap().is_held());
    }

    /// The open transaction has the row locked (one writer: all rows), so no statement of the lane can change it.
    async fn a_lease_that_an_own_transaction_has_pinned_is_entered_again_at_once(db: &Db) {
        async fn at_once<T>(what: &str, future: impl Future<Output = T>) -> T {
            let done = tokio::time::timeout(patience(), future).await;
            done.unwrap_or_else(|_| panic!("not at once: {what}"))
        }
        let rowlock = db.rowlock().await;
        let me = rowlock.owner();
        let lock = rowlock.lock("a").owner(&me).ttl(Duration::from_mins(1));
        let outer = lock.acquire().await.unwrap();
        let mut tx = db.begin().await;
        tx.pin(&outer).await.unwrap();

        let inner = at_once("entering", lock.acquire()).await.unwrap();
        assert_eq!(inner.fence(), outer.fence());
        let released = at_once("leaving", inner.release()).await;
        released.unwrap();
        drop(at_once("entering", lock.try_acquire()).await.unwrap().expect("it is ours"));

        // Another attempt of the same owner may last for as long as the transaction (of the one writer).
        let other = rowlock.lock("b").owner(&me);
        let mut other = std::pin::pin!(other.try_acquire());
        let _ = std::future::poll_fn(|cx| std::task::Poll::Ready(other.as_mut().poll(cx).is_ready())).await;
        let again = at_once("entering beside another attempt", lock.acquire()).await.unwrap();
        drop(again);

        assert!(outer.is_held());
        tx.commit().await.unwrap();
        assert!(outer.is_held());
        outer.release().await.unwrap();
        assert_eq!(rowlock.inspect("a").await.unwrap(), None);
        let _ = other.await;
    }

    async fn a_loss_is_the_loss_of_all_holds_and_entering_again_takes_a_fresh_grant(db: &Db) {
        let rowlock = db.rowlock().await;
        let me = rowlock.owner();
        let lock = rowlock.lock("a").owner(&me).ttl(Duration::from_secs(6));
        let (outer, inner) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
        assert!(rowlock.admin().force_release("a").await.unwrap().is_some());
        // Until a renewal tells, this process takes the lease for held.
        assert_eq!(outer.lost().await, Loss::TakenOver);
        assert_eq!(inner.lost().await, Loss::TakenOver);
        let fresh = lock.acquire().await.unwrap();
        assert!(fresh.fence() > outer.fence());
        assert!(matches!(inner.release().await, Err(Error::Lost { loss: Loss::TakenOver, .. })));
        drop((outer, inner));
        rowlock.flush().await;
        assert!(fresh.is_held());
        assert_eq!(rowlock.inspect("a").await.unwrap().unwrap().fence, fresh.fence());
    }

    async fn a_released_guard_holds_nothing_while_others_of_its_grant_do(db: &Db) {
        let rowlock = db.rowlock().await;
        let me = rowlock.owner();
        let lock = rowlock.lock("a").owner(&me);
        let (outer, inner) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
        inner.release().await.unwrap();
        assert!(!inner.is_held());
        assert_eq!((inner.remaining(), inner.loss()), (Duration::ZERO, None));
        assert!(outer.is_held() && outer.remaining() > Duration::ZERO);

        // What happens to the grant from here on is not the released guard's loss.
        assert!(rowlock.admin().force_release("a").await.unwrap().is_some());
        assert!(matches!(outer.release().await, Err(Error::Lost { loss: Loss::TakenOver, .. })));
        assert_eq!(inner.loss(), None);
        inner.release().await.unwrap();
    }

    async fn a_guard_that_was_lost_before_its_release_says_so(db: &Db) {
        let rowlock = db.rowlock().await;
        let me = rowlock.owner();
        let lock = rowlock.lock("a").owner(&me).ttl(Duration::from_secs(2));
        let (outer, inner) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
        assert!(rowlock.admin().force_release("a").await.unwrap().is_some());
        assert_eq!(inner.lost().await, Loss::TakenOver);
        assert!(matches!(inner.release().await, Err(Error::Lost { loss: Loss::TakenOver, .. })));
        assert_eq!((inner.loss(), outer.loss()), (Some(Loss::TakenOver), Some(Loss::TakenOver)));
        assert_eq!(inner.lost().await, Loss::TakenOver);
    }

    async fn an_owner_belongs_to_its_client(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let error = two.lock("a").owner(&one.owner()).acquire().await.unwrap_err();
        assert!(matches!(error, Error::Invalid(InvalidError::Setting { setting: "owner", .. })), "{error}");
        let _free = take(&two, "a", Duration::from_secs(1)).await;
    }
}
