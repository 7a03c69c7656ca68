//! Steps: effects elsewhere, each done once for a key over all attempts; and unknown as a state.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rowlock::{
    Begun, Error, Fingerprint, Idempotency, IdempotencyGuard, Outcome, Reconciled, RecordState,
    Resolution, Rowlock, StepFailed,
};
use rowlock_test::{Db, lapse, on_every_engine};
use tokio::sync::{Notify, oneshot};

fn request() -> Fingerprint {
    Fingerprint::of("request")
}

async fn begin(idempotency: &Idempotency) -> Begun<IdempotencyGuard> {
    idempotency.begin("scope", "k", &request()).await.unwrap()
}

async fn new(idempotency: &Idempotency) -> IdempotencyGuard {
    match begin(idempotency).await {
        Begun::New(guard) => guard,
        other => panic!("not new: {other:?}"),
    }
}

/// A provider that counts.
#[derive(Debug, Default, Clone)]
struct Provider(Arc<AtomicU32>);

impl Provider {
    fn charges(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    async fn charge(&self) -> Result<u32, Error> {
        let charges = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        tokio::task::yield_now().await;
        Ok(charges)
    }

    async fn charge_once(&self) -> Result<u32, StepFailed<Error>> {
        Ok(self.charge().await?)
    }
}

/// An attempt that vanishes in the middle of a step that must not be repeated, behind the effect; with the step's key for
/// the other side.
async fn vanish_in_step(idempotency: &Idempotency, provider: &Provider) -> String {
    let guard = Arc::new(new(idempotency).await);
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

on_every_engine! {
    async fn a_finished_step_is_not_done_again(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        let provider = Provider::default();
        for attempt in 1..=3 {
            let guard = new(&idempotency).await;
            let number = guard.step("charge", provider.charge()).await.unwrap();
            assert_eq!((number, provider.charges()), (1, 1), "attempt {attempt}");
            let again = guard.step("charge", provider.charge()).await.unwrap();
            assert_eq!((again, provider.charges()), (1, 1), "within an attempt, too");
            let letters = guard.step_once("letter", provider.charge_once()).await;
            assert_eq!(letters.unwrap(), 2);
            provider.0.store(1, Ordering::SeqCst);
            drop(guard);
            rowlock.flush().await;
        }
        let steps = idempotency.steps("scope", "k").await.unwrap();
        let names: Vec<_> = steps.iter().map(|step| step.step.as_str()).collect();
        assert_eq!(names, ["charge", "letter"]);
        // What was charged belongs to this request: another one may not go on with it.
        let other = Fingerprint::of("another request");
        let begun = idempotency.begin("scope", "k", &other).await.unwrap();
        assert!(matches!(begun, Begun::Mismatch), "{begun:?}");
    }

    async fn names_of_steps_are_bytes(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let provider = Provider::default();
        let guard = new(&idempotency).await;
        for (number, name) in ["pay", "Pay", "pay ", "p\u{e1}y"].into_iter().enumerate() {
            let done = guard.step(name, provider.charge()).await.unwrap();
            assert_eq!(usize::try_from(done), Ok(number + 1), "{name:?}");
        }
        let failed: Result<u32, Error> = guard
            .step_once("once", async { Err(StepFailed::Unknown(Error::NotOneRow { rows: 0 })) })
            .await;
        failed.unwrap_err();
        guard.step("once ", provider.charge()).await.unwrap();
        guard.release().await.unwrap();
        assert!(matches!(begin(&idempotency).await, Begun::Unknown(_)), "another step has closed no open one");
    }

    async fn a_failed_step_is_done_again(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let provider = Provider::default();
        let guard = new(&idempotency).await;
        let failed: Result<u32, Error> = guard.step("charge", async { Err(Error::NotOneRow { rows: 2 }) }).await;
        assert!(matches!(failed, Err(Error::NotOneRow { .. })), "{failed:?}");
        assert_eq!(guard.step("charge", provider.charge()).await.unwrap(), 1);
        let refused: Result<u32, Error> = guard
            .step_once("letter", async { Err(StepFailed::NotDone(Error::NotOneRow { rows: 3 })) })
            .await;
        assert!(matches!(refused, Err(Error::NotOneRow { .. })), "{refused:?}");
        assert_eq!(guard.step_once("letter", provider.charge_once()).await.unwrap(), 2);
        guard.complete(&Outcome::empty()).await.unwrap();
    }

    async fn a_step_that_was_begun_binds_the_key_to_its_request(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let guard = new(&idempotency).await;
        let failed: Result<u32, Error> = guard.step("charge", async { Err(Error::NotOneRow { rows: 2 }) }).await;
        failed.unwrap_err();
        guard.release().await.unwrap();
        // It may have happened, under this request's key for the other side.
        let other = Fingerprint::of("another request");
        let begun = idempotency.begin("scope", "k", other).await.unwrap();
        assert!(matches!(begun, Begun::Mismatch), "{begun:?}");
        drop(new(&idempotency).await);
    }

    async fn a_step_that_was_begun_binds_the_key_over_a_crash(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let guard = new(&idempotency).await;
        let failed: Result<u32, Error> = guard.step("charge", async { Err(Error::NotOneRow { rows: 2 }) }).await;
        failed.unwrap_err();
        // As if the process had died in the middle of it.
        std::mem::forget(guard);
        lapse(db).await;
        // The one that takes over has not come to that step when it gives up.
        new(&idempotency.clone().wait(Duration::from_secs(30))).await.release().await.unwrap();
        let other = Fingerprint::of("another request");
        let begun = idempotency.begin("scope", "k", other).await.unwrap();
        assert!(matches!(begun, Begun::Mismatch), "{begun:?}");
        let info = idempotency.inspect("scope", "k").await.unwrap().unwrap();
        assert!(info.remembered_for.unwrap() > Duration::from_hours(365 * 24), "{info:?}");
        drop(new(&idempotency).await);
    }

    async fn what_a_step_did_is_remembered_for_a_year_also_by_who_finds_it_done(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        let provider = Provider::default();
        let guard = new(&idempotency).await;
        guard.step("charge", provider.charge()).await.unwrap();
        guard.release().await.unwrap();
        for found in [true, false] {
            let guard = new(&idempotency).await;
            if found {
                assert_eq!(guard.step("charge", provider.charge()).await.unwrap(), 1);
            }
            guard.release().await.unwrap();
            let info = idempotency.inspect("scope", "k").await.unwrap().unwrap();
            assert!(info.remembered_for.unwrap() > Duration::from_hours(365 * 24), "{info:?}");
        }
        assert_eq!(provider.charges(), 1);
    }

    async fn a_step_inside_a_step_is_an_error_at_once(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let guard = new(&idempotency).await;
        let provider = Provider::default();
        let nested = guard.step("outer", async {
            let once = guard.step_once("letter", provider.charge_once()).await;
            assert!(matches!(&once, Err(Error::StepRunning { step, .. }) if step == "outer"), "{once:?}");
            guard.step("inner", provider.charge()).await
        });
        let nested = nested.await;
        assert!(matches!(&nested, Err(Error::StepRunning { step, .. }) if step == "outer"), "{nested:?}");
        let nested = guard.step_once("once", async {
            let inner = guard.step("inner", provider.charge()).await;
            inner.map_err(StepFailed::NotDone)
        });
        let nested = nested.await;
        assert!(matches!(&nested, Err(Error::StepRunning { step, .. }) if step == "once"), "{nested:?}");
        assert_eq!(provider.charges(), 0);
        // One after the other.
        assert_eq!(guard.step("outer", provider.charge()).await.unwrap(), 1);
        assert_eq!(guard.step("inner", provider.charge()).await.unwrap(), 2);
        guard.complete(&Outcome::empty()).await.unwrap();
    }

    async fn the_end_of_an_attempt_does_not_overtake_the_end_of_its_step(db: &Db) {
        // What is put off here is not to run out of time.
        let patient = Rowlock::builder().operation_timeout(Duration::from_mins(1));
        let rowlock = patient.connect(&db.url).await.unwrap();
        let idempotency = rowlock.idempotency();
        let guard = Arc::new(new(&idempotency).await);
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
        // Another transaction has the row locked: keeping the result is put off, again and again, after growing pauses.
        let mut tx = db.lock_record("k").await;
        go_on.notify_one();
        for _ in 0..300 {
            idempotency.inspect("scope", "k").await.unwrap();
        }
        // The end of the attempt comes after it, and is put off for the first time.
        let release = {
            let guard = Arc::clone(&guard);
            tokio::spawn(async move { guard.release().await })
        };
        idempotency.inspect("scope", "k").await.unwrap();
        tx.number("SELECT COUNT(*) FROM rowlock_idempotency").await;
        tx.release().await;
        assert_eq!(step.await.unwrap().unwrap(), 41);
        release.await.unwrap().unwrap();
        let info = idempotency.inspect("scope", "k").await.unwrap().unwrap();
        assert_eq!((info.state, info.open_step), (RecordState::Free, None));
    }

    async fn another_request_under_a_key_that_was_forgotten_is_another_one_for_the_other_side(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let guard = new(&idempotency).await;
        let key = guard.downstream_key("charge").unwrap();
        guard.complete(&Outcome::empty()).await.unwrap();
        db.execute("DELETE FROM rowlock_idempotency").await;
        let begun = idempotency.begin("scope", "k", Fingerprint::of("another request")).await.unwrap();
        let Begun::New(other) = begun else { panic!("{begun:?}") };
        assert_ne!(other.downstream_key("charge").unwrap(), key, "it may remember the first one");
    }

    async fn the_key_for_the_other_side_is_the_same_in_every_attempt(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        let guard = new(&idempotency).await;
        let key = guard.downstream_key("charge").unwrap();
        assert_eq!(key.len(), 32);
        assert_ne!(key, guard.downstream_key("refund").unwrap());
        drop(guard);
        rowlock.flush().await;
        assert_eq!(new(&db.rowlock().await.idempotency()).await.downstream_key("charge").unwrap(), key);
        for (scope, other) in [("scope", "k2"), ("scopek", ""), ("scop", "ek"), ("k", "scope")] {
            let Ok(Begun::New(guard)) = idempotency.begin(scope, other, &request()).await else { continue };
            assert_ne!(guard.downstream_key("charge").unwrap(), key);
        }
    }

    async fn who_was_taken_over_begins_no_step_and_keeps_none(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let provider = Provider::default();
        let zombie = new(&idempotency).await;
        let taken_over = async {
            lapse(db).await;
            let successor = new(&idempotency.clone().wait(Duration::from_secs(30))).await;
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

    async fn a_step_that_must_not_be_repeated_is_unknown_when_its_attempt_vanishes(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        let provider = Provider::default();
        vanish_in_step(&idempotency, &provider).await;
        rowlock.flush().await;
        for _ in 0..3 {
            let begun = begin(&idempotency).await;
            let Begun::Unknown(unknown) = begun else { panic!("{begun:?}") };
            assert_eq!(unknown.step, "charge");
        }
        let other = Fingerprint::of("another request");
        let begun = idempotency.begin("scope", "k", &other).await.unwrap();
        assert!(matches!(begun, Begun::Mismatch), "{begun:?}");
        let refused = idempotency.reset("scope", "k").await;
        assert!(matches!(refused, Err(Error::NotDecided { .. })), "{refused:?}");

        let happened = Resolution::Happened(Outcome::json(&41).unwrap());
        idempotency.resolve("scope", "k", happened.clone()).await.unwrap();
        let refused = idempotency.resolve("scope", "k", happened).await;
        assert!(matches!(refused, Err(Error::NotDecided { .. })), "only once");
        let guard = new(&idempotency).await;
        assert_eq!(guard.step_once("charge", provider.charge_once()).await.unwrap(), 41);
        assert_eq!(provider.charges(), 1);
        guard.complete(&Outcome::empty()).await.unwrap();
    }

    async fn a_crash_in_the_middle_of_a_step_that_must_not_be_repeated_is_unknown(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let provider = Provider::default();
        let guard = new(&idempotency).await;
        let failed: Result<u32, Error> = guard
            .step_once("charge", async {
                provider.charge_once().await?;
                // No answer has come.
                Err(Error::NotOneRow { rows: 0 })?
            })
            .await;
        assert!(failed.is_err());
        let again = guard.step_once("charge", provider.charge_once()).await;
        assert!(matches!(again, Err(Error::StepUnknown { .. })), "{again:?}");
        let other = guard.step_once("letter", provider.charge_once()).await;
        assert!(matches!(other, Err(Error::StepUnknown { .. })), "{other:?}");
        let repeatable = guard.step("charge", provider.charge()).await;
        assert!(matches!(repeatable, Err(Error::StepUnknown { .. })), "{repeatable:?}");
        // As if the process had died here: nobody renews, nobody frees.
        std::mem::forget(guard);
        lapse(db).await;
        let wait = idempotency.clone().wait(Duration::from_secs(30));
        let begun = begin(&wait).await;
        assert!(matches!(begun, Begun::Unknown(_)), "{begun:?}");
        let info = idempotency.inspect("scope", "k").await.unwrap().unwrap();
        assert_eq!((info.state, info.open_step.as_deref()), (RecordState::Unknown, Some("charge")));

        idempotency.resolve("scope", "k", Resolution::NotHappened).await.unwrap();
        let guard = new(&idempotency).await;
        assert_eq!(guard.step_once("charge", provider.charge_once()).await.unwrap(), 2);
    }

    async fn a_step_that_could_not_begin_leaves_no_open_step_after_a_crash(db: &Db) {
        let hasty = Rowlock::builder().operation_timeout(Duration::from_secs(2));
        let rowlock = hasty.connect(&db.url).await.unwrap();
        let idempotency = rowlock.idempotency();
        let provider = Provider::default();
        let guard = new(&idempotency).await;
        let mut tx = db.lock_record("k").await;
        let failed = guard.step_once("charge", provider.charge_once()).await;
        assert!(failed.is_err());
        // The statement that began it comes late: nobody waits for its answer any more.
        tx.execute("UPDATE rowlock_idempotency SET open_step = 'charge', open_step_number = 1").await.unwrap();
        tx.commit().await.unwrap();
        rowlock.flush().await;
        assert_eq!(provider.charges(), 0);
        std::mem::forget(guard);
        lapse(db).await;
        new(&idempotency.wait(Duration::from_secs(30))).await.release().await.unwrap();
    }

    async fn the_reconcile_hook_is_asked_first(db: &Db) {
        let rowlock = db.rowlock().await;
        let provider = Provider::default();
        for (answer, charges) in [(Some(true), 1), (Some(false), 2), (None, 1)] {
            provider.0.store(0, Ordering::SeqCst);
            db.execute("DELETE FROM rowlock_idempotency").await;
            db.execute("DELETE FROM rowlock_idempotency_step").await;
            let given = vanish_in_step(&rowlock.idempotency(), &provider).await;
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
            match (answer, begin(&hook).await) {
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

    async fn what_the_hook_has_found_is_to_fit(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency().max_outcome(10);
        vanish_in_step(&idempotency, &Provider::default()).await;
        rowlock.flush().await;
        for bytes in [11, 10] {
            let found = move |_| async move { Reconciled::Happened(Outcome::new("a/b", vec![b'x'; bytes]).unwrap()) };
            let begun = idempotency.clone().reconcile(found).begin("scope", "k", &request()).await;
            match (bytes, begun) {
                (11, Err(Error::OutcomeTooLarge { bytes: 11, limit: 10, .. })) => {
                    assert!(matches!(begin(&idempotency).await, Begun::Unknown(_)));
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
            let guard = new(&idempotency).await;
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
            match (started.into_inner(), begin(&idempotency).await) {
                (0, Begun::New(guard)) => guard.release().await.unwrap(),
                (1, Begun::Unknown(_)) => {
                    idempotency.resolve("scope", "k", Resolution::NotHappened).await.unwrap();
                }
                (started, begun) => panic!("started: {started}, {begun:?}"),
            }
        }
    }

    async fn a_result_that_does_not_fit_is_an_error(db: &Db) {
        let idempotency = db.rowlock().await.idempotency().max_outcome(10);
        let guard = new(&idempotency).await;
        let kept = guard.step("long", async { Ok::<_, Error>("x".repeat(20)) }).await;
        assert!(matches!(kept, Err(Error::OutcomeTooLarge { .. })), "{kept:?}");
        for name in ["", "a\0", &"x".repeat(256)] {
            let refused = guard.step(name, async { Ok::<_, Error>(1) }).await;
            assert!(matches!(refused, Err(Error::InvalidKey { .. })), "{refused:?}");
        }
    }
}
