//! Promises 1 and 6, for semaphores: the sum of the weights of all live permits is at most the capacity, and permits
//! are granted in order.

use std::time::Duration;

use rowlock::{Error, InvalidError, Kind, Loss, Mode, Rowlock, Semaphore};
use rowlock_test::{Db, Waiting, busy, eventually, loss, on_every_engine, queue_of, release};

/// A permit that runs out within the test.
const SHORT: Duration = Duration::from_secs(4);

/// A task that waits for a permit. It is in the queue when this returns.
async fn join(semaphore: &Semaphore, db: &Db, holder: &str) -> Waiting {
    let waits = semaphore.clone().holder(holder.to_owned());
    let waiting = tokio::spawn(async move { waits.acquire().await });
    let watcher = db.rowlock().await;
    eventually("it is in the queue", async || {
        queue_of(&watcher, "s")
            .await
            .iter()
            .any(|waiter| waiter == holder)
    })
    .await;
    waiting
}

async fn is_busy(semaphore: &Semaphore) -> bool {
    semaphore.try_acquire().await.unwrap().is_none()
}

on_every_engine! {
    async fn as_many_permits_as_the_capacity_are_held_at_once(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let (here, there) = (one.semaphore("s", 3), two.semaphore("s", 3));
        let held = [here.acquire().await.unwrap(), there.acquire().await.unwrap(), here.acquire().await.unwrap()];
        assert!(held[0].fence() < held[1].fence() && held[1].fence() < held[2].fence());
        assert_eq!(held[0].name().as_str(), "s");
        let busy = busy(there.clone().wait(Duration::ZERO).acquire().await);
        assert!(busy.to_string().starts_with("others have too much of its capacity of 3"), "{busy}");
        let list = two.admin().list().await.unwrap();
        assert!(list.iter().all(|info| info.name.as_str() == "s"), "{list:?}");
        assert_eq!(list.len(), 3);
        assert!(matches!(list[0].mode, Mode::Permit { weight: 1, .. }));
        release(&held[1]).await;
        held[1].release().await.unwrap();
        let again = there.try_acquire().await.unwrap().expect("one is free");
        assert!(again.fence() > held[2].fence());
    }

    async fn permits_have_weights(db: &Db) {
        let rowlock = db.rowlock().await;
        let of = |weight| rowlock.semaphore("s", 10).weight(weight);
        let seven = of(7).acquire().await.unwrap();
        assert!(is_busy(&of(4)).await);
        let three = of(3).acquire().await.unwrap();
        assert!(is_busy(&of(1)).await);
        release(&seven).await;
        assert!(is_busy(&of(8)).await);
        let seven = of(7).acquire().await.unwrap();
        drop((three, seven));
        rowlock.flush().await;
        let ten = of(10).acquire().await.unwrap();
        assert!(ten.is_held());
    }

    async fn waiters_are_granted_in_order_as_many_as_fit(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let of = |weight| two.semaphore("s", 4).weight(weight);
        let all = one.semaphore("s", 4).weight(4).acquire().await.unwrap();
        let first = join(&of(1), db, "first").await;
        let heavy = join(&of(4), db, "heavy").await;
        let last = join(&one.semaphore("s", 4), db, "last").await;
        release(&all).await;
        let first = first.await.unwrap().unwrap();
        assert!(is_busy(&of(1)).await, "nobody overtakes a waiter");
        assert_eq!(queue_of(&one, "s").await, ["heavy", "last"]);
        release(&first).await;
        let heavy = heavy.await.unwrap().unwrap();
        assert_eq!(queue_of(&one, "s").await, ["last"]);
        release(&heavy).await;
        let last = last.await.unwrap().unwrap();
        assert!(last.fence() > heavy.fence());
        assert_eq!(queue_of(&one, "s").await, [""; 0]);
    }

    async fn a_waiter_that_leaves_lets_the_next_ones_in(db: &Db) {
        let rowlock = db.rowlock().await;
        let of = |weight| rowlock.semaphore("s", 4).weight(weight);
        let held = of(2).acquire().await.unwrap();
        let heavy = join(&of(4), db, "heavy").await;
        let light = join(&of(1), db, "light").await;
        heavy.abort();
        let light = light.await.unwrap().unwrap();
        let error = of(4).wait(Duration::from_millis(1)).acquire().await.unwrap_err();
        assert!(matches!(error, Error::WaitTimeout { .. }), "{error}");
        drop((held, light));
        rowlock.flush().await;
        assert!(of(4).try_acquire().await.unwrap().is_some());
    }

    async fn a_permit_is_renewed_and_one_that_has_expired_goes_to_others(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = one.semaphore("s", 1).ttl(SHORT).acquire().await.unwrap();
        let first = held.deadline();
        eventually("it is renewed", async || held.deadline() > first).await;
        let waiting = join(&two.semaphore("s", 1), db, "next").await;
        db.execute(&format!("UPDATE rowlock_lock SET expires_at = {} WHERE weight > 0", db.past())).await;
        let next = waiting.await.unwrap().unwrap();
        assert!(matches!(held.lost().await, Loss::TakenOver | Loss::Expired));
        assert!(next.fence() > held.fence());
        assert!(loss(held.release().await).is_some());
        assert!(next.is_held() && is_busy(&one.semaphore("s", 1)).await);
    }

    async fn a_permit_is_pinned(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = one.semaphore("s", 1).ttl(SHORT).acquire().await.unwrap();
        let mut tx = db.begin().await;
        tx.pin(&held).await.unwrap();
        eventually("the permit runs out", async || held.loss() == Some(Loss::Expired)).await;
        eventually("by the database's clock, too", async || two.admin().list().await.unwrap().is_empty()).await;
        // Where there is one writer, no other session gets an answer.
        assert!(!matches!(two.semaphore("s", 1).try_acquire().await, Ok(Some(_))));
        tx.commit().await.unwrap();
        let taken = two.semaphore("s", 1).acquire().await.unwrap();
        assert!(taken.fence() > held.fence());
        let mut tx = db.begin().await;
        let error = tx.pin(&held).await.unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error}");
        tx.release().await;
    }

    async fn permits_in_a_session_end_with_it(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let in_session = one.semaphore("s", 2).in_session();
        let held = [in_session.acquire().await.unwrap(), in_session.acquire().await.unwrap()];
        let waiting = join(&two.semaphore("s", 2), db, "next").await;
        assert_eq!(one.admin().sessions().await.unwrap().iter().map(|session| session.locks).max(), Some(2));
        assert_eq!(one.end_session().await.unwrap(), 2);
        assert_eq!(held[0].loss(), Some(Loss::SessionEnded));
        assert!(waiting.await.unwrap().unwrap().is_held());
    }

    /// Nobody passes the name on: a waiter would, and all who only try come again and again.
    async fn waiters_that_have_died_are_not_in_the_way_of_those_who_try(db: &Db) {
        // Its session is renewed so rarely that it does not notice that it has died.
        let two = Rowlock::builder().session_ttl(Duration::from_hours(1)).connect(&db.url).await.unwrap();
        let one = db.rowlock().await;
        let of = |rowlock: &Rowlock, weight| rowlock.semaphore("s", 2).weight(weight);
        let held = of(&one, 1).acquire().await.unwrap();
        let heavy = join(&of(&two, 2), db, "heavy").await;
        assert!(is_busy(&of(&one, 1)).await, "it would overtake");
        // As a crash does, after a while. (This process lives, so that its waiter may come back before the other one
        // tries.)
        let dies = format!("UPDATE rowlock_session SET expires_at = {}", db.past());
        eventually("there is room", async || {
            db.execute(&dies).await;
            let fits = of(&one, 1).try_acquire().await.unwrap();
            fits.is_some_and(|permit| permit.is_held())
        }).await;
        heavy.abort();
        release(&held).await;
    }

    async fn a_permit_that_was_dropped_is_free_for_the_same_task(db: &Db) {
        let rowlock = db.rowlock().await;
        let (semaphore, catalog) = (rowlock.semaphore("s", 1), rowlock.rw_lock("catalog"));
        let mut free = 0;
        for _ in 0..40 {
            drop(semaphore.acquire().await.unwrap());
            free += usize::from(semaphore.try_acquire().await.unwrap().is_some());
            drop(catalog.write().await.unwrap());
            free += usize::from(catalog.try_write().await.unwrap().is_some());
        }
        // A database that is so busy that it takes a row for locked frees it later.
        assert!(free > 40, "{free} of 80");
    }

    async fn the_capacity_is_changed_in_use(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let of = |capacity| one.semaphore("s", capacity);
        assert_eq!(of(1).set_capacity().await.unwrap(), None);
        let held = of(1).acquire().await.unwrap();
        let first = join(&two.semaphore("s", 1), db, "first").await;
        let second = join(&two.semaphore("s", 1), db, "second").await;
        assert_eq!(of(2).set_capacity().await.unwrap(), Some(1));
        let first = first.await.unwrap().unwrap();
        assert_eq!(of(1).set_capacity().await.unwrap(), Some(2));
        release(&held).await;
        // One is still used.
        assert_eq!(queue_of(&one, "s").await, ["second"]);
        release(&first).await;
        assert!(second.await.unwrap().unwrap().is_held());
    }

    async fn a_waiter_that_is_too_heavy_for_a_new_capacity_keeps_nobody_back(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = one.semaphore("s", 10).weight(5).acquire().await.unwrap();
        let heavy = join(&two.semaphore("s", 10).weight(8), db, "heavy").await;
        let light = join(&one.semaphore("s", 10), db, "light").await;
        assert_eq!(one.semaphore("s", 5).set_capacity().await.unwrap(), Some(10));
        let error = heavy.await.unwrap().unwrap_err();
        assert!(matches!(error, Error::WrongKind { is: Kind::Semaphore { capacity: 5, .. }, .. }), "{error}");
        assert_eq!(queue_of(&one, "s").await, ["light"]);
        release(&held).await;
        assert!(light.await.unwrap().unwrap().is_held());
    }

    async fn a_name_is_used_for_one_thing(db: &Db) {
        let rowlock = db.rowlock().await;
        let permit = rowlock.semaphore("s", 2).acquire().await.unwrap();
        let error = rowlock.semaphore("s", 3).acquire().await.unwrap_err();
        assert!(matches!(error, Error::WrongKind { is: Kind::Semaphore { capacity: 2, .. }, .. }), "{error}");
        for error in [
            rowlock.lock("s").try_acquire().await.unwrap_err(),
            rowlock.lock("s").acquire().await.unwrap_err(),
            rowlock.rw_lock("s").read().await.unwrap_err(),
            rowlock.rw_lock("s").try_write().await.unwrap_err(),
        ] {
            assert!(matches!(error, Error::WrongKind { is: Kind::Semaphore { capacity: 2, .. }, .. }), "{error}");
            assert!(!error.is_transient());
        }
        let mut tx = db.begin().await;
        let error = tx.try_lock(&rowlock, "s").await.unwrap_err();
        assert!(matches!(error, Error::WrongKind { is: Kind::Semaphore { .. }, asked: Kind::Lock, .. }), "{error}");
        tx.release().await;
        drop(permit);
        rowlock.flush().await;
        let mut tx = db.begin().await;
        let error = tx.acquire(&rowlock, "s", Duration::from_secs(1)).await.unwrap_err();
        assert!(matches!(error, Error::WrongKind { asked: Kind::Lock, .. }), "{error}");
        tx.release().await;
        let error = rowlock.version("s").await.unwrap_err();
        assert!(matches!(error, Error::WrongKind { asked: Kind::Lock, .. }), "{error}");

        let lock = rowlock.lock("l").acquire().await.unwrap();
        for error in [
            rowlock.semaphore("l", 1).acquire().await.unwrap_err(),
            rowlock.semaphore("l", 1).set_capacity().await.unwrap_err(),
            rowlock.rw_lock("l").write().await.unwrap_err(),
        ] {
            assert!(matches!(error, Error::WrongKind { is: Kind::Lock, .. }), "{error}");
        }
        assert!(lock.is_held());
    }

    async fn numbers_out_of_range_are_refused(db: &Db) {
        let rowlock = db.rowlock().await;
        for (capacity, weight, setting) in [(0, 1, "capacity"), (u32::MAX, 1, "capacity"), (2, 0, "weight"), (2, 3, "weight")] {
            let semaphore = rowlock.semaphore("s", capacity).weight(weight);
            for error in [semaphore.try_acquire().await.unwrap_err(), semaphore.acquire().await.unwrap_err()] {
                assert!(matches!(error, Error::Invalid(InvalidError::Setting { setting: s, .. }) if s == setting), "{error}");
            }
        }
        let error = rowlock.semaphore("s", 0).set_capacity().await.unwrap_err();
        assert!(matches!(error, Error::Invalid(InvalidError::Setting { setting: "capacity", .. })), "{error}");
        assert!(rowlock.admin().list().await.unwrap().is_empty());
    }

    async fn an_operator_sees_all_permits_of_one_semaphore(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        assert!(two.admin().holders("s").await.unwrap().is_empty());
        // Neighbours of the name, by the order of the bytes.
        let mut others = Vec::new();
        for name in ["r", "s\u{1}", "s ", "sa", "t"] {
            others.push(one.lock(name).acquire().await.unwrap());
        }
        assert!(two.admin().holders("s").await.unwrap().is_empty());
        assert_eq!(two.inspect("s").await.unwrap(), None);
        let of = |weight, holder: &str| one.semaphore("s", 9).weight(weight).holder(holder.to_owned());
        let held = [
            of(1, "first").acquire().await.unwrap(),
            of(3, "second").in_session().acquire().await.unwrap(),
            of(2, "third").acquire().await.unwrap(),
        ];
        let holders = two.admin().holders("s").await.unwrap();
        let found: Vec<_> = holders.iter().map(|info| (info.name.as_str(), info.fence, &*info.holder, info.mode.to_string())).collect();
        let asked = [("first", "1 of 9 permits"), ("second", "3 of 9 permits"), ("third", "2 of 9 permits")];
        let expected: Vec<_> = held.iter().zip(asked).map(|(held, (holder, mode))| ("s", held.fence(), holder, mode.to_owned())).collect();
        assert_eq!(found, expected);
        assert!(holders[1].session.is_some() && holders[0].session.is_none());
        let seen = two.inspect("s").await.unwrap().expect("it is held");
        assert!(holders.iter().any(|info| info.grant_id == seen.grant_id), "{seen:?}");
        for other in &others {
            let info = two.admin().holders(other.name().clone()).await.unwrap();
            assert_eq!(info.iter().map(|info| info.fence).collect::<Vec<_>>(), [other.fence()]);
        }
        release(&held[0]).await;
        one.end_session().await.unwrap();
        let holders = two.admin().holders("s").await.unwrap();
        assert_eq!(holders.iter().map(|info| info.fence).collect::<Vec<_>>(), [held[2].fence()]);
        db.execute(&format!("UPDATE rowlock_lock SET expires_at = {} WHERE weight > 0 AND grant_id IS NOT NULL", db.past())).await;
        assert!(two.admin().holders("s").await.unwrap().is_empty());
        assert_eq!(two.inspect("s").await.unwrap(), None);
        assert!(matches!(two.admin().holders("").await, Err(Error::Invalid(InvalidError::Name { .. }))));
    }

    async fn an_operator_frees_all_permits(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = [one.semaphore("s", 2).acquire().await.unwrap(), one.semaphore("s", 2).acquire().await.unwrap()];
        let waiting = join(&one.semaphore("s", 2).weight(2), db, "next").await;
        let freed = two.admin().force_release("s").await.unwrap().expect("it was held");
        assert_eq!(freed.fence, held[0].fence(), "the one that was granted first");
        assert!(waiting.await.unwrap().unwrap().is_held());
        assert!(two.admin().force_release("never used").await.unwrap().is_none());
    }

    async fn an_operator_frees_the_other_permits_when_one_is_pinned(db: &Db) {
        let one = db.rowlock().await;
        let of = one.semaphore("s", 3);
        let held = [of.acquire().await.unwrap(), of.acquire().await.unwrap(), of.acquire().await.unwrap()];
        let two = Rowlock::builder().operation_timeout(Duration::from_secs(3));
        let two = two.connect(&db.url).await.unwrap();
        let mut tx = db.begin().await;
        tx.pin(&held[0]).await.unwrap();
        two.admin().force_release("s").await.unwrap_err();
        // (A transaction that has a SQLite file has all permits.)
        if !db.one_writer() {
            let left = two.admin().holders("s").await.unwrap();
            assert_eq!(left.iter().map(|info| info.fence).collect::<Vec<_>>(), [held[0].fence()]);
        }
        tx.commit().await.unwrap();
        assert!(two.admin().force_release("s").await.unwrap().is_some());
        assert!(two.admin().holders("s").await.unwrap().is_empty());
    }

    async fn an_operator_frees_the_permits_that_were_shown(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = [one.semaphore("s", 3).acquire().await.unwrap(), one.semaphore("s", 3).acquire().await.unwrap()];
        let shown = two.admin().holders("s").await.unwrap();
        let ids: Vec<_> = shown.iter().map(|held| held.grant_id).collect();
        release(&held[0]).await;
        let later = one.semaphore("s", 3).in_session().acquire().await.unwrap();
        let freed = two.admin().force_release_grants("s", &ids).await.unwrap();
        assert_eq!(freed.iter().map(|info| info.fence).collect::<Vec<_>>(), [held[1].fence()]);
        let left = two.admin().holders("s").await.unwrap();
        assert_eq!(left.iter().map(|info| info.fence).collect::<Vec<_>>(), [later.fence()]);
    }
}
