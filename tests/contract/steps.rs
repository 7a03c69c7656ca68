//! Steps: each effect on another server happens once for a key, over all attempts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rowlock::{
    Begun, Error, Fingerprint, InvalidError, Outcome, RecordError, RecordState, Rowlock, Scope,
    StepFailed, TransactionError,
};
use rowlock_test::{Db, Provider, begin, begin_new, lapse, on_every_engine, request};
use tokio::sync::{Notify, oneshot};

on_every_engine! {
    async fn a_finished_step_is_not_done_again(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        let provider = Provider::default();
        for attempt in 1..=3 {
            let guard = begin_new(&idempotency, "k").await;
            let number = guard.step("charge", provider.charge()).await.unwrap();
            assert_eq!((number, provider.charges()), (1, 1), "attempt {attempt}");
            let again = guard.step("charge", provider.charge()).await.unwrap();
            assert_eq!((again, provider.charges()), (1, 1), "within an attempt, too");
            let letters = guard.step_once("letter", provider.charge_once()).await;
            assert_eq!(letters.unwrap(), 2);
            provider.set_charges(1);
            drop(guard);
            rowlock.flush().await;
        }
        let steps = idempotency.steps(Scope("scope").key("k")).await.unwrap();
        let names: Vec<_> = steps.iter().map(|step| step.step.as_str()).collect();
        assert_eq!(names, ["charge", "letter"]);
        // The charge belongs to this request. Another request must not use it.
        let other = Fingerprint::of("another request");
        let begun = idempotency.begin(Scope("scope").key("k"), &other).await.unwrap();
        assert!(matches!(begun, Begun::Mismatch), "{begun:?}");
    }

    async fn the_begin_of_each_result_is_enough_to_list_steps(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let guard = begin_new(&idempotency, "k").await;
        let long = "é".repeat(100_000);
        for (step, result) in [("long", long.as_str()), ("short", "")] {
            let done = async { Ok::<_, Error>(result.to_owned()) };
            guard.step(step, done).await.unwrap();
        }
        let whole = idempotency.steps(Scope("scope").key("k")).await.unwrap();
        for most in [0, 1, 4, 200_002, u32::MAX] {
            let steps = idempotency.steps_cut(Scope("scope").key("k"), most).await.unwrap();
            for (step, whole) in steps.iter().zip(&whole) {
                let all = whole.outcome.bytes();
                assert_eq!(step.outcome.bytes(), &all[..all.len().min(most as usize)], "{most}");
                assert_eq!((step.size, step.outcome.content_type()), (all.len() as u64, "application/json"));
            }
            let sizes: Vec<u64> = steps.iter().map(|step| step.size).collect();
            assert_eq!(sizes, [200_002, 2]);
        }
    }

    async fn names_of_steps_are_bytes(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let provider = Provider::default();
        let guard = begin_new(&idempotency, "k").await;
        for (number, name) in ["pay", "Pay", "pay ", "p\u{e1}y"].into_iter().enumerate() {
            let done = guard.step(name, provider.charge()).await.unwrap();
            assert_eq!(usize::try_from(done), Ok(number + 1), "{name:?}");
        }
        let failed: Result<u32, Error> = guard
            .step_once("once", async { Err(StepFailed::Unknown(Error::Transaction(TransactionError::NotOneRow { rows: 0 }))) })
            .await;
        failed.unwrap_err();
        guard.step("once ", provider.charge()).await.unwrap();
        guard.release().await.unwrap();
        assert!(matches!(begin(&idempotency, "k").await, Begun::Unknown(_)), "another step has closed no open one");
    }

    async fn a_failed_step_is_done_again(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let provider = Provider::default();
        let guard = begin_new(&idempotency, "k").await;
        let failed: Result<u32, Error> = guard.step("charge", async { Err(Error::Transaction(TransactionError::NotOneRow { rows: 2 })) }).await;
        assert!(matches!(failed, Err(Error::Transaction(TransactionError::NotOneRow { .. }))), "{failed:?}");
        assert_eq!(guard.step("charge", provider.charge()).await.unwrap(), 1);
        let refused: Result<u32, Error> = guard
            .step_once("letter", async { Err(StepFailed::NotDone(Error::Transaction(TransactionError::NotOneRow { rows: 3 }))) })
            .await;
        assert!(matches!(refused, Err(Error::Transaction(TransactionError::NotOneRow { .. }))), "{refused:?}");
        assert_eq!(guard.step_once("letter", provider.charge_once()).await.unwrap(), 2);
        guard.complete(&Outcome::empty()).await.unwrap();
    }

    async fn a_step_that_was_begun_binds_the_key_to_its_request(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let guard = begin_new(&idempotency, "k").await;
        let failed: Result<u32, Error> = guard.step("charge", async { Err(Error::Transaction(TransactionError::NotOneRow { rows: 2 })) }).await;
        failed.unwrap_err();
        guard.release().await.unwrap();
        // The charge may have happened, under this request's downstream key.
        let other = Fingerprint::of("another request");
        let begun = idempotency.begin(Scope("scope").key("k"), other).await.unwrap();
        assert!(matches!(begun, Begun::Mismatch), "{begun:?}");
        drop(begin_new(&idempotency, "k").await);
    }

    async fn a_step_that_was_begun_binds_the_key_over_a_crash(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let guard = begin_new(&idempotency, "k").await;
        let failed: Result<u32, Error> = guard.step("charge", async { Err(Error::Transaction(TransactionError::NotOneRow { rows: 2 })) }).await;
        failed.unwrap_err();
        // As if the process had died in the middle of it.
        std::mem::forget(guard);
        lapse(db).await;
        // The next attempt gives up before it comes to that step.
        begin_new(&idempotency.clone().wait(Duration::from_secs(30)), "k").await.release().await.unwrap();
        let other = Fingerprint::of("another request");
        let begun = idempotency.begin(Scope("scope").key("k"), other).await.unwrap();
        assert!(matches!(begun, Begun::Mismatch), "{begun:?}");
        let info = idempotency.inspect(Scope("scope").key("k")).await.unwrap().unwrap();
        assert!(info.remembered_for.unwrap() > Duration::from_hours(365 * 24), "{info:?}");
        drop(begin_new(&idempotency, "k").await);
    }

    async fn what_a_step_did_is_remembered_for_a_year_also_by_who_finds_it_done(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        let provider = Provider::default();
        let guard = begin_new(&idempotency, "k").await;
        guard.step("charge", provider.charge()).await.unwrap();
        guard.release().await.unwrap();
        for found in [true, false] {
            let guard = begin_new(&idempotency, "k").await;
            if found {
                assert_eq!(guard.step("charge", provider.charge()).await.unwrap(), 1);
            }
            guard.release().await.unwrap();
            let info = idempotency.inspect(Scope("scope").key("k")).await.unwrap().unwrap();
            assert!(info.remembered_for.unwrap() > Duration::from_hours(365 * 24), "{info:?}");
        }
        assert_eq!(provider.charges(), 1);
    }

    async fn a_step_inside_a_step_is_an_error_at_once(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let guard = begin_new(&idempotency, "k").await;
        let provider = Provider::default();
        let nested = guard.step("outer", async {
            let once = guard.step_once("letter", provider.charge_once()).await;
            assert!(matches!(&once, Err(Error::Record(RecordError::StepRunning { step, .. })) if step == "outer"), "{once:?}");
            guard.step("inner", provider.charge()).await
        });
        let nested = nested.await;
        assert!(matches!(&nested, Err(Error::Record(RecordError::StepRunning { step, .. })) if step == "outer"), "{nested:?}");
        let nested = guard.step_once("once", async {
            let inner = guard.step("inner", provider.charge()).await;
            inner.map_err(StepFailed::NotDone)
        });
        let nested = nested.await;
        assert!(matches!(&nested, Err(Error::Record(RecordError::StepRunning { step, .. })) if step == "once"), "{nested:?}");
        assert_eq!(provider.charges(), 0);
        // One after the other.
        assert_eq!(guard.step("outer", provider.charge()).await.unwrap(), 1);
        assert_eq!(guard.step("inner", provider.charge()).await.unwrap(), 2);
        guard.complete(&Outcome::empty()).await.unwrap();
    }

    async fn the_end_of_an_attempt_does_not_overtake_the_end_of_its_step(db: &Db) {
        // A long timeout, so that the postponed operations do not run out of time.
        let patient = Rowlock::builder().operation_timeout(Duration::from_mins(1));
        let rowlock = patient.connect(&db.url).await.unwrap();
        let idempotency = rowlock.idempotency();
        let guard = Arc::new(begin_new(&idempotency, "k").await);
        let (charged, has_charged) = oneshot::channel();
        let go_on = Arc::new(Notify::new());
        let step = {
            let (guard, go_on) = (Arc::clone(&guard), Arc::clone(&go_on));
            tokio::spawn(async move {
                guard.step_once("charge", async {
                    charged.send(()).unwrap();
                    go_on.notified().await;
                    Ok::<u32, StepFailed<Error>>(41)
                }).await
            })
        };
        has_charged.await.unwrap();
        // Another transaction locks the row, so the lane postpones the step's result several times, with growing
        // pauses.
        let mut tx = db.lock_record("k").await;
        go_on.notify_one();
        for _ in 0..300 {
            idempotency.inspect(Scope("scope").key("k")).await.unwrap();
        }
        // The end of the attempt comes later, and is postponed for the first time.
        let release = {
            let guard = Arc::clone(&guard);
            tokio::spawn(async move { guard.release().await })
        };
        idempotency.inspect(Scope("scope").key("k")).await.unwrap();
        tx.number("SELECT COUNT(*) FROM rowlock_idempotency").await;
        tx.release().await;
        assert_eq!(step.await.unwrap().unwrap(), 41);
        release.await.unwrap().unwrap();
        let info = idempotency.inspect(Scope("scope").key("k")).await.unwrap().unwrap();
        assert_eq!((info.state, info.open_step), (RecordState::Free, None));
    }

    async fn another_request_under_a_key_that_was_forgotten_is_another_one_for_the_other_side(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let guard = begin_new(&idempotency, "k").await;
        let key = guard.downstream_key("charge").unwrap();
        guard.complete(&Outcome::empty()).await.unwrap();
        db.execute("DELETE FROM rowlock_idempotency").await;
        let begun = idempotency.begin(Scope("scope").key("k"), Fingerprint::of("another request")).await.unwrap();
        let Begun::New(other) = begun else { panic!("{begun:?}") };
        assert_ne!(other.downstream_key("charge").unwrap(), key, "it may remember the first one");
    }

    async fn the_key_for_the_other_side_is_the_same_in_every_attempt(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        let guard = begin_new(&idempotency, "k").await;
        let key = guard.downstream_key("charge").unwrap();
        assert_eq!(key.len(), 32);
        assert_ne!(key, guard.downstream_key("refund").unwrap());
        drop(guard);
        rowlock.flush().await;
        assert_eq!(begin_new(&db.rowlock().await.idempotency(), "k").await.downstream_key("charge").unwrap(), key);
        for (scope, other) in [("scope", "k2"), ("scopek", ""), ("scop", "ek"), ("k", "scope")] {
            let Ok(Begun::New(guard)) = idempotency.begin(Scope(scope).key(other), &request()).await else { continue };
            assert_ne!(guard.downstream_key("charge").unwrap(), key);
        }
    }

    async fn who_was_taken_over_begins_no_step_and_keeps_none(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let provider = Provider::default();
        let zombie = begin_new(&idempotency, "k").await;
        let taken_over = async {
            lapse(db).await;
            let successor = begin_new(&idempotency.clone().wait(Duration::from_secs(30)), "k").await;
            Ok::<_, Error>(successor)
        };
        let mut successor = None;
        let kept = zombie
            .step("slow", Box::pin(async {
                successor = Some(taken_over.await?);
                Ok::<u32, Error>(7)
            }))
            .await;
        assert!(matches!(kept, Err(Error::Superseded { .. })), "{kept:?}");
        for step in ["charge", "slow"] {
            let begun = zombie.step(step, provider.charge()).await;
            assert!(matches!(begun, Err(Error::Superseded { .. })), "{begun:?}");
        }
        let begun = zombie.step_once("letter", provider.charge_once()).await;
        assert!(matches!(begun, Err(Error::Superseded { .. })), "{begun:?}");
        assert_eq!(provider.charges(), 0);
        let successor = successor.unwrap();
        assert_eq!(successor.step("slow", async { Ok::<u32, Error>(8) }).await.unwrap(), 8);
    }

    async fn a_result_that_json_would_change_is_an_error_at_once(db: &Db) {
        let rowlock = db.rowlock().await;
        let guard = begin_new(&rowlock.idempotency(), "k").await;
        for rate in [f64::NAN, f64::INFINITY] {
            let step = guard.step("rate", async { Ok::<_, Error>(Some(rate)) }).await;
            assert!(matches!(step, Err(Error::Record(RecordError::Json { .. }))), "{step:?}");
        }
        assert_eq!(guard.step("rate", async { Ok::<_, Error>(Some(0.5)) }).await.unwrap(), Some(0.5));
        guard.release().await.unwrap();
    }

    /// Its work was done: it is not done again before somebody has looked.
    async fn a_step_once_whose_result_cannot_be_kept_is_open(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency().max_outcome(100);
        for (key, rate) in [("nan", vec![f64::NAN]), ("large", vec![0.5; 100])] {
            let guard = begin_new(&idempotency, key).await;
            let (runs, rate) = (&AtomicU32::new(0), &rate);
            for said in ["the result of the step", "the step \"rate\" must not be repeated"] {
                let step = async {
                    runs.fetch_add(1, Ordering::SeqCst);
                    Ok::<_, StepFailed<Error>>(rate.clone())
                };
                let error = guard.step_once("rate", step).await.unwrap_err().to_string();
                assert!(error.contains(said), "{error}");
            }
            let done = guard.complete(&Outcome::empty()).await;
            assert!(matches!(done, Err(Error::Record(RecordError::StepUnknown { .. }))), "{done:?}");
            let not_done = guard.step_not_done("rate").await;
            assert!(matches!(not_done, Err(Error::Record(RecordError::NotDecided { .. }))), "{not_done:?}");
            drop(guard);
            rowlock.flush().await;
            let begun = begin(&idempotency, key).await;
            assert!(matches!(&begun, Begun::Unknown(unknown) if unknown.step == "rate"), "{begun:?}");
            assert_eq!(runs.load(Ordering::SeqCst), 1);
        }
    }

    async fn a_kept_result_of_another_type_is_told_with_its_record_and_step(db: &Db) {
        let rowlock = db.rowlock().await;
        let guard = begin_new(&rowlock.idempotency(), "k").await;
        guard.step("rate", async { Ok::<_, Error>(0.5) }).await.unwrap();
        // As after a deployment.
        let error = guard.step("rate", async { Ok::<_, Error>("a half".to_owned()) }).await.unwrap_err();
        assert!(matches!(error, Error::Record(RecordError::Json { .. })), "{error}");
        for part in ["step rate", &guard.record().to_string()] {
            assert!(error.to_string().contains(part), "{error}");
        }
        guard.release().await.unwrap();
    }

    async fn a_result_that_does_not_fit_is_an_error(db: &Db) {
        let idempotency = db.rowlock().await.idempotency().max_outcome(10);
        let guard = begin_new(&idempotency, "k").await;
        let kept = guard.step("long", async { Ok::<_, Error>("x".repeat(20)) }).await;
        assert!(matches!(kept, Err(Error::Record(RecordError::OutcomeTooLarge { .. }))), "{kept:?}");
        for name in ["", "a\0", &"x".repeat(256)] {
            let refused = guard.step(name, async { Ok::<_, Error>(1) }).await;
            assert!(matches!(refused, Err(Error::Invalid(InvalidError::Key { .. }))), "{refused:?}");
        }
    }

    async fn a_downstream_key_that_was_given_out_binds_the_key_to_its_request(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        for (key, is_dropped) in [("released", false), ("dropped", true)] {
            let guard = begin_new(&idempotency, key).await;
            guard.downstream_key("charge").unwrap();
            // The provider may have charged under that key, without a step.
            if is_dropped {
                drop(guard);
                rowlock.flush().await;
            } else {
                guard.release().await.unwrap();
            }
            let other = Fingerprint::of("another request");
            let begun = idempotency.begin(Scope("scope").key(key), other).await.unwrap();
            assert!(matches!(begun, Begun::Mismatch), "{key}: {begun:?}");
            drop(begin_new(&idempotency, key).await);
        }
    }
}
