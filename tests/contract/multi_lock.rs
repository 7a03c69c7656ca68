//! Promises 1 and 6, for several names: all or nothing, in any order of the arguments, and never a deadlock.

use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use rowlock::{Error, InvalidError, Loss, MultiHeld, Rowlock, TransactionError};
use rowlock_test::{Db, eventually, join, loss, on_every_engine, queue_is, release, take};

const TTL: Duration = Duration::from_secs(30);

async fn try_all(rowlock: &Rowlock, names: &[&str]) -> Option<MultiHeld> {
    let multi = rowlock.multi_lock(names.iter().copied());
    multi.try_acquire().await.unwrap()
}

async fn is_free(rowlock: &Rowlock, name: &str) -> bool {
    rowlock.flush().await;
    rowlock.inspect(name).await.unwrap().is_none()
}

on_every_engine! {
    async fn all_names_are_granted_or_none(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let b = take(&two, "b", TTL).await;
        assert!(try_all(&one, &["c", "a", "b"]).await.is_none());
        assert!(is_free(&one, "a").await && is_free(&one, "c").await);
        release(&b).await;
        let held = try_all(&one, &["c", "a", "b"]).await.expect("all are free");
        let fences: Vec<_> = held.fences().map(|(name, fence)| (name.as_str().to_owned(), fence)).collect();
        assert_eq!(fences.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert!(fences[1].1 > b.fence());
        assert!(held.is_held() && !held.deadline().has_passed());
        assert!(try_all(&two, &["z", "c"]).await.is_none());
        held.release().await.unwrap();
        held.release().await.unwrap();
        let again = try_all(&two, &["a", "b", "c"]).await.expect("all are free again");
        drop(again);
        assert!(is_free(&two, "a").await && is_free(&two, "b").await && is_free(&two, "c").await);
    }

    async fn whoever_waits_holds_smaller_names_only(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let b = take(&two, "b", TTL).await;
        let multi = one.multi_lock(["c", "b", "a"]).holder("multi");
        let waiting = tokio::spawn(async move { multi.acquire().await });
        queue_is(&two, "b", &["multi"]).await;
        assert!(!is_free(&two, "a").await && is_free(&one, "c").await);
        let c = take(&two, "c", TTL).await;
        release(&b).await;
        queue_is(&two, "c", &["multi"]).await;
        release(&c).await;
        let held = waiting.await.unwrap().unwrap();
        assert_eq!(held.fences().count(), 3);
    }

    async fn a_wait_that_ends_keeps_nothing(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let b = take(&two, "b", TTL).await;
        let multi = one.multi_lock(["a", "b", "c"]);
        let error = multi.clone().wait(Duration::from_millis(50)).acquire().await.unwrap_err();
        assert!(matches!(&error, Error::WaitTimeout { name, .. } if name.as_str() == "b"), "{error}");
        assert!(is_free(&one, "a").await && is_free(&one, "c").await);
        let waits = multi.clone().holder("multi");
        let waiting = tokio::spawn(async move { waits.acquire().await });
        queue_is(&two, "b", &["multi"]).await;
        waiting.abort();
        queue_is(&two, "b", &[]).await;
        let error = multi.queue_limit(0).acquire().await.unwrap_err();
        assert!(matches!(error, Error::QueueFull { .. }), "{error}");
        eventually("nothing is left", async || is_free(&one, "a").await).await;
        assert!(b.is_held());
    }

    async fn the_loss_of_one_lease_is_the_loss_of_all(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = try_all(&one, &["a", "b"]).await.unwrap();
        two.admin().force_release("b").await.unwrap();
        let mut tx = db.begin().await;
        let pinned = tx.pin_all(&held).await;
        assert!(matches!(pinned, Err(Error::Lost { .. })), "{pinned:?}");
        tx.release().await;
        let (name, told) = held.lost().await;
        assert_eq!((name.as_str(), told), ("b", Loss::TakenOver));
        assert!(!held.is_held() && held.deadline().has_passed());
        let error = held.with(async || ()).await.unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error}");
        assert_eq!(loss(held.release().await), Some(Loss::TakenOver));
        assert!(is_free(&one, "a").await);
    }

    async fn locks_that_were_released_or_lost_run_no_work(db: &Db) {
        let rowlock = db.rowlock().await;
        let held = try_all(&rowlock, &["a", "b"]).await.unwrap();
        let all = (held.remaining(), held.loss());
        assert!(!all.0.is_zero() && all.1.is_none(), "{all:?}");
        let at_risk = pin!(held.at_risk()).poll(&mut Context::from_waker(Waker::noop()));
        assert!(at_risk.is_pending());
        held.release().await.unwrap();
        let error = held.with(async || unreachable!("work without a lock")).await;
        assert!(matches!(error, Err(Error::Released { .. })), "{error:?}");

        let held = try_all(&rowlock, &["a", "b"]).await.unwrap();
        rowlock.admin().force_release("b").await.unwrap();
        let (name, _) = held.lost().await;
        assert_eq!(name.as_str(), "b");
        held.at_risk().await;
        assert!(held.remaining().is_zero() && held.loss().is_some());
        let error = held.with(async || unreachable!("work without a lock")).await;
        assert!(matches!(&error, Err(Error::Lost { name, .. }) if name.as_str() == "b"), "{error:?}");
    }

    async fn work_that_is_cut_off_behind_a_pin_is_unknown_not_lost(db: &Db) {
        let rowlock = db.rowlock().await;
        let multi = rowlock.multi_lock(["a", "b"]).max_hold(Duration::from_secs(1));
        let held = multi.acquire().await.unwrap();
        let cut = held.with(async || {
            let mut tx = db.begin().await;
            tx.pin_all(&held).await.unwrap();
            tx.commit().await.unwrap();
            std::future::pending::<()>().await;
        }).await;
        assert!(matches!(cut, Err(Error::CutOff { .. })), "{cut:?}");
    }

    async fn a_lease_that_is_lost_while_waiting_ends_the_wait(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let b = take(&two, "b", TTL).await;
        let multi = one.multi_lock(["a", "b"]).holder("multi").ttl(Duration::from_secs(1));
        let waiting = tokio::spawn(async move { multi.acquire().await });
        queue_is(&two, "b", &["multi"]).await;
        two.admin().force_release("a").await.unwrap();
        let error = waiting.await.unwrap().unwrap_err();
        assert!(matches!(&error, Error::Lost { name, .. } if name.as_str() == "a"), "{error}");
        queue_is(&two, "b", &[]).await;
        assert!(b.is_held());
    }

    async fn dining_philosophers_do_not_wait_in_a_circle(db: &Db) {
        let mut table = tokio::task::JoinSet::new();
        for seat in 0..5 {
            let rowlock = db.rowlock().await;
            table.spawn(async move {
                let forks = [format!("fork {seat}"), format!("fork {}", (seat + 1) % 5)];
                let multi = rowlock.multi_lock(forks.iter().map(String::as_str));
                for _ in 0..5 {
                    let held = multi.acquire().await.unwrap();
                    assert!(held.with(async || tokio::task::yield_now().await).await.is_ok());
                    held.release().await.unwrap();
                }
            });
        }
        table.join_all().await;
    }

    async fn multi_locks_and_locks_wait_in_one_queue(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = try_all(&one, &["a", "b"]).await.unwrap();
        let single = join(&two, "a", "single").await;
        let multi = one.multi_lock(["b", "a"]).holder("multi");
        let waiting = tokio::spawn(async move { multi.acquire().await });
        queue_is(&two, "a", &["single", "multi"]).await;
        held.release().await.unwrap();
        release(&single.await.unwrap().unwrap()).await;
        assert!(waiting.await.unwrap().unwrap().is_held());
    }

    async fn wrong_names_are_refused(db: &Db) {
        let rowlock = db.rowlock().await;
        let error = rowlock.multi_lock(["a", "b", "a"]).acquire().await.unwrap_err();
        assert!(matches!(&error, Error::Transaction(TransactionError::DuplicateName { name }) if name.as_str() == "a"), "{error}");
        let error = rowlock.multi_lock(Vec::<&str>::new()).try_acquire().await.unwrap_err();
        assert!(error.to_string().contains("one name at least"), "{error}");
        let error = rowlock.multi_lock(["a", ""]).acquire().await.unwrap_err();
        assert!(matches!(error, Error::Invalid(InvalidError::Name { .. })), "{error}");
        let _ = rowlock.semaphore("s", 1).acquire().await.unwrap();
        let error = rowlock.multi_lock(["a", "s"]).acquire().await.unwrap_err();
        assert!(matches!(error, Error::WrongKind { .. }), "{error}");
        assert!(is_free(&rowlock, "a").await);
    }
}
