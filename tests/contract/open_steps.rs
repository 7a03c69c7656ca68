//! Steps that must not be repeated: when such a step is cut off, the record is unknown until an operator or a hook
//! decides.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rowlock::testing::answers;
use rowlock::{
    Begun, Error, Fingerprint, Idempotency, Outcome, Reconciled, RecordError, RecordState,
    Resolution, Rowlock, Scope, StepFailed, TransactionError,
};
use rowlock_test::{Db, Provider, begin, begin_new, eventually, lapse, on_every_engine, request};
use tokio::sync::oneshot;

/// Decides about the step that the record has open.
async fn resolve(idempotency: &Idempotency, resolution: Resolution) -> Result<(), Error> {
    let seen = idempotency.inspect(Scope("scope").key("k")).await?.unwrap();
    idempotency.resolve(&seen, resolution).await
}

/// Begins an attempt that is abandoned in the middle of a step that must not be repeated, after the effect. Returns
/// the step's key for the provider.
async fn abandon_in_step(idempotency: &Idempotency, provider: &Provider) -> String {
    let guard = Arc::new(begin_new(idempotency, "k").await);
    let given = guard.downstream_key("charge").unwrap();
    let (charged, has_charged) = oneshot::channel();
    let vanishing = {
        let (guard, provider) = (Arc::clone(&guard), provider.clone());
        tokio::spawn(async move {
            let charge = async {
                let number = provider.charge_once().await?;
                charged.send(()).unwrap();
                std::future::pending::<()>().await;
                Ok::<u32, StepFailed<Error>>(number)
            };
            guard.step_once("charge", charge).await
        })
    };
    has_charged.await.unwrap();
    vanishing.abort();
    assert!(vanishing.await.unwrap_err().is_cancelled());
    drop(guard);
    given
}

/// The work of a step whose server does not answer.
fn no_answer() -> Ready<Result<u32, StepFailed<Error>>> {
    let error = Error::Transaction(TransactionError::NotOneRow { rows: 0 });
    ready(Err(StepFailed::Unknown(error)))
}

on_every_engine! {
    async fn a_step_that_must_not_be_repeated_is_unknown_when_its_attempt_is_abandoned(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        let provider = Provider::default();
        abandon_in_step(&idempotency, &provider).await;
        rowlock.flush().await;
        for _ in 0..3 {
            let begun = begin(&idempotency, "k").await;
            let Begun::Unknown(unknown) = begun else { panic!("{begun:?}") };
            assert_eq!(unknown.step, "charge");
        }
        let other = Fingerprint::of("another request");
        let begun = idempotency.begin(Scope("scope").key("k"), &other).await.unwrap();
        assert!(matches!(begun, Begun::Mismatch), "{begun:?}");
        let refused = idempotency.reset(Scope("scope").key("k")).await;
        assert!(matches!(refused, Err(Error::Record(RecordError::NotDecided { .. }))), "{refused:?}");

        let happened = Resolution::Happened(Outcome::json(&41).unwrap());
        resolve(&idempotency, happened.clone()).await.unwrap();
        let refused = resolve(&idempotency, happened).await;
        assert!(matches!(refused, Err(Error::Record(RecordError::NotDecided { .. }))), "only once");
        let guard = begin_new(&idempotency, "k").await;
        assert_eq!(guard.step_once("charge", provider.charge_once()).await.unwrap(), 41);
        assert_eq!(provider.charges(), 1);
        guard.complete(&Outcome::empty()).await.unwrap();
    }

    async fn a_crash_in_the_middle_of_a_step_that_must_not_be_repeated_is_unknown(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let provider = Provider::default();
        let guard = begin_new(&idempotency, "k").await;
        let failed: Result<u32, Error> = guard
            .step_once("charge", async {
                provider.charge_once().await?;
                // No answer has come.
                Err(Error::Transaction(TransactionError::NotOneRow { rows: 0 }))?
            })
            .await;
        assert!(failed.is_err());
        let again = guard.step_once("charge", provider.charge_once()).await;
        assert!(matches!(again, Err(Error::Record(RecordError::StepUnknown { .. }))), "{again:?}");
        let other = guard.step_once("letter", provider.charge_once()).await;
        assert!(matches!(other, Err(Error::Record(RecordError::StepUnknown { .. }))), "{other:?}");
        let repeatable = guard.step("charge", provider.charge()).await;
        assert!(matches!(repeatable, Err(Error::Record(RecordError::StepUnknown { .. }))), "{repeatable:?}");
        // As if the process had died here: no renewal, and no release.
        std::mem::forget(guard);
        lapse(db).await;
        let wait = idempotency.clone().wait(Duration::from_secs(30));
        let begun = begin(&wait, "k").await;
        assert!(matches!(begun, Begun::Unknown(_)), "{begun:?}");
        let info = idempotency.inspect(Scope("scope").key("k")).await.unwrap().unwrap();
        assert_eq!((info.state, info.open_step.as_deref()), (RecordState::Unknown, Some("charge")));

        resolve(&idempotency, Resolution::NotHappened).await.unwrap();
        let guard = begin_new(&idempotency, "k").await;
        assert_eq!(guard.step_once("charge", provider.charge_once()).await.unwrap(), 2);
    }

    async fn a_step_that_could_not_begin_leaves_no_open_step_after_a_crash(db: &Db) {
        let hasty = Rowlock::builder().operation_timeout(Duration::from_secs(2));
        let rowlock = hasty.connect(&db.url).await.unwrap();
        let idempotency = rowlock.idempotency();
        let provider = Provider::default();
        let guard = begin_new(&idempotency, "k").await;
        let mut tx = db.lock_record("k").await;
        let failed = guard.step_once("charge", provider.charge_once()).await;
        assert!(failed.is_err());
        // The statement that begins the step arrives late, when its caller has given up.
        tx.execute("UPDATE rowlock_idempotency SET open_step = 'charge', open_step_number = 1").await.unwrap();
        tx.commit().await.unwrap();
        rowlock.flush().await;
        assert_eq!(provider.charges(), 0);
        std::mem::forget(guard);
        lapse(db).await;
        begin_new(&idempotency.wait(Duration::from_secs(30)), "k").await.release().await.unwrap();
    }

    async fn the_reconcile_hook_is_asked_first(db: &Db) {
        let rowlock = db.rowlock().await;
        let provider = Provider::default();
        for (answer, charges) in [(Some(true), 1), (Some(false), 2), (None, 1)] {
            provider.set_charges(0);
            db.execute("DELETE FROM rowlock_idempotency").await;
            db.execute("DELETE FROM rowlock_idempotency_step").await;
            let given = abandon_in_step(&rowlock.idempotency(), &provider).await;
            rowlock.flush().await;
            let hook = rowlock.idempotency().reconcile(move |unknown| {
                assert_eq!((unknown.step, unknown.downstream_key), ("charge".into(), given.clone()));
                async move {
                match answer {
                    Some(true) => Reconciled::Happened(Outcome::json(&1).unwrap()),
                    Some(false) => Reconciled::NotHappened,
                    None => Reconciled::StillUnknown,
                }
                }
            });
            match (answer, begin(&hook, "k").await) {
                (None, Begun::Unknown(_)) => {}
                (Some(_), Begun::New(guard)) => {
                    guard.step_once("charge", provider.charge_once()).await.unwrap();
                    guard.complete(&Outcome::empty()).await.unwrap();
                }
                (_, begun) => panic!("{answer:?}: {begun:?}"),
            }
            assert_eq!(provider.charges(), charges, "{answer:?}");
        }
    }

    async fn a_hook_that_panics_or_does_not_end_has_found_out_nothing(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        abandon_in_step(&idempotency, &Provider::default()).await;
        rowlock.flush().await;
        let begin = async |hook: Idempotency| begin(&hook, "k").await;
        let at_once = idempotency.clone().reconcile(|_| -> std::future::Ready<Reconciled> { panic!("at once") });
        let polled = idempotency.clone().reconcile(|_| async { panic!("when it is polled") });
        let endless = idempotency.lease(Duration::from_millis(300)).reconcile(|_| std::future::pending());
        for hook in [at_once, polled, endless] {
            let begun = begin(hook).await;
            assert!(matches!(&begun, Begun::Unknown(unknown) if unknown.step == "charge"), "{begun:?}");
        }
    }

    async fn what_the_hook_has_found_is_to_fit(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency().max_outcome(10);
        abandon_in_step(&idempotency, &Provider::default()).await;
        rowlock.flush().await;
        for bytes in [11, 10] {
            let found = move |_| async move { Reconciled::Happened(Outcome::new("a/b", vec![b'x'; bytes]).unwrap()) };
            let begun = idempotency.clone().reconcile(found).begin(Scope("scope").key("k"), &request()).await;
            match (bytes, begun) {
                (11, Err(Error::Record(RecordError::OutcomeTooLarge { bytes: 11, limit: 10, .. }))) => {
                    assert!(matches!(begin(&idempotency, "k").await, Begun::Unknown(_)));
                }
                (10, Ok(Begun::New(_))) => {}
                (bytes, begun) => panic!("{bytes}: {begun:?}"),
            }
        }
    }

    async fn a_step_that_is_cut_off_while_it_begins_is_not_open(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency().max_attempts(1000);
        for after in 0..40 {
            let guard = begin_new(&idempotency, "k").await;
            let started = AtomicU32::new(0);
            {
                let step = guard.step_once("charge", async {
                    started.store(1, Ordering::SeqCst);
                    std::future::pending::<()>().await;
                    Ok::<u32, StepFailed<Error>>(1)
                });
                tokio::pin!(step);
                tokio::select! {
                    biased;
                    _ = &mut step => unreachable!("it never ends"),
                    () = async { for _ in 0..after * after { tokio::task::yield_now().await } } => {}
                }
            }
            drop(guard);
            rowlock.flush().await;
            match (started.into_inner(), begin(&idempotency, "k").await) {
                (0, Begun::New(guard)) => guard.release().await.unwrap(),
                (1, Begun::Unknown(_)) => {
                    resolve(&idempotency, Resolution::NotHappened).await.unwrap();
                }
                (started, begun) => panic!("started: {started}, {begun:?}"),
            }
        }
    }

    /// The worker wakes up after a person has looked: what it runs next is another step.
    async fn a_resolution_is_for_the_step_that_was_seen(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency().lease(Duration::from_mins(5));
        let guard = begin_new(&idempotency, "k").await;
        guard.step_once("charge", no_answer()).await.unwrap_err();
        lapse(db).await;
        let seen = idempotency.inspect(Scope("scope").key("k")).await.unwrap().unwrap();
        assert_eq!((seen.state, seen.open_step.as_deref()), (RecordState::Unknown, Some("charge")));
        guard.step_happened("charge", &1).await.unwrap();
        guard.step_once("letter", no_answer()).await.unwrap_err();
        lapse(db).await;
        let refused = idempotency.resolve(&seen, Resolution::NotHappened).await;
        assert!(matches!(refused, Err(Error::Record(RecordError::NotDecided { .. }))), "{refused:?}");
        let now = idempotency.inspect(Scope("scope").key("k")).await.unwrap().unwrap();
        assert_eq!((now.attempt, now.state, now.open_step.as_deref()), (seen.attempt, RecordState::Unknown, Some("letter")));
        idempotency.resolve(&now, Resolution::NotHappened).await.unwrap();
        std::mem::forget(guard);
    }

    /// The answer is lost: the second sending finds the record resolved.
    async fn a_resolution_whose_answer_was_lost_is_told_as_what_it_is(db: &Db) {
        let rowlock = db.rowlock().await;
        let key = || Scope("scope").key("k");
        let watcher = db.rowlock().await.idempotency();
        let is_free = async || watcher.inspect(key()).await.unwrap().unwrap().state == RecordState::Free;
        let results = [Resolution::Happened(Outcome::json(&41).unwrap()), Resolution::NotHappened, Resolution::NotHappened];
        for (number, result) in results.into_iter().enumerate() {
            let guard = begin_new(&watcher, "k").await;
            guard.step_once(&format!("charge {number}"), no_answer()).await.unwrap_err();
            guard.release().await.unwrap();
            let seen = watcher.inspect(key()).await.unwrap().unwrap();
            answers(&rowlock).hold_back();
            let resolving = tokio::spawn({
                let idempotency = rowlock.idempotency();
                async move { idempotency.resolve(&seen, result).await }
            });
            eventually("it is resolved", is_free).await;
            answers(&rowlock).cut();
            let is_removed = number == 2;
            if is_removed {
                db.execute("DELETE FROM rowlock_idempotency").await;
            }
            answers(&rowlock).pass();
            let resolved = resolving.await.unwrap();
            if is_removed {
                assert!(matches!(resolved, Err(Error::OutcomeUnknown { .. })), "{resolved:?}");
            } else {
                resolved.unwrap();
            }
        }
    }
}
