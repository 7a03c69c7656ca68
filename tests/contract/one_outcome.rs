//! An attempt ends with one outcome, and not while it is unknown whether one of its steps has happened.

use rowlock::{
    Begun, Error, Fingerprint, Idempotency, IdempotencyGuard, Outcome, RecordError, RecordState,
    Resolution, Scope, StepFailed, TransactionError,
};
use rowlock_test::{Db, Tx, begin, begin_new, on_every_engine, on_tx};

fn outcome(text: &str) -> Outcome {
    Outcome::json(&text).unwrap()
}

async fn kept(idempotency: &Idempotency) -> Outcome {
    match begin(idempotency, "k").await {
        Begun::Replay(outcome) => outcome,
        other => panic!("no outcome: {other:?}"),
    }
}

async fn complete_in(guard: &IdempotencyGuard, tx: &mut Tx, with: &Outcome) -> Result<(), Error> {
    on_tx!(tx, tx => guard.complete_in(tx, with).await)
}

/// A guard whose step may have happened.
async fn with_open_step(idempotency: &Idempotency) -> IdempotencyGuard {
    let guard = begin_new(idempotency, "k").await;
    let fail = async {
        Err::<u32, _>(StepFailed::Unknown(Error::Transaction(
            TransactionError::NotOneRow { rows: 0 },
        )))
    };
    guard.step_once("charge", fail).await.unwrap_err();
    guard
}

on_every_engine! {
    async fn the_outcome_that_a_transaction_has_committed_counts(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let guard = begin_new(&idempotency, "k").await;
        let mut tx = db.begin().await;
        complete_in(&guard, &mut tx, &outcome("first")).await.unwrap();
        tx.commit().await.unwrap();
        for other in [outcome("other"), outcome("a longer one"), Outcome::empty(), Outcome::new("text/plain", outcome("first").bytes().to_vec()).unwrap()] {
            let error = guard.complete(&other).await.unwrap_err();
            assert!(matches!(error, Error::Superseded { .. }), "{error}");
            assert!(error.to_string().contains("complete_in"), "{error}");
            assert_eq!(kept(&idempotency).await, outcome("first"));
        }
    }

    async fn the_same_outcome_again_is_kept(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let guard = begin_new(&idempotency, "k").await;
        let mut tx = db.begin().await;
        complete_in(&guard, &mut tx, &outcome("first")).await.unwrap();
        tx.commit().await.unwrap();
        guard.complete(&outcome("first")).await.unwrap();
        assert_eq!(kept(&idempotency).await, outcome("first"));
    }

    async fn after_a_rollback_another_outcome_is_kept(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let guard = begin_new(&idempotency, "k").await;
        let mut tx = db.begin().await;
        complete_in(&guard, &mut tx, &outcome("first")).await.unwrap();
        tx.release().await;
        guard.complete(&outcome("other")).await.unwrap();
        assert_eq!(kept(&idempotency).await, outcome("other"));
    }

    async fn no_outcome_closes_an_open_step(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let guard = with_open_step(&idempotency).await;
        let error = guard.complete(&outcome("declined")).await.unwrap_err();
        assert!(matches!(&error, Error::Record(RecordError::StepUnknown { step, .. }) if step == "charge"), "{error}");
        assert!(error.to_string().contains("step_happened"), "{error}");
        let mut tx = db.begin().await;
        let error = complete_in(&guard, &mut tx, &outcome("declined")).await.unwrap_err();
        assert!(matches!(error, Error::Record(RecordError::StepUnknown { .. })), "{error}");
        tx.release().await;
        guard.release().await.unwrap();
        let begun = begin(&idempotency, "k").await;
        assert!(matches!(begun, Begun::Unknown(_)), "{begun:?}");
        let seen = idempotency.inspect(Scope("scope").key("k")).await.unwrap().unwrap();
        idempotency.resolve(&seen, Resolution::NotHappened).await.unwrap();
        begin_new(&idempotency, "k").await.complete(&outcome("paid")).await.unwrap();
    }

    async fn a_step_whose_future_was_dropped_is_open(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let guard = begin_new(&idempotency, "k").await;
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let work = async {
            begun.send(()).unwrap();
            std::future::pending::<Result<u32, StepFailed<Error>>>().await
        };
        tokio::select! {
            never = guard.step_once("charge", work) => panic!("{never:?}"),
            begun = has_begun => begun.unwrap(),
        }
        let error = guard.complete(&outcome("declined")).await.unwrap_err();
        assert!(matches!(error, Error::Record(RecordError::StepUnknown { .. })), "{error}");
    }

    async fn an_attempt_that_finds_out_that_a_step_happened_completes(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let guard = with_open_step(&idempotency).await;
        guard.step_happened("another", &1).await.unwrap();
        guard.complete(&outcome("paid")).await.unwrap_err();
        guard.step_happened("charge", &7).await.unwrap();
        let info = idempotency.inspect(Scope("scope").key("k")).await.unwrap().unwrap();
        assert_eq!((info.state, info.open_step), (RecordState::Running, None));
        let never = async { panic!("it is not run again") };
        let result: Result<u32, Error> = guard.step_once("charge", never).await;
        assert_eq!(result.unwrap(), 7);
        let steps = idempotency.steps(Scope("scope").key("k")).await.unwrap();
        assert_eq!(steps.len(), 1, "{steps:?}");
        guard.complete(&outcome("paid")).await.unwrap();
        assert_eq!(kept(&idempotency).await, outcome("paid"));
    }

    async fn a_result_that_could_not_be_kept_is_kept_by_the_next_call(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let guard = begin_new(&idempotency, "k").await;
        let work = async {
            db.execute("ALTER TABLE rowlock_idempotency_step RENAME TO elsewhere").await;
            Ok(7)
        };
        let failed: Result<u32, Error> = guard.step_once("charge", work).await;
        failed.unwrap_err();
        guard.complete(&outcome("paid")).await.unwrap_err();
        let error = guard.step_not_done("charge").await.unwrap_err();
        assert!(matches!(error, Error::Record(RecordError::NotDecided { .. })), "{error}");
        let never = async { panic!("it is not run again") };
        let failed: Result<u32, Error> = guard.step_once("charge", never).await;
        failed.unwrap_err();
        db.execute("ALTER TABLE elsewhere RENAME TO rowlock_idempotency_step").await;
        let never = async { panic!("it is not run again") };
        let other: Result<u32, Error> = guard.step_once("another", never).await;
        assert!(matches!(other, Err(Error::Record(RecordError::StepUnknown { .. }))), "{other:?}");
        let never = async { panic!("it is not run again") };
        let result: Result<u32, Error> = guard.step_once("charge", never).await;
        assert_eq!(result.unwrap(), 7);
        guard.complete(&outcome("paid")).await.unwrap();
        assert_eq!(kept(&idempotency).await, outcome("paid"));
    }

    async fn the_end_of_an_attempt_keeps_a_result_that_could_not_be_kept(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        for end in ["complete", "release"] {
            let begun = idempotency.begin(Scope("scope").key(end), &Fingerprint::of("request")).await.unwrap();
            let Begun::New(guard) = begun else { panic!("{begun:?}") };
            let work = async {
                db.execute("ALTER TABLE rowlock_idempotency_step RENAME TO elsewhere").await;
                Ok(7)
            };
            let failed: Result<u32, Error> = guard.step_once("charge", work).await;
            failed.unwrap_err();
            db.execute("ALTER TABLE elsewhere RENAME TO rowlock_idempotency_step").await;
            if end == "complete" {
                guard.complete(&outcome("paid")).await.unwrap();
                continue;
            }
            guard.release().await.unwrap();
            let begun = idempotency.begin(Scope("scope").key(end), &Fingerprint::of("request")).await.unwrap();
            let Begun::New(guard) = begun else { panic!("{begun:?}") };
            let never = async { panic!("it is not run again") };
            let result: Result<u32, Error> = guard.step_once("charge", never).await;
            assert_eq!(result.unwrap(), 7);
        }
    }

    async fn an_attempt_that_finds_out_that_a_step_did_not_happen_runs_it_again(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let guard = with_open_step(&idempotency).await;
        guard.step_not_done("charge").await.unwrap();
        let info = idempotency.inspect(Scope("scope").key("k")).await.unwrap().unwrap();
        assert_eq!((info.state, info.open_step), (RecordState::Running, None));
        let again = async { Ok::<u32, StepFailed<Error>>(8) };
        assert_eq!(guard.step_once("charge", again).await.unwrap(), 8);
        guard.complete(&outcome("paid")).await.unwrap();
    }
}
