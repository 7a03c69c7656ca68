//! Promise 8: how an attempt ends. It completes, releases, is abandoned, or loses its lease.

use std::time::Duration;

use rowlock::{
    Begun, Error, Fingerprint, RecordError, RecordFilter, RecordState, Rowlock, SchemaError, Scope,
};
use rowlock_test::{
    Db, begin, begin_new, connected, lapse, on_every_engine, on_tx, outcome, request, take_over,
};

/// A lease, short enough to wait for its end.
const SHORT: Duration = Duration::from_secs(2);

on_every_engine! {
    async fn what_is_released_is_run_again_under_a_higher_attempt(db: &Db) {
        let idempotency = db.rowlock().await.idempotency().max_attempts(2);
        let mut before = 0;
        for _ in 0..5 {
            let guard = begin_new(&idempotency, "k").await;
            assert!(guard.attempt() > before);
            before = guard.attempt();
            guard.release().await.unwrap();
            assert!(matches!(guard.complete(&outcome("late")).await, Err(Error::Superseded { .. })));
        }
        // A request that was never acted on does not bind the key.
        let other = Fingerprint::of("another request");
        let begun = idempotency.begin(Scope("scope").key("k"), &other).await.unwrap();
        assert!(matches!(begun, Begun::New(_)), "{begun:?}");
    }

    async fn a_dropped_guard_frees_the_key(db: &Db) {
        let rowlock = db.rowlock().await;
        let guard = begin_new(&rowlock.idempotency(), "k").await;
        drop(guard);
        rowlock.flush().await;
        let info = rowlock.idempotency().inspect(Scope("scope").key("k")).await.unwrap().unwrap();
        assert_eq!((info.state, info.abandoned), (RecordState::Free, 1));
        drop(begin_new(&rowlock.idempotency(), "k").await);
    }

    async fn a_release_that_failed_is_no_attempt_that_was_abandoned(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency().max_attempts(1);
        let guard = begin_new(&idempotency, "k").await;
        db.execute("ALTER TABLE rowlock_idempotency RENAME TO elsewhere").await;
        let error = guard.release().await.unwrap_err();
        assert!(matches!(error, Error::Schema(SchemaError::Damaged { .. })), "{error}");
        db.execute("ALTER TABLE elsewhere RENAME TO rowlock_idempotency").await;
        drop(guard);
        rowlock.flush().await;
        let info = idempotency.inspect(Scope("scope").key("k")).await.unwrap().unwrap();
        assert_eq!((info.state, info.abandoned), (RecordState::Free, 0));
        drop(begin_new(&idempotency, "k").await);
    }

    async fn a_begin_that_is_cut_off_leaves_nothing_behind_and_does_not_count(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        for after in 0..60 {
            {
                let begin = idempotency.begin(Scope("scope").key("k"), request());
                tokio::pin!(begin);
                tokio::select! {
                    biased;
                    begun = &mut begin => {
                        if let Begun::New(guard) = begun.unwrap() {
                            guard.release().await.unwrap();
                        }
                    }
                    () = async { for _ in 0..after * after { tokio::task::yield_now().await } } => {}
                }
            }
            rowlock.flush().await;
            if let Some(info) = idempotency.inspect(Scope("scope").key("k")).await.unwrap() {
                assert_eq!((info.state, info.abandoned), (RecordState::Free, 0), "after {after}");
            }
        }
    }

    async fn a_complete_that_is_cut_off_goes_on_and_is_not_overtaken_by_the_drop(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        for after in 0..30 {
            let key = format!("k{after}");
            let guard = begin_new(&idempotency, &key).await;
            // Another transaction locks the row for a moment, so the lane postpones the complete.
            let tx = db.lock_record(&key).await;
            {
                let done = outcome("done");
                let complete = guard.complete(&done);
                tokio::pin!(complete);
                tokio::select! {
                    biased;
                    _ = &mut complete => unreachable!("the row is locked"),
                    () = async { for _ in 0..=after * after { tokio::task::yield_now().await } } => {}
                }
            }
            drop(guard);
            tx.release().await;
            rowlock.flush().await;
            let begun = begin(&idempotency, &key).await;
            assert!(matches!(begun, Begun::Replay(_)), "after {after}: {begun:?}");
        }
    }

    async fn a_complete_that_was_given_up_does_not_become_a_free_key(db: &Db) {
        let builder = Rowlock::builder().operation_timeout(Duration::from_secs(1));
        let rowlock = connected(&builder, &db.url).await;
        let idempotency = rowlock.idempotency();
        let (guard, other) = (begin_new(&idempotency, "a").await, begin_new(&idempotency, "b").await);
        let mut tx = db.lock_record("a").await;
        if !db.one_writer() {
            let key = db.bytes("b");
            let sql = format!("SELECT attempt FROM rowlock_idempotency WHERE idempotency_key = {key} FOR UPDATE");
            tx.number(&sql).await;
        }
        {
            let done = outcome("done");
            let complete = guard.complete(&done);
            tokio::pin!(complete);
            tokio::select! {
                biased;
                _ = &mut complete => unreachable!("the row is locked"),
                () = tokio::task::yield_now() => {}
            }
        }
        // The work is done, and its commit may have been sent.
        drop(guard);
        // This call began later, so the time of the first call is over, too.
        let error = other.complete(&outcome("done")).await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        tx.release().await;
        rowlock.flush().await;
        let info = idempotency.inspect(Scope("scope").key("a")).await.unwrap().unwrap();
        assert_eq!(info.state, RecordState::Running);
    }

    async fn an_attempt_that_has_ended_says_so(db: &Db) {
        let idempotency = db.rowlock().await.idempotency().max_outcome(4);
        let guard = begin_new(&idempotency, "k").await;
        guard.complete(&outcome("done")).await.unwrap();
        let step = guard.step("charge", async { Ok::<_, Error>(7) }).await;
        let too_large = guard.complete(&outcome("larger")).await;
        let mut tx = db.begin().await;
        let in_tx = on_tx!(&mut tx, tx => guard.complete_in(tx, &outcome("larger")).await);
        tx.release().await;
        for again in [guard.complete(&outcome("else")).await, too_large, in_tx, guard.release().await, step.map(drop)] {
            let error = again.unwrap_err();
            assert!(matches!(error, Error::Superseded { .. }), "{error}");
            assert!(error.to_string().contains("has ended before"), "{error}");
        }
        assert!(matches!(begin(&idempotency, "k").await, Begun::Replay(_)));
    }

    async fn a_lease_is_renewed_while_the_guard_lives(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency().lease(SHORT);
        let guard = begin_new(&idempotency, "k").await;
        let other = db.rowlock().await.idempotency().wait(SHORT * 2);
        let begun = begin(&other, "k").await;
        assert!(matches!(begun, Begun::InFlight(_)), "{begun:?}");
        assert!(guard.is_held());
        guard.complete(&outcome("done")).await.unwrap();
        assert!(!guard.is_held());
    }

    async fn a_lapsed_attempt_that_nobody_took_over_may_still_end(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let guard = begin_new(&idempotency, "k").await;
        lapse(db).await;
        guard.complete(&outcome("late")).await.unwrap();
        assert!(matches!(begin(&idempotency, "k").await, Begun::Replay(_)));
    }

    async fn what_was_abandoned_more_than_an_hour_ago_does_not_count(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency().max_attempts(2);
        let ended = async |seconds: i64| {
            let at = db.from_now(seconds);
            db.execute(&format!("UPDATE rowlock_idempotency SET lease_until = {at}")).await;
        };
        let is_listed = async |state| {
            let found = idempotency.list(&RecordFilter::new().state(state)).await.unwrap();
            found.items.len() == 1
        };
        // Freed by the drop of its guard, or by nobody: the process has crashed.
        for (is_crashed, state) in [(false, RecordState::Free), (true, RecordState::Lapsed)] {
            let key = if is_crashed { "crashed" } else { "dropped" };
            db.execute("DELETE FROM rowlock_idempotency").await;
            for _ in 0..2 {
                let guard = begin_new(&idempotency, key).await;
                if is_crashed {
                    std::mem::forget(guard);
                } else {
                    drop(guard);
                    rowlock.flush().await;
                }
                ended(-1).await;
            }
            ended(-3_540).await;
            let begun = begin(&idempotency, key).await;
            assert!(matches!(begun, Begun::Poisoned { attempts: 2 }), "{begun:?}");
            assert!(is_listed(RecordState::Poisoned).await);
            ended(-3_660).await;
            assert!(!is_listed(RecordState::Poisoned).await);
            assert!(is_listed(state).await);
            let guard = begin_new(&idempotency, key).await;
            let info = idempotency.inspect(Scope("scope").key(key)).await.unwrap().unwrap();
            assert_eq!((info.state, info.abandoned), (RecordState::Running, 1), "it counts anew");
            guard.complete(&outcome("done")).await.unwrap();
        }
    }

    async fn attempts_that_are_abandoned_are_counted_and_the_key_is_poisoned(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency().max_attempts(3);
        for _ in 0..3 {
            drop(begin_new(&idempotency, "k").await);
            rowlock.flush().await;
        }
        let begun = begin(&idempotency, "k").await;
        assert!(matches!(begun, Begun::Poisoned { attempts: 3 }), "{begun:?}");
        let info = idempotency.inspect(Scope("scope").key("k")).await.unwrap().unwrap();
        assert_eq!(info.state, RecordState::Poisoned);
        idempotency.reset(Scope("scope").key("k")).await.unwrap();
        // Crashed attempts count, too.
        for _ in 0..3 {
            std::mem::forget(take_over(&idempotency, "k").await);
            lapse(db).await;
        }
        let begun = begin(&idempotency.clone().wait(Duration::from_secs(30)), "k").await;
        assert!(matches!(begun, Begun::Poisoned { attempts: 3 }), "{begun:?}");
        idempotency.reset(Scope("scope").key("k")).await.unwrap();
        let guard = begin_new(&idempotency, "k").await;
        let refused = idempotency.reset(Scope("scope").key("k")).await;
        assert!(matches!(refused, Err(Error::Record(RecordError::NotDecided { .. }))), "an attempt is running");
        guard.complete(&outcome("done")).await.unwrap();
        assert!(matches!(idempotency.reset(Scope("scope").key("k")).await, Err(Error::Record(RecordError::NotDecided { .. }))));
        assert!(matches!(idempotency.reset(Scope("scope").key("none")).await, Err(Error::Record(RecordError::Missing { .. }))));
    }

    async fn a_database_that_is_gone_is_an_error(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        let guard = begin_new(&idempotency, "k").await;
        db.execute("ALTER TABLE rowlock_idempotency RENAME TO elsewhere").await;
        let error = guard.complete(&outcome("done")).await.unwrap_err();
        assert!(matches!(error, Error::Schema(SchemaError::Damaged { .. })), "{error}");
        // When the table is back, the attempt can end.
        db.execute("ALTER TABLE elsewhere RENAME TO rowlock_idempotency").await;
        guard.complete(&outcome("done")).await.unwrap();
    }
}
