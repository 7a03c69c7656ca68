//! The cleaner: what is over goes, what runs stays, and nobody waits.

use std::time::Duration;

use rowlock::{
    Begun, Error, Fingerprint, Idempotency, Outcome, RecordState, Rowlock, Scope, StepFailed,
    TransactionError,
};
use rowlock_test::{Db, eventually, lapse, on_app, on_every_engine};

fn request() -> Fingerprint {
    Fingerprint::of("request")
}

async fn done(idempotency: &Idempotency, key: &str) {
    let begun = idempotency
        .begin(Scope("scope").key(key), &request())
        .await
        .unwrap();
    let Begun::New(guard) = begun else {
        panic!("{begun:?}")
    };
    guard
        .step("step", async { Ok::<_, Error>(1) })
        .await
        .unwrap();
    guard.complete(&Outcome::json(&key).unwrap()).await.unwrap();
}

/// So many seconds pass for all records.
async fn pass(db: &Db, seconds: i64) {
    for column in ["retain_until", "forget_at", "clean_at"] {
        let earlier = db.moved(column, -seconds);
        db.execute(&format!(
            "UPDATE rowlock_idempotency SET {column} = {earlier}"
        ))
        .await;
    }
}

/// The leases of all attempts end, but for that of `key`.
async fn lapse_but(db: &Db, key: &str) {
    let (past, live) = (db.past(), db.future());
    db.execute(&format!(
        "UPDATE rowlock_idempotency \
         SET lease_until = CASE WHEN idempotency_key = {} THEN {live} ELSE {past} END",
        db.bytes(key)
    ))
    .await;
}

async fn records(db: &Db) -> (i64, i64) {
    (
        db.number("SELECT COUNT(*) FROM rowlock_idempotency").await,
        db.number("SELECT COUNT(*) FROM rowlock_idempotency_step")
            .await,
    )
}

on_every_engine! {
    async fn an_outcome_goes_after_its_retention_and_then_its_key_is_forgotten(db: &Db) {
        let rowlock = Rowlock::builder().clean_every(None).connect(&db.url).await.unwrap();
        let idempotency = rowlock.idempotency()
            .retention(Duration::from_secs(100))
            .remember_expired(Duration::from_secs(100));
        done(&idempotency, "k").await;
        let before = idempotency.inspect(Scope("scope").key("k")).await.unwrap().unwrap().attempt;
        let cleaned = rowlock.admin().clean(10).await.unwrap();
        assert_eq!((cleaned.outcomes, cleaned.records), (0, 0));
        for clean in [false, true] {
            // Whether it was cleaned makes no difference.
            pass(db, if clean { 0 } else { 101 }).await;
            if clean {
                assert_eq!(rowlock.admin().clean(10).await.unwrap().outcomes, 1);
                assert_eq!(db.number("SELECT COUNT(*) FROM rowlock_idempotency WHERE outcome IS NOT NULL").await, 0);
                assert_eq!(records(db).await, (1, 0), "what its steps came to goes with it");
            }
            let begun = idempotency.begin(Scope("scope").key("k"), &Fingerprint::of("request")).await.unwrap();
            assert!(matches!(begun, Begun::Expired), "{begun:?}");
            let begun = idempotency.begin(Scope("scope").key("k"), &Fingerprint::of("another request")).await.unwrap();
            assert!(matches!(begun, Begun::Mismatch), "{begun:?}");
            let info = idempotency.inspect(Scope("scope").key("k")).await.unwrap().unwrap();
            assert_eq!(info.state, RecordState::Expired);
        }
        pass(db, 100).await;
        assert_eq!(rowlock.admin().clean(10).await.unwrap().records, 1);
        assert_eq!(records(db).await, (0, 0));
        let begun = idempotency.begin(Scope("scope").key("k"), &Fingerprint::of("another request")).await.unwrap();
        let Begun::New(guard) = begun else { panic!("{begun:?}") };
        assert!(guard.attempt() > before, "the attempts go on rising");
    }

    async fn a_forgotten_key_is_new_also_when_nobody_has_cleaned(db: &Db) {
        let rowlock = Rowlock::builder().clean_every(None).connect(&db.url).await.unwrap();
        let idempotency = rowlock.idempotency().remember_expired(Duration::ZERO);
        done(&idempotency, "k").await;
        let before = idempotency.inspect(Scope("scope").key("k")).await.unwrap().unwrap().attempt;
        pass(db, 25 * 3_600).await;
        let begun = idempotency.begin(Scope("scope").key("k"), &Fingerprint::of("another request")).await.unwrap();
        let Begun::New(guard) = begun else { panic!("{begun:?}") };
        assert!(guard.attempt() > before);
        assert_eq!(guard.step("step", async { Ok::<_, Error>(2) }).await.unwrap(), 2, "its steps are gone");
        guard.complete(&Outcome::empty()).await.unwrap();
    }

    async fn what_runs_or_is_unknown_is_never_cleaned(db: &Db) {
        let rowlock = Rowlock::builder().clean_every(None).connect(&db.url).await.unwrap();
        let idempotency = rowlock.idempotency().remember_expired(Duration::ZERO);
        let running = idempotency.begin(Scope("scope").key("running"), &request()).await.unwrap();
        let Begun::New(unknown) = idempotency.begin(Scope("scope").key("unknown"), &request()).await.unwrap() else {
            panic!("new")
        };
        let failed = unknown.step_once("charge", async { Err::<u32, _>(StepFailed::Unknown(Error::Transaction(TransactionError::NotOneRow { rows: 0 }))) });
        failed.await.unwrap_err();
        unknown.release().await.unwrap();
        let Begun::New(freed) = idempotency.begin(Scope("scope").key("freed"), &request()).await.unwrap() else {
            panic!("new")
        };
        freed.release().await.unwrap();
        lapse(db).await;
        pass(db, 365 * 24 * 3_600).await;
        let cleaned = rowlock.admin().clean(10).await.unwrap();
        assert_eq!((cleaned.outcomes, cleaned.records), (0, 1), "only the one that is free");
        assert_eq!(records(db).await, (2, 0));
        drop(running);
    }

    async fn an_attempt_that_was_abandoned_and_nobody_asks_for_goes_after_a_year(db: &Db) {
        let rowlock = Rowlock::builder().clean_every(None).connect(&db.url).await.unwrap();
        let idempotency = rowlock.idempotency().retention(Duration::from_secs(1)).remember_expired(Duration::ZERO);
        let new = async |key: &str| match idempotency.begin(Scope("scope").key(key), &request()).await.unwrap() {
            Begun::New(guard) => guard,
            other => panic!("{other:?}"),
        };
        // Nobody renews, nobody frees: another process's, which is gone.
        let gone = Rowlock::builder().clean_every(None).connect(&db.url).await.unwrap();
        let idempotency_of_gone = gone.idempotency();
        let begin = async |key: &str| match idempotency_of_gone.begin(Scope("scope").key(key), &request()).await.unwrap() {
            Begun::New(guard) => guard,
            other => panic!("{other:?}"),
        };
        let abandoned = begin("abandoned").await;
        abandoned.step("step", async { Ok::<_, Error>(1) }).await.unwrap();
        let taken_over = begin("taken over").await;
        let open = begin("open").await;
        let failed = open.step_once("charge", async { Err::<u32, _>(StepFailed::Unknown(Error::Transaction(TransactionError::NotOneRow { rows: 0 }))) });
        failed.await.unwrap_err();
        for guard in [abandoned, taken_over, open] {
            std::mem::forget(guard);
        }
        lapse(db).await;
        let successor = idempotency.clone().wait(Duration::from_secs(30)).begin(Scope("scope").key("taken over"), &request()).await.unwrap();
        std::mem::forget(successor);
        lapse(db).await;
        let running = new("running").await;
        assert_eq!(rowlock.admin().clean(10).await.unwrap().records, 0);
        pass(db, 364 * 24 * 3_600).await;
        lapse_but(db, "running").await;
        assert_eq!(rowlock.admin().clean(10).await.unwrap().records, 0);
        pass(db, 3 * 24 * 3_600).await;
        lapse_but(db, "running").await;
        assert_eq!(rowlock.admin().clean(10).await.unwrap().records, 2);
        assert_eq!(records(db).await, (2, 0), "one runs, one has an open step");
        // Cleaned or not makes no difference.
        running.release().await.unwrap();
        std::mem::forget(begin("abandoned").await);
        let info = idempotency.inspect(Scope("scope").key("abandoned")).await.unwrap().unwrap();
        pass(db, 367 * 24 * 3_600).await;
        lapse(db).await;
        let begun = idempotency.begin(Scope("scope").key("abandoned"), &Fingerprint::of("another request")).await.unwrap();
        let Begun::New(guard) = begun else { panic!("{begun:?}") };
        assert!(guard.attempt() > info.attempt);
        let begun = idempotency.begin(Scope("scope").key("open"), &request()).await.unwrap();
        assert!(matches!(begun, Begun::Unknown(_)), "{begun:?}");
        assert_eq!(rowlock.admin().clean(10).await.unwrap().records, 1, "the one that was released");
    }

    async fn the_outcome_of_a_long_transaction_is_kept_for_its_whole_retention(db: &Db) {
        let rowlock = Rowlock::builder().clean_every(None).connect(&db.url).await.unwrap();
        let retention = Duration::from_secs(4);
        let idempotency = rowlock.idempotency().retention(retention).remember_expired(Duration::from_secs(100));
        let begun: Result<_, Error> = on_app!(&db.app, pool => {
            idempotency.run_in_tx(pool, Scope("scope").key("k"), &request(), |tx| async move {
                drop(tx);
                // Time itself is tested: the transaction takes longer than the outcome is kept.
                tokio::time::sleep(retention * 3 / 2).await;
                Outcome::json(&1)
            }).await
        });
        assert!(matches!(begun, Ok(Begun::New(_))), "{begun:?}");
        let cleaned = rowlock.admin().clean(10).await.unwrap();
        assert_eq!((cleaned.outcomes, cleaned.records), (0, 0));
        let begun = idempotency.begin(Scope("scope").key("k"), &request()).await.unwrap();
        assert!(matches!(begun, Begun::Replay(_)), "{begun:?}");
        pass(db, 5).await;
        assert_eq!(rowlock.admin().clean(10).await.unwrap().outcomes, 1);
    }

    async fn batches_are_small_and_pass_locked_rows_over(db: &Db) {
        let rowlock = Rowlock::builder().clean_every(None).connect(&db.url).await.unwrap();
        let idempotency = rowlock.idempotency().remember_expired(Duration::ZERO);
        for n in 0..10 {
            done(&idempotency, &format!("k{n}")).await;
        }
        pass(db, 25 * 3_600).await;
        assert_eq!(rowlock.admin().clean(4).await.unwrap().records, 4);
        if db.one_writer() {
            return assert_eq!(rowlock.admin().clean(10).await.unwrap().records, 6);
        }
        let mut tx = db.begin().await;
        tx.number("SELECT COUNT(*) FROM (SELECT attempt FROM rowlock_idempotency LIMIT 2 FOR UPDATE) two").await;
        assert_eq!(rowlock.admin().clean(10).await.unwrap().records, 4);
        tx.release().await;
        assert_eq!(rowlock.admin().clean(10).await.unwrap().records, 2);
    }

    async fn tokens_go_when_their_time_is_over(db: &Db) {
        let rowlock = Rowlock::builder().clean_every(None).connect(&db.url).await.unwrap();
        let tokens = rowlock.form_tokens();
        for _ in 0..3 {
            tokens.issue("me").await.unwrap();
        }
        assert_eq!(rowlock.admin().clean(10).await.unwrap().tokens, 0);
        let past = db.past();
        db.execute(&format!("UPDATE rowlock_form_token SET expires_at = {past}")).await;
        assert_eq!(rowlock.admin().clean(2).await.unwrap().tokens, 2);
        assert_eq!(rowlock.admin().clean(2).await.unwrap().tokens, 1);
    }

    async fn a_process_cleans_by_itself_unless_it_is_told_not_to(db: &Db) {
        let off = Rowlock::builder().clean_every(None).connect(&db.url).await.unwrap();
        let idempotency = off.idempotency().remember_expired(Duration::ZERO);
        done(&idempotency, "k").await;
        let columns = "scope, {key}, state, attempt, abandoned, max_attempts, attempt_id, holder, fingerprint, bound, open_step, \
                       content_type, outcome, began_at, attempted_at, lease_until, done_at, retain_until, forget_at, clean_at";
        // More than a batch.
        for n in 0..600 {
            db.execute(&format!(
                "INSERT INTO rowlock_idempotency ({}) SELECT {} FROM rowlock_idempotency WHERE idempotency_key = {}",
                columns.replace("{key}", "idempotency_key"),
                columns.replace("{key}", &db.bytes(&format!("c{n}"))),
                db.bytes("k")
            ))
            .await;
        }
        pass(db, 25 * 3_600).await;
        let every = Duration::from_secs(1);
        assert_eq!(records(db).await.0, 601);
        let on = Rowlock::builder().clean_every(every).connect(&db.url).await.unwrap();
        let _ = on.idempotency();
        eventually("everything is cleaned", async || records(db).await.0 == 0).await;
    }
}
