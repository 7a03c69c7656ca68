//! What the feature `testing` promises to the tests of an application.

use std::time::Duration;

use rowlock::testing::answers;
use rowlock::{Begun, Error, Loss, Rowlock};
use rowlock_test::{Db, begin, begin_new, connected, eventually, on_every_engine, outcome, take};

const TTL: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_secs(1);

on_every_engine! {
    async fn a_lease_that_a_test_loses_is_lost_and_its_name_is_free(db: &Db) {
        let (rowlock, other) = (db.rowlock().await, db.rowlock().await);
        let held = take(&rowlock, "a", TTL).await;
        let lost = held.lost();
        held.lose().await.unwrap();
        assert_eq!(lost.await, Loss::TakenOver);
        assert!(!held.is_held());
        let mut tx = db.begin().await;
        let error = tx.pin(&held).await.unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error}");
        tx.release().await;
        let next = other.lock("a").try_acquire().await.unwrap().expect("it is free");
        assert!(next.fence() > held.fence());
        // The release of the first guard leaves the next one alone.
        let error = held.release().await.unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error}");
        drop(held);
        rowlock.flush().await;
        assert!(next.is_held() && other.inspect("a").await.unwrap().is_some());
        assert_eq!(next.loss(), None);
    }

    async fn a_permit_and_a_lock_in_a_session_are_lost_alike(db: &Db) {
        let rowlock = db.rowlock().await;
        let permit = rowlock.semaphore("p", 1).acquire().await.unwrap();
        permit.lose().await.unwrap();
        assert!(!permit.is_held());
        let next = rowlock.semaphore("p", 1).try_acquire().await.unwrap();
        assert!(next.is_some(), "it is free");
        let held = rowlock.lock("s").in_session().acquire().await.unwrap();
        held.lose().await.unwrap();
        let next = rowlock.lock("s").try_acquire().await.unwrap();
        assert!(next.is_some(), "it is free");
    }

    async fn an_attempt_that_a_test_loses_records_no_outcome(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        let guard = begin_new(&idempotency, "k").await;
        guard.lose().await.unwrap();
        assert!(!guard.is_held());
        assert_eq!(guard.lost().await, Loss::TakenOver);
        let error = guard.complete(&outcome("late")).await.unwrap_err();
        assert!(matches!(error, Error::Superseded { .. }), "{error}");
        let next = begin_new(&idempotency, "k").await;
        assert!(next.attempt() > guard.attempt());
        next.complete(&outcome("done")).await.unwrap();
        assert!(matches!(begin(&idempotency, "k").await, Begun::Replay(_)));
    }

    async fn an_answer_that_is_held_back_comes_when_it_may_pass(db: &Db) {
        let rowlock = db.rowlock().await;
        answers(&rowlock).hold_back();
        let lock = rowlock.lock("a");
        let acquire = lock.acquire();
        let executed = async {
            let other = db.rowlock().await;
            let is_held = async || other.inspect("a").await.unwrap().is_some();
            eventually("the database has granted it", is_held).await;
            answers(&rowlock).pass();
        };
        let (held, ()) = tokio::join!(acquire, executed);
        assert!(held.unwrap().is_held());
    }

    async fn a_lease_is_lost_while_its_renewals_have_no_answer(db: &Db) {
        let rowlock = db.rowlock().await;
        let held = take(&rowlock, "a", SHORT).await;
        answers(&rowlock).hold_back();
        assert_eq!(held.lost().await, Loss::Expired);
        answers(&rowlock).pass();
    }

    async fn a_client_that_is_cut_off_goes_on_when_it_may(db: &Db) {
        let builder = Rowlock::builder().operation_timeout(Duration::from_millis(500));
        let rowlock = connected(&builder, &db.url).await;
        answers(&rowlock).cut();
        let error = rowlock.lock("a").try_acquire().await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        answers(&rowlock).pass();
        eventually("it is connected", async || {
            rowlock.lock("a").try_acquire().await.is_ok()
        })
        .await;
    }
}
