//! Promises 1 and 2: a holder may raise its fence, and every later one is greater. A holder may leave a name so that
//! it stays taken for a time.

use std::time::Duration;

use rowlock::extend::raise_fence;
use rowlock::{Error, InvalidError, Loss, Rowlock};
use rowlock_test::{Db, connected, eventually, join, on_every_engine, release, take};

const TTL: Duration = Duration::from_secs(30);

/// The fence of a century.
const FAR: i64 = 3_000_000_000_000_000;

/// Who is in the way, and for how long.
async fn busy(rowlock: &Rowlock, name: &str) -> (String, Duration) {
    match rowlock.lock(name).wait(Duration::ZERO).acquire().await {
        Err(Error::WaitTimeout { busy, .. }) => {
            let holder = busy.holder.expect("somebody has it");
            (holder.holder, holder.remaining)
        }
        other => panic!("{other:?}"),
    }
}

on_every_engine! {
    async fn every_fence_after_a_raised_one_is_greater(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        for lock in [one.lock("a"), one.lock("s").in_session()] {
            let held = lock.acquire().await.unwrap();
            let first = held.fence();
            // It has a fence that is great enough.
            let second = raise_fence(&held, first - 10).await.unwrap();
            assert!(second > first, "{first} {second}");
            assert_eq!(raise_fence(&held, FAR).await.unwrap(), FAR);
            assert_eq!(held.fence(), FAR);
            let info = two.inspect(held.name().as_str()).await.unwrap().unwrap();
            assert_eq!(info.fence, FAR);
            assert_eq!(raise_fence(&held, 0).await.unwrap(), FAR + 1);
            release(&held).await;
            let next = two.lock(held.name().as_str()).acquire().await.unwrap();
            assert!(next.fence() > FAR + 1, "{}", next.fence());
            release(&next).await;
        }
    }

    async fn a_task_that_takes_the_lease_from_a_raised_one_has_a_greater_fence(db: &Db) {
        let one = db.rowlock().await;
        let held = take(&one, "a", TTL).await;
        let waiting = [join(&one, "a", "x").await, tokio::spawn({
            let lock = one.lock("a").holder("x");
            async move { lock.acquire().await }
        })];
        release(&held).await;
        let mut last = held.fence();
        let mut floor = FAR;
        for waiting in waiting {
            let held = waiting.await.unwrap().unwrap();
            assert!(held.fence() > last, "{} {last}", held.fence());
            last = raise_fence(&held, floor).await.unwrap();
            assert_eq!((held.fence(), last >= floor), (last, true));
            floor += 1_000;
            release(&held).await;
        }
    }

    async fn only_a_holder_raises_its_fence(db: &Db) {
        let builder = Rowlock::builder().operation_timeout(Duration::from_secs(2));
        let rowlock = connected(&builder, &db.url).await;
        let held = take(&rowlock, "a", TTL).await;
        for at_least in [-1, i64::MAX] {
            let error = raise_fence(&held, at_least).await.unwrap_err();
            assert!(matches!(error, Error::Invalid(InvalidError::Setting { setting: "at_least", .. })), "{error}");
        }
        let other = db.rowlock().await;
        other.admin().force_release("a").await.unwrap();
        let error = raise_fence(&held, FAR).await.unwrap_err();
        assert!(matches!(error, Error::Lost { loss: Loss::TakenOver, .. }), "{error}");
        assert!(!held.is_held());
        let next = take(&other, "a", TTL).await;
        assert!(next.fence() < FAR);
        release(&next).await;
        let error = raise_fence(&next, FAR).await.unwrap_err();
        assert!(matches!(error, Error::Released { .. }), "{error}");
        for permit in [
            rowlock.semaphore("s", 2).acquire().await.unwrap(),
            rowlock.semaphore("s", 2).acquire().await.unwrap(),
        ] {
            let error = raise_fence(&permit, FAR).await.unwrap_err();
            assert!(matches!(error, Error::Invalid(InvalidError::Setting { setting: "raise_fence", .. })), "{error}");
        }
        // While a transaction has it pinned, its fence does not change.
        let held = take(&rowlock, "b", TTL).await;
        let mut tx = db.begin().await;
        tx.pin(&held).await.unwrap();
        let error = raise_fence(&held, FAR).await.unwrap_err();
        assert!(matches!(error, Error::RowLocked { .. } | Error::Unreachable { .. }), "{error}");
        tx.commit().await.unwrap();
        assert_eq!(raise_fence(&held, FAR).await.unwrap(), FAR);
    }

    async fn a_name_that_was_left_stays_taken_for_the_time(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let locks = [
            one.lock("a").holder("me"),
            // A renewal, or the end of the session, changes nothing.
            one.lock("b").holder("me").ttl(Duration::from_secs(3)),
            one.lock("c").holder("me").in_session(),
        ];
        for lock in locks {
            let held = lock.acquire().await.unwrap();
            let name = held.name().as_str().to_owned();
            let grant = async || two.inspect(name.as_str()).await.unwrap().unwrap().grant_id;
            let own = grant().await;
            held.release_in(TTL).await.unwrap();
            assert_ne!(grant().await, own, "a late statement of this grant would change it");
            assert!(!held.is_held() && held.loss().is_none());
            held.release().await.unwrap();
            held.release_in(TTL).await.unwrap();
            let (holder, remaining) = busy(&two, &name).await;
            assert_eq!(holder, "me");
            assert!(remaining <= TTL && remaining > TTL / 2, "{remaining:?}");
        }
        one.end_session().await.unwrap();
        assert_eq!(one.shutdown(TTL).await, []);
        tokio::time::sleep(Duration::from_millis(700)).await;
        for name in ["a", "b", "c"] {
            assert!(busy(&two, name).await.1 > TTL / 2);
        }
    }

    async fn it_is_free_and_goes_to_the_first_waiter_after_the_time(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", TTL).await;
        let waiting = join(&two, "a", "w").await;
        let time = Duration::from_millis(1_200);
        let started = std::time::Instant::now();
        held.release_in(time).await.unwrap();
        let next = waiting.await.unwrap().unwrap();
        assert!(started.elapsed() >= time, "{:?}", started.elapsed());
        assert!(next.fence() > held.fence());
        next.release_in(Duration::ZERO).await.unwrap();
        eventually("it is free", async || one.inspect("a").await.unwrap().is_none()).await;
        let last = take(&one, "a", TTL).await;
        assert!(last.fence() > next.fence());
        // A permit keeps its part.
        let permit = one.semaphore("s", 1).acquire().await.unwrap();
        permit.release_in(TTL).await.unwrap();
        assert!(two.semaphore("s", 1).try_acquire().await.unwrap().is_none());
    }

    async fn leaving_a_lost_lease_changes_nothing(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", TTL).await;
        let error = held.release_in(Duration::from_hours(367 * 24)).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(InvalidError::Duration { setting: "release_in", .. })), "{error}");
        assert!(held.is_held());
        two.admin().force_release("a").await.unwrap();
        let next = take(&two, "a", TTL).await;
        assert!(matches!(held.release_in(TTL).await, Err(Error::Lost { loss: Loss::TakenOver, .. })));
        assert!(next.is_held());
        release(&next).await;
        // Another guard of the owner keeps the lease.
        let owner = one.owner();
        let lock = one.lock("o").owner(&owner);
        let (outer, inner) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
        inner.release_in(Duration::ZERO).await.unwrap();
        assert!(outer.is_held());
        assert!(busy(&two, "o").await.1 > TTL / 2);
        release(&outer).await;
    }
}
