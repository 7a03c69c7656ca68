//! A database in quarantine grants nothing, until its end. What it has not forgotten goes on.

use std::time::Duration;

use rowlock::{Begun, Busy, Engine, Error, InvalidError, Rowlock, Scope};
use rowlock_test::{
    Db, TryLock, begin, begin_new, busy, eventually, join, on_app, on_every_engine, outcome,
    queue_is, release, renewed, request, take, turns,
};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(30);

/// Longer than a test.
const LONG: Duration = Duration::from_mins(10);

/// What is in the way is the quarantine.
fn is_quarantined(busy: &Busy) {
    let left = busy.quarantine.expect("it tells of the quarantine");
    assert!(left <= LONG && left > LONG / 2, "{busy}");
    assert!(busy.holder.is_none(), "{busy}");
    assert!(
        busy.to_string().contains("in quarantine for another"),
        "{busy}"
    );
}

/// The request is refused because of the quarantine.
fn refused<H: std::fmt::Debug>(asked: Result<H, Error>) {
    is_quarantined(&busy(asked));
}

/// The call in a transaction failed at once because of the quarantine.
fn gave_up<T: std::fmt::Debug>(locked: Result<T, Error>) {
    match locked.unwrap_err() {
        Error::WaitTimeout { busy, waited, .. } => {
            is_quarantined(&busy);
            assert!(waited < LONG / 2, "{waited:?}");
        }
        error => panic!("{error}"),
    }
}

on_every_engine! {
    async fn no_lease_is_granted(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        for name in ["free", "expired", "d", "e"] {
            release(&take(&one, name, TTL).await).await;
        }
        std::mem::forget(take(&one, "expired", TTL).await);
        let expired = db.bytes("expired");
        db.execute(&format!("UPDATE rowlock_lock SET expires_at = acquired_at WHERE name = {expired}")).await;
        assert_eq!(one.admin().quarantine_left().await.unwrap(), None);
        let lasts = one.admin().quarantine(LONG).await.unwrap();
        assert!(lasts <= LONG && lasts > LONG / 2, "{lasts:?}");
        for rowlock in [&one, &two, &db.rowlock().await] {
            for name in ["free", "expired", "new"] {
                refused(rowlock.lock(name).wait(Duration::ZERO).acquire().await);
                refused(rowlock.lock(name).in_session().wait(Duration::ZERO).acquire().await);
            }
            refused(rowlock.multi_lock(["free", "new"]).wait(Duration::ZERO).acquire().await);
        }
        // A batch.
        let mut asking = JoinSet::new();
        for n in 0..100 {
            let lock = one.lock(["d".into(), format!("n{n}")][n % 2].clone());
            asking.spawn(async move { lock.wait(Duration::ZERO).acquire().await });
        }
        asking.join_all().await.into_iter().for_each(refused);
        let short = one.lock("free").wait(Duration::from_millis(1)).acquire().await;
        gave_up(short);

        assert!(one.admin().end_quarantine().await.unwrap());
        assert!(!one.admin().end_quarantine().await.unwrap());
        for name in ["free", "expired", "new", "n1"] {
            release(&take(&two, name, TTL).await).await;
        }
    }

    async fn no_transaction_locks_or_advances_a_name(db: &Db) {
        let rowlock = db.rowlock().await;
        for name in ["a", "b"] {
            release(&take(&rowlock, name, TTL).await).await;
        }
        let seen = rowlock.version("a").await.unwrap();
        rowlock.admin().quarantine(LONG).await.unwrap();
        for name in ["a", "new"] {
            let mut tx = db.begin().await;
            match tx.try_lock(&rowlock, name).await.unwrap() {
                TryLock::Busy(busy) => is_quarantined(&busy),
                TryLock::Locked(locked) => panic!("{locked:?}"),
            }
            tx.release().await;
            let mut tx = db.begin().await;
            gave_up(tx.acquire(&rowlock, name, LONG).await);
            tx.release().await;
        }
        let mut tx = db.begin().await;
        match tx.lock_all(&rowlock, &["a", "b"]).await.unwrap() {
            TryLock::Busy(busy) => is_quarantined(&busy),
            TryLock::Locked(locked) => panic!("{locked:?}"),
        }
        tx.release().await;
        let mut tx = db.begin().await;
        gave_up(tx.advance(&rowlock, &seen).await);
        tx.release().await;
        // `Retry` does not begin again and again.
        let locked = on_app!(&db.app, pool => rowlock.retry().run(pool, |mut tx| {
            let rowlock = rowlock.clone();
            async move { rowlock.in_tx(&mut tx).lock("a").acquire().await }
        }).await);
        gave_up(locked);

        rowlock.admin().end_quarantine().await.unwrap();
        let mut tx = db.begin().await;
        assert!(tx.lock(&rowlock, "a").await.fence() > 0);
        tx.commit().await.unwrap();
    }

    async fn a_transaction_goes_out_of_the_way_of_a_holder(db: &Db) {
        let rowlock = db.rowlock().await;
        for names in [&["a"][..], &["a", "b"]] {
            // A client that knows the rows, and has seen no lease of them.
            let other = db.rowlock().await;
            let mut tx = db.begin().await;
            let _ = tx.acquire_all(&other, names).await.unwrap();
            tx.commit().await.unwrap();
            let held = take(&rowlock, "a", LONG).await;
            rowlock.admin().quarantine(LONG).await.unwrap();
            let mut tx = db.begin().await;
            let error = tx.acquire_all(&other, names).await.unwrap_err();
            match error {
                Error::Conflict { .. } => {}
                // There the transaction has locked nothing.
                Error::WaitTimeout { .. } => assert_eq!(db.engine, Engine::Postgres, "{error}"),
                _ => panic!("{error}"),
            }
            tx.release().await;
            rowlock.admin().end_quarantine().await.unwrap();
            release(&held).await;
        }
    }

    async fn no_permit_is_granted(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let mut reader = one.rw_lock("rw").read().await.unwrap();
        let permit = one.semaphore("s", 3).acquire().await.unwrap();
        one.admin().quarantine(LONG).await.unwrap();
        for rowlock in [&one, &two] {
            refused(rowlock.semaphore("s", 3).wait(Duration::ZERO).acquire().await);
            refused(rowlock.semaphore("new", 3).wait(Duration::ZERO).acquire().await);
            refused(rowlock.rw_lock("rw").wait(Duration::ZERO).read().await);
            refused(rowlock.rw_lock("new rw").wait(Duration::ZERO).write().await);
        }
        assert!(!reader.try_upgrade().await.unwrap(), "there may be another reader");
        // A waiter is granted nothing by a release, or by more capacity.
        let waits = two.semaphore("s", 3).holder("w");
        let waiting = tokio::spawn(async move { waits.acquire().await });
        queue_is(&one, "s", &["w"]).await;
        permit.release().await.unwrap();
        one.semaphore("s", 5).set_capacity().await.unwrap();
        queue_is(&one, "s", &["w"]).await;
        assert!(!waiting.is_finished());
        one.admin().end_quarantine().await.unwrap();
        let granted = waiting.await.unwrap();
        assert!(matches!(granted, Err(Error::WrongKind { .. }) | Ok(_)), "{granted:?}");
        assert!(reader.try_upgrade().await.unwrap());
    }

    async fn waiters_are_granted_after_it_in_their_order(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", TTL).await;
        let mut waiting = vec![join(&one, "a", "0").await, join(&two, "a", "1").await];
        one.admin().quarantine(LONG).await.unwrap();
        held.release().await.unwrap();
        waiting.push(join(&one, "a", "2").await);
        // Its holder has gone, and nobody has the name.
        eventually("it is free", async || two.inspect("a").await.unwrap().is_none()).await;
        for _ in 0..5 {
            // Each ask tries to pass the name on.
            refused(two.lock("a").wait(Duration::ZERO).acquire().await);
        }
        queue_is(&two, "a", &["0", "1", "2"]).await;
        assert!(two.inspect("a").await.unwrap().is_none());
        // A waiter that leaves passes nothing on.
        waiting.remove(1).abort();
        queue_is(&two, "a", &["0", "2"]).await;
        assert!(two.inspect("a").await.unwrap().is_none());
        assert!(two.admin().end_quarantine().await.unwrap());
        assert_eq!(turns(waiting).await, [0, 1]);
    }

    async fn a_wait_ends_with_the_quarantine(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let before = take(&one, "a", TTL).await;
        release(&before).await;
        one.admin().quarantine(Duration::from_millis(1_500)).await.unwrap();
        let after = two.lock("a").wait(TTL).acquire().await.unwrap();
        assert_eq!(one.admin().quarantine_left().await.unwrap(), None, "it was granted after its end");
        assert!(after.fence() > before.fence());
    }

    async fn what_the_database_remembers_goes_on(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", Duration::from_secs(3)).await;
        let in_session = one.lock("b").in_session().acquire().await.unwrap();
        let guard = begin_new(&one.idempotency(), "k").await;
        one.admin().quarantine(LONG).await.unwrap();
        for held in [&held, &in_session] {
            renewed(held).await;
        }
        let mut tx = db.begin().await;
        tx.pin(&held).await.unwrap();
        tx.commit().await.unwrap();
        guard.complete(&outcome("done")).await.unwrap();
        assert!(matches!(begin(&two.idempotency(), "k").await, Begun::Replay(_)));
        release(&held).await;
        release(&in_session).await;
        refused(two.lock("a").wait(Duration::ZERO).acquire().await);
    }

    async fn no_attempt_begins_and_transactions_go_on(db: &Db) {
        let rowlock = db.rowlock().await;
        begin_new(&rowlock.idempotency(), "freed").await.release().await.unwrap();
        rowlock.admin().quarantine(LONG).await.unwrap();
        for key in ["freed", "new"] {
            let begun = begin(&rowlock.idempotency(), key).await;
            let Begun::InFlight(in_flight) = begun else { panic!("{begun:?}") };
            let left = in_flight.quarantine.expect("it tells of the quarantine");
            assert!(left <= LONG && left > LONG / 2 && in_flight.remaining.is_none(), "{in_flight:?}");
        }
        let waiting = tokio::spawn({
            let rowlock = rowlock.clone();
            async move { begin(&rowlock.idempotency().wait(LONG), "waits").await }
        });
        let begun = on_app!(&db.app, pool => {
            let idempotency = rowlock.idempotency();
            let request = request();
            let run = idempotency.run_in_tx(pool, Scope("scope").key("in tx"), &request, |_tx| async {
                Ok::<_, Error>(outcome("done"))
            });
            run.await.unwrap()
        });
        assert!(matches!(begun, Begun::New(_)), "{begun:?}");
        // The attempt before may go on: the database may have forgotten its lease.
        let begun = on_app!(&db.app, pool => {
            let (idempotency, request) = (rowlock.idempotency(), request());
            let run = idempotency.run_in_tx(pool, Scope("scope").key("freed"), &request, |_tx| async {
                Ok::<_, Error>(outcome("twice"))
            });
            run.await.unwrap()
        });
        let is_told = matches!(&begun, Begun::InFlight(in_flight) if in_flight.quarantine.is_some());
        assert!(is_told, "{begun:?}");
        assert!(!waiting.is_finished());
        rowlock.admin().end_quarantine().await.unwrap();
        assert!(matches!(waiting.await.unwrap(), Begun::New(_)));
        for key in ["freed", "new"] {
            let _ = begin_new(&rowlock.idempotency(), key).await;
        }
    }

    async fn a_longer_quarantine_stays(db: &Db) {
        let rowlock = db.rowlock().await;
        rowlock.admin().quarantine(LONG).await.unwrap();
        let left = rowlock.admin().quarantine(Duration::from_secs(1)).await.unwrap();
        assert!(left > LONG / 2, "{left:?}");
        let left = rowlock.admin().quarantine(LONG * 2).await.unwrap();
        assert!(left > LONG, "{left:?}");
        for time in [Duration::ZERO, Duration::from_millis(99), Duration::from_hours(367 * 24)] {
            let error = rowlock.admin().quarantine(time).await.unwrap_err();
            assert!(matches!(error, Error::Invalid(InvalidError::Duration { setting: "quarantine", .. })), "{error}");
            let error = Rowlock::builder().quarantine(time).connect(&db.url).await.unwrap_err();
            assert!(matches!(error, Error::Invalid(InvalidError::Duration { setting: "quarantine", .. })), "{error}");
        }
    }

    async fn the_quarantine_that_was_seen_is_ended_and_no_other_one(db: &Db) {
        let (rowlock, other) = (db.rowlock().await, db.rowlock().await);
        let (admin, other) = (rowlock.admin(), other.admin());
        assert_eq!(admin.quarantine_until().await.unwrap(), None);
        other.quarantine(LONG).await.unwrap();
        let seen = admin.quarantine_until().await.unwrap().unwrap();
        other.end_quarantine().await.unwrap();
        other.quarantine(LONG).await.unwrap();
        assert!(!admin.end_quarantine_until(seen).await.unwrap());
        assert!(other.quarantine_left().await.unwrap().is_some());
        let seen = admin.quarantine_until().await.unwrap().unwrap();
        assert!(admin.end_quarantine_until(seen).await.unwrap());
        assert_eq!(other.quarantine_left().await.unwrap(), None);
    }
}
