//! Promise 8: an outcome that is recorded in the caller's transaction commits with it.

use std::time::Duration;

use rowlock::{Begun, Error, Outcome, Scope, TransactionError};
use rowlock_test::{
    Db, begin, begin_new, lapse, on_app, on_every_engine, on_tx, outcome, request, take_over,
};

/// A lease, short enough to wait for its end.
const SHORT: Duration = Duration::from_secs(4);

async fn table(db: &Db) {
    db.execute("CREATE TABLE payment (id VARCHAR(40) NOT NULL)")
        .await;
}

async fn payments(db: &Db) -> i64 {
    db.number("SELECT COUNT(*) FROM payment").await
}

on_every_engine! {
    async fn its_own_commit_is_no_loss(db: &Db) {
        let idempotency = db.rowlock().await.idempotency().lease(SHORT);
        let guard = begin_new(&idempotency, "k").await;
        let mut tx = db.begin().await;
        on_tx!(&mut tx, tx => guard.complete_in(tx, &outcome("a")).await).unwrap();
        tx.commit().await.unwrap();
        // This is longer than a lease, so a renewal has found that the attempt has ended.
        let lost = tokio::time::timeout(SHORT * 3 / 2, guard.lost()).await;
        assert!(lost.is_err(), "{lost:?}");
    }

    async fn whoever_was_taken_over_can_neither_record_nor_commit(db: &Db) {
        table(db).await;
        let idempotency = db.rowlock().await.idempotency();
        let zombie = begin_new(&idempotency, "k").await;
        lapse(db).await;
        let successor = take_over(&idempotency, "k").await;
        assert!(successor.attempt() > zombie.attempt());

        let mut tx = db.begin().await;
        tx.execute("INSERT INTO payment VALUES ('zombie')").await.unwrap();
        let refused = on_tx!(&mut tx, tx => zombie.complete_in(tx, &outcome("zombie")).await);
        assert!(matches!(refused, Err(Error::Superseded { .. })), "{refused:?}");
        tx.release().await;
        assert!(matches!(zombie.complete(&outcome("zombie")).await, Err(Error::Superseded { .. })));

        let mut tx = db.begin().await;
        tx.execute("INSERT INTO payment VALUES ('successor')").await.unwrap();
        on_tx!(&mut tx, tx => successor.complete_in(tx, &outcome("successor")).await).unwrap();
        tx.commit().await.unwrap();
        drop(zombie);
        drop(successor);
        let Begun::Replay(replay) = begin(&idempotency, "k").await else { panic!("replay") };
        assert_eq!(replay.bytes(), b"successor");
        assert_eq!(payments(db).await, 1);
    }

    async fn the_outcome_commits_with_the_write_or_not_at_all(db: &Db) {
        table(db).await;
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        let guard = begin_new(&idempotency, "k").await;
        let mut tx = db.begin().await;
        tx.execute("INSERT INTO payment VALUES ('a')").await.unwrap();
        on_tx!(&mut tx, tx => guard.complete_in(tx, &outcome("a")).await).unwrap();
        tx.release().await;
        let begun = begin(&idempotency, "k").await;
        assert!(matches!(begun, Begun::InFlight(_)), "{begun:?}");

        let mut tx = db.begin().await;
        tx.execute("INSERT INTO payment VALUES ('b')").await.unwrap();
        on_tx!(&mut tx, tx => guard.complete_in(tx, &outcome("b")).await).unwrap();
        // The guard is dropped before the commit. The end of the transaction decides.
        drop(guard);
        tx.commit().await.unwrap();
        rowlock.flush().await;
        let Begun::Replay(replay) = begin(&idempotency, "k").await else { panic!("replay") };
        assert_eq!(replay.bytes(), b"b");
        assert_eq!(payments(db).await, 1);
    }

    async fn a_guard_that_is_dropped_before_a_rollback_frees_the_key(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        let guard = begin_new(&idempotency, "k").await;
        let mut tx = db.begin().await;
        on_tx!(&mut tx, tx => guard.complete_in(tx, &outcome("a")).await).unwrap();
        drop(guard);
        tx.release().await;
        rowlock.flush().await;
        drop(begin_new(&idempotency, "k").await);
    }

    async fn a_transaction_that_is_over_records_nothing(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        for end in db.kind.ends {
            let guard = begin_new(&idempotency, end).await;
            let mut tx = db.begin().await;
            let _ = tx.execute(end).await;
            let error = on_tx!(&mut tx, tx => guard.complete_in(tx, &outcome("a")).await);
            assert!(matches!(error, Err(Error::Transaction(TransactionError::Over { .. }))), "{error:?}");
            drop(tx);
            assert!(matches!(begin(&idempotency, end).await, Begun::InFlight(_)));
        }
    }

    async fn a_transaction_of_another_database_is_refused(db: &Db) {
        let other = Db::new(db.engine).await;
        drop(other.rowlock().await);
        let idempotency = db.rowlock().await.idempotency();
        let guard = begin_new(&idempotency, "k").await;
        let mut tx = other.begin().await;
        let error = on_tx!(&mut tx, tx => guard.complete_in(tx, &outcome("a")).await).unwrap_err();
        assert!(matches!(error, Error::Transaction(TransactionError::WrongDatabase { .. })), "{error}");
        tx.release().await;
        begin_new(&idempotency, "freed").await.release().await.unwrap();
        for key in ["k2", "freed"] {
            let ran = on_app!(&other.app, pool => {
                idempotency.run_in_tx(pool, Scope("scope").key(key), &request(), |tx| async move { drop(tx); Outcome::json(&1) }).await
            });
            assert!(matches!(ran, Err(Error::Transaction(TransactionError::WrongDatabase { .. }))), "{key}: {ran:?}");
        }
        other.remove().await;
    }
}
