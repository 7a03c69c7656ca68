//! Promises 1 and 2 for optimistic locks: whoever advances a version was alone with it since it was read.

use std::time::Duration;

use rowlock::{Advance, Error, TransactionError};
use rowlock_test::{Db, LEVELS, eventually, on_every_engine, take};

const TTL: Duration = Duration::from_secs(30);

on_every_engine! {
    async fn a_version_advances_once(db: &Db) {
        let rowlock = db.rowlock().await;
        let seen = rowlock.version("a").await.unwrap();
        assert_eq!(rowlock.version("a").await.unwrap().fence(), seen.fence(), "reading changes nothing");
        let mut tx = db.begin().await;
        let Advance::Granted { fence } = tx.advance(&rowlock, &seen).await.unwrap() else {
            panic!("nobody was faster");
        };
        tx.commit().await.unwrap();
        assert!(fence > seen.fence());
        assert_eq!(rowlock.version("a").await.unwrap().fence(), fence);
        let mut tx = db.begin().await;
        assert_eq!(tx.advance(&rowlock, &seen).await.unwrap(), Advance::Conflict);
        let error = Advance::Conflict.or_conflict(&seen).unwrap_err();
        assert!(matches!(&error, Error::Conflict { what } if what.starts_with("\"a\" ")), "{error}");
        tx.release().await;
    }

    async fn what_was_rolled_back_was_no_grant(db: &Db) {
        let rowlock = db.rowlock().await;
        let seen = rowlock.version("a").await.unwrap();
        let mut tx = db.begin().await;
        let Advance::Granted { fence: first } = tx.advance(&rowlock, &seen).await.unwrap() else {
            panic!("nobody was faster");
        };
        tx.release().await;
        let mut tx = db.begin().await;
        let Advance::Granted { fence } = tx.advance(&rowlock, &seen).await.unwrap() else {
            panic!("nobody was faster");
        };
        assert!(fence > first);
        tx.commit().await.unwrap();
    }

    async fn every_grant_since_is_a_conflict(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        for level in LEVELS {
            // A lease that was held and released.
            let seen = one.version("a").await.unwrap();
            take(&two, "a", TTL).await.release().await.unwrap();
            let mut tx = db.begin_at(level).await;
            assert_eq!(tx.advance(&one, &seen).await.unwrap(), Advance::Conflict, "{level}");
            tx.release().await;

            // A lease that is held.
            let seen = one.version("a").await.unwrap();
            let held = take(&two, "a", TTL).await;
            let mut tx = db.begin_at(level).await;
            assert_eq!(tx.advance(&one, &seen).await.unwrap(), Advance::Conflict, "{level}");
            tx.release().await;
            held.release().await.unwrap();

            // A transaction.
            let seen = one.version("a").await.unwrap();
            let mut tx = db.begin_at(level).await;
            tx.lock(&two, "a").await;
            tx.commit().await.unwrap();
            let mut tx = db.begin_at(level).await;
            assert_eq!(tx.advance(&one, &seen).await.unwrap(), Advance::Conflict, "{level}");
            tx.release().await;

            // Another optimistic one.
            let (seen, same) = (one.version("a").await.unwrap(), two.version("a").await.unwrap());
            let mut tx = db.begin_at(level).await;
            assert!(matches!(tx.advance(&two, &same).await.unwrap(), Advance::Granted { .. }));
            tx.commit().await.unwrap();
            let mut tx = db.begin_at(level).await;
            assert_eq!(tx.advance(&one, &seen).await.unwrap(), Advance::Conflict, "{level}");
            tx.release().await;
        }
    }

    async fn what_was_read_while_somebody_held_it_never_advances(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&two, "a", TTL).await;
        let seen = one.version("a").await.unwrap();
        assert_eq!(seen.holder().unwrap().fence, held.fence());
        let mut tx = db.begin().await;
        let inside = tx.version(&one, "a").await.unwrap();
        assert!(inside.holder().is_some());
        tx.release().await;
        // The fence is the same when it is released: what was read in between may be half of its work.
        held.release().await.unwrap();
        for seen in [seen, inside] {
            let mut tx = db.begin().await;
            assert_eq!(tx.advance(&one, &seen).await.unwrap(), Advance::Conflict);
            tx.release().await;
        }
    }

    async fn what_was_read_while_a_lease_that_has_run_out_was_pinned_never_advances(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", Duration::from_millis(200)).await;
        let mut pinned = db.begin().await;
        pinned.pin(&held).await.unwrap();
        eventually("it runs out", async || held.loss().is_some()).await;
        eventually("by the database's clock, too", async || {
            two.inspect("a").await.unwrap().is_none()
        })
        .await;
        let seen = two.version("a").await.unwrap();
        assert!(seen.holder().is_some(), "its transaction may be writing");
        pinned.commit().await.unwrap();
        let mut tx = db.begin().await;
        assert_eq!(tx.advance(&two, &seen).await.unwrap(), Advance::Conflict);
        tx.release().await;
        // A new look frees it.
        let seen = two.version("a").await.unwrap();
        assert!(seen.holder().is_none());
        let mut tx = db.begin().await;
        let seen_in = tx.version(&two, "a").await.unwrap();
        assert_eq!(seen_in.fence(), seen.fence());
        assert!(matches!(tx.advance(&two, &seen).await.unwrap(), Advance::Granted { .. }));
        tx.commit().await.unwrap();
    }

    async fn a_lease_that_has_run_out_is_freed_by_a_look_in_the_transaction(db: &Db) {
        let rowlock = db.rowlock().await;
        let _held = take(&rowlock, "a", TTL).await;
        db.execute("UPDATE rowlock_lock SET expires_at = acquired_at").await;
        let mut tx = db.begin_at("READ COMMITTED").await;
        let seen = tx.version(&rowlock, "a").await.unwrap();
        assert!(matches!(tx.advance(&rowlock, &seen).await.unwrap(), Advance::Granted { .. }));
        tx.commit().await.unwrap();
    }

    async fn what_one_has_been_granted_does_not_advance_again(db: &Db) {
        let rowlock = db.rowlock().await;
        let seen = rowlock.version("a").await.unwrap();
        let mut tx = db.begin().await;
        tx.lock(&rowlock, "a").await;
        let again = tx.advance(&rowlock, &seen).await;
        assert!(matches!(again, Err(Error::Transaction(TransactionError::AlreadyLocked { .. })) | Ok(Advance::Conflict)), "{again:?}");
        tx.release().await;
        let mut tx = db.begin().await;
        assert!(matches!(tx.advance(&rowlock, &seen).await.unwrap(), Advance::Granted { .. }));
        let again = tx.advance(&rowlock, &seen).await;
        assert!(matches!(again, Err(Error::Transaction(TransactionError::AlreadyLocked { .. })) | Ok(Advance::Conflict)), "{again:?}");
        tx.release().await;
    }

    async fn a_version_may_be_read_in_the_transaction(db: &Db) {
        let rowlock = db.rowlock().await;
        for level in LEVELS {
            drop(rowlock.version(level).await.unwrap());
            let mut tx = db.begin_at(level).await;
            let seen = tx.version(&rowlock, level).await.unwrap();
            assert!(matches!(tx.advance(&rowlock, &seen).await.unwrap(), Advance::Granted { .. }), "{level}");
            tx.commit().await.unwrap();
        }
    }

    async fn a_name_without_a_row_has_a_version(db: &Db) {
        let rowlock = db.rowlock().await;
        let mut tx = db.begin_at("READ COMMITTED").await;
        let seen = tx.version(&rowlock, "new").await.unwrap();
        assert!(matches!(tx.advance(&rowlock, &seen).await.unwrap(), Advance::Granted { .. }));
        tx.commit().await.unwrap();
        // A row that is removed takes no version with it.
        let seen = rowlock.version("new").await.unwrap();
        db.execute("DELETE FROM rowlock_lock").await;
        let mut tx = db.begin().await;
        assert_eq!(tx.advance(&rowlock, &seen).await.unwrap(), Advance::Conflict);
        tx.release().await;
        let again = rowlock.version("new").await.unwrap();
        assert!(again.fence() > seen.fence());
    }

    async fn an_expired_lease_is_no_holder(db: &Db) {
        let rowlock = db.rowlock().await;
        let held = take(&rowlock, "a", TTL).await;
        db.execute("UPDATE rowlock_lock SET expires_at = acquired_at").await;
        let seen = rowlock.version("a").await.unwrap();
        assert!(seen.holder().is_none());
        let mut tx = db.begin().await;
        assert!(matches!(tx.advance(&rowlock, &seen).await.unwrap(), Advance::Granted { .. }));
        tx.commit().await.unwrap();
        assert_eq!(rowlock.inspect("a").await.unwrap(), None);
        let mut tx = db.begin().await;
        let error = tx.pin(&held).await.unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error}");
        tx.release().await;
    }

    async fn advancing_never_waits(db: &Db) {
        let rowlock = db.rowlock().await;
        if db.one_writer() {
            return; // there is one writer, who waits for nobody
        }
        let seen = rowlock.version("a").await.unwrap();
        let mut holder = db.begin().await;
        holder.lock(&rowlock, "a").await;
        for level in LEVELS {
            let mut tx = db.begin_at(level).await;
            assert_eq!(tx.advance(&rowlock, &seen).await.unwrap(), Advance::Conflict, "{level}");
            tx.release().await;
        }
        holder.release().await;
    }
}
