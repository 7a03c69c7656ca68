//! `#[idempotent]`: how an attempt ends after its body has returned.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rowlock::attributes::Refused;
use rowlock::{Error, Outcome, RecordError, RecordState, Rowlock, Scope, StepFailed, idempotent};
use rowlock_test::{Db, Tx, eventually, lapse, on_every_engine, on_tx};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;

#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Rowlock(#[from] Error),
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("the card is declined")]
    Declined,
}

async fn state(rowlock: &Rowlock) -> RecordState {
    let record = rowlock.idempotency().inspect(Scope("scope").key("k")).await;
    record.unwrap().expect("a record").state
}

async fn commits(db: &Db) -> i64 {
    db.number("SELECT COUNT(*) FROM app").await
}

#[idempotent(scope = "scope", key = "k", skip(db, fails))]
async fn commit(rowlock: &Rowlock, db: &Db, fails: bool) -> Result<i64, Failed> {
    let number = attempt.attempt();
    let mut tx = db.begin().await;
    tx.execute("INSERT INTO app VALUES (1)").await.unwrap();
    let outcome = Outcome::json(&number)?;
    on_tx!(&mut tx, tx => attempt.complete_in(tx, &outcome).await)?;
    tx.commit().await.unwrap();
    if fails {
        return Err(Failed::Declined);
    }
    Ok(number)
}

#[idempotent(scope = "scope", key = "k", skip(runs, gate))]
async fn at_the_gate(
    rowlock: Rowlock,
    runs: Arc<AtomicU32>,
    gate: Arc<Semaphore>,
) -> Result<u32, Failed> {
    let run = runs.fetch_add(1, Ordering::SeqCst) + 1;
    if run == 1 {
        gate.acquire().await.unwrap().forget();
    }
    Ok(run)
}

#[idempotent(scope = "scope", key = "k", skip(runs))]
async fn too_large(rowlock: &Rowlock, runs: &AtomicU32) -> Result<String, Failed> {
    runs.fetch_add(1, Ordering::SeqCst);
    Ok("x".repeat(2 << 20))
}

#[idempotent(scope = "scope", key = "k", skip(db, keep, runs))]
async fn lock_the_record(
    rowlock: &Rowlock,
    db: &Db,
    keep: &Mutex<Option<Tx>>,
    runs: &AtomicU32,
) -> Result<u32, Failed> {
    *keep.lock().await = Some(db.lock_record("k").await);
    Ok(runs.fetch_add(1, Ordering::SeqCst) + 1)
}

#[idempotent(scope = "scope", key = "k")]
async fn hide_a_step(rowlock: &Rowlock) -> Result<(), Failed> {
    let charge = async { Err::<u32, _>(StepFailed::Unknown(Failed::Declined)) };
    let _ = attempt.step_once("charge", charge).await;
    Ok(())
}

#[idempotent(scope = "scope", key = "k")]
async fn keep_claimed(rowlock: &Rowlock) -> Result<(), Failed> {
    attempt.keep_claimed();
    Err(Failed::Declined)
}

#[idempotent(scope = "scope", key = "k")]
async fn complete_by_itself(rowlock: &Rowlock) -> Result<u32, Failed> {
    attempt.complete(&Outcome::json(&1)?).await?;
    Ok(1)
}

#[idempotent(
    scope = "scope",
    key = "k",
    retention = "2d",
    remember_expired = "365d"
)]
async fn remember_long(rowlock: &Rowlock) -> Result<u32, Failed> {
    Ok(1)
}

on_every_engine! {
    async fn the_key_is_remembered_for_as_long_as_the_attribute_says(db: &Db) {
        let rowlock = db.rowlock().await;
        remember_long(&rowlock).await.unwrap();
        let record = rowlock.idempotency().inspect(Scope("scope").key("k")).await.unwrap().unwrap();
        let days = |time: Option<Duration>| (time.unwrap().as_secs_f64() / 86_400.0).round();
        let kept = (days(record.retained_for), days(record.remembered_for));
        assert_eq!(kept, (2.0, 367.0));
    }

    async fn a_body_that_completes_in_its_transaction_is_done_when_it_commits(db: &Db) {
        db.execute("CREATE TABLE app (n BIGINT)").await;
        let rowlock = db.rowlock().await;
        let first = commit(&rowlock, db, false).await.unwrap();
        assert_eq!(commit(&rowlock, db, false).await.unwrap(), first);
        assert_eq!(commits(db).await, 1);
    }

    async fn an_error_after_the_commit_frees_nothing(db: &Db) {
        db.execute("CREATE TABLE app (n BIGINT)").await;
        let rowlock = db.rowlock().await;
        let failed = commit(&rowlock, db, true).await;
        assert!(matches!(failed, Err(Failed::Declined)), "{failed:?}");
        assert_eq!(state(&rowlock).await, RecordState::Done);
        commit(&rowlock, db, true).await.unwrap();
        assert_eq!(commits(db).await, 1);
    }

    async fn a_body_that_completes_the_attempt_itself_has_the_last_word(db: &Db) {
        let rowlock = db.rowlock().await;
        for _ in 0..2 {
            assert_eq!(complete_by_itself(&rowlock).await.unwrap(), 1);
        }
    }

    async fn a_call_that_was_taken_over_says_so_and_records_nothing(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let (runs, gate) = (Arc::<AtomicU32>::default(), Arc::new(Semaphore::new(0)));
        let running = tokio::spawn(at_the_gate(one, runs.clone(), gate.clone()));
        eventually("it has begun", async || runs.load(Ordering::SeqCst) == 1).await;
        lapse(db).await;
        assert_eq!(at_the_gate(two.clone(), runs.clone(), gate.clone()).await.unwrap(), 2);
        gate.add_permits(1);
        let late = running.await.unwrap();
        assert!(matches!(late, Err(Failed::Rowlock(Error::Superseded { .. }))), "{late:?}");
        assert_eq!(at_the_gate(two, runs, gate).await.unwrap(), 2);
    }

    async fn a_dropped_call_is_run_again(db: &Db) {
        let rowlock = db.rowlock().await;
        let (runs, gate) = (Arc::<AtomicU32>::default(), Arc::new(Semaphore::new(0)));
        let running = tokio::spawn(at_the_gate(rowlock.clone(), runs.clone(), gate.clone()));
        eventually("it has begun", async || runs.load(Ordering::SeqCst) == 1).await;
        running.abort();
        assert!(running.await.unwrap_err().is_cancelled());
        rowlock.flush().await;
        assert_eq!(at_the_gate(rowlock, runs, gate).await.unwrap(), 2);
    }

    async fn a_result_that_cannot_be_kept_is_returned_once_and_never_made_again(db: &Db) {
        let rowlock = db.rowlock().await;
        let runs = AtomicU32::new(0);
        assert_eq!(too_large(&rowlock, &runs).await.unwrap().len(), 2 << 20);
        for _ in 0..2 {
            let again = too_large(&rowlock, &runs).await;
            assert!(matches!(again, Err(Failed::Refused(Refused::NotKept { .. }))), "{again:?}");
        }
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    }

    async fn a_result_is_kept_later_when_the_database_does_not_answer(db: &Db) {
        let builder = Rowlock::builder().operation_timeout(Duration::from_secs(3));
        let rowlock = builder.connect(&db.url).await.unwrap();
        let (locked, runs) = (Mutex::new(None), AtomicU32::new(0));
        let call = async || lock_the_record(&rowlock, db, &locked, &runs).await;
        let first = call().await;
        let Err(Failed::Rowlock(error)) = first else { panic!("{first:?}") };
        assert!(error.is_transient(), "{error}");
        let tx = locked.lock().await.take();
        tx.unwrap().release().await;
        eventually("it is kept", async || state(&rowlock).await == RecordState::Done).await;
        assert_eq!(call().await.unwrap(), 1);
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    }

    async fn a_call_that_is_dropped_after_its_work_keeps_the_result(db: &Db) {
        let time = Duration::from_secs(2);
        let builder = Rowlock::builder().operation_timeout(time);
        let rowlock = builder.connect(&db.url).await.unwrap();
        let (locked, runs) = (Mutex::new(None), AtomicU32::new(0));
        {
            let mut call = pin!(lock_the_record(&rowlock, db, &locked, &runs));
            // It is dropped while the database is asked for the first time.
            let dropped = timeout(time / 2, call.as_mut()).await;
            assert!(dropped.is_err(), "{dropped:?}");
        }
        // The first sending is given up.
        tokio::time::sleep(time).await;
        locked.lock().await.take().unwrap().release().await;
        eventually("it is kept", async || state(&rowlock).await == RecordState::Done).await;
        assert_eq!(lock_the_record(&rowlock, db, &locked, &runs).await.unwrap(), 1);
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    }

    async fn a_result_does_not_hide_an_open_step(db: &Db) {
        let rowlock = db.rowlock().await;
        let hidden = hide_a_step(&rowlock).await;
        assert!(matches!(hidden, Err(Failed::Rowlock(Error::Record(RecordError::StepUnknown { .. })))), "{hidden:?}");
        assert_eq!(state(&rowlock).await, RecordState::Unknown);
    }

    async fn a_body_that_keeps_its_key_keeps_it_whatever_it_returns(db: &Db) {
        let rowlock = db.rowlock().await;
        let failed = keep_claimed(&rowlock).await;
        assert!(matches!(failed, Err(Failed::Declined)), "{failed:?}");
        rowlock.flush().await;
        assert_eq!(state(&rowlock).await, RecordState::Running);
        let again = keep_claimed(&rowlock).await;
        assert!(matches!(again, Err(Failed::Refused(Refused::InFlight { .. }))), "{again:?}");
    }
}
