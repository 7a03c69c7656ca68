//! `#[idempotent]`: which calls are the same request, and what a call gets that does not run.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rowlock::attributes::Refused;
use rowlock::{Error, RecordState, Rowlock, Scope, StepFailed, idempotent};
use rowlock_test::{Db, on_every_engine};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Rowlock(#[from] Error),
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("the card is declined")]
    Declined,
}

fn refused<T: std::fmt::Debug>(result: Result<T, Failed>) -> Refused {
    match result {
        Err(Failed::Refused(refused)) => refused,
        other => panic!("not refused: {other:?}"),
    }
}

/// What a function does, and how often it did it.
#[derive(Debug, Default)]
struct World {
    runs: AtomicU32,
    begun: AtomicU32,
}

impl World {
    fn run(&self) -> u32 {
        self.runs.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }
}

#[derive(Debug, Clone, Serialize)]
struct Order {
    number: u64,
    cents: HashMap<String, u64>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Receipt {
    run: u32,
    attempt: i64,
}

fn order(cents: u64) -> Order {
    let parts = (0..8).map(|part| (format!("part {part}"), cents));
    Order {
        number: 4711,
        cents: parts.collect(),
    }
}

#[idempotent(scope = "{user}", key = "pay:{order.number}", skip(world))]
async fn pay(
    rowlock: &Rowlock,
    world: &World,
    user: &str,
    order: &Order,
) -> Result<Receipt, Failed> {
    Ok(Receipt {
        run: world.run(),
        attempt: attempt.attempt(),
    })
}

/// Like `pay`, with the same arguments and the same key.
#[idempotent(scope = "{user}", key = "pay:{order.number}", skip(world))]
async fn refund(
    rowlock: &Rowlock,
    world: &World,
    user: &str,
    order: &Order,
) -> Result<Receipt, Failed> {
    panic!("it runs: {world:?} {:?}", attempt.record());
}

#[idempotent(scope = "scope", key = "{key}", skip(world, gate))]
async fn wait_at(
    rowlock: Rowlock,
    world: Arc<World>,
    gate: Arc<Semaphore>,
    key: &'static str,
) -> Result<u32, Failed> {
    world.begun.fetch_add(1, Ordering::SeqCst);
    gate.acquire().await.unwrap().forget();
    Ok(world.run())
}

#[idempotent(scope = "scope", key = "{key}", skip(world, gate), wait = "1min")]
async fn wait_for(
    rowlock: Rowlock,
    world: Arc<World>,
    gate: Arc<Semaphore>,
    key: &'static str,
) -> Result<u32, Failed> {
    world.begun.fetch_add(1, Ordering::SeqCst);
    gate.acquire().await.unwrap().forget();
    Ok(world.run())
}

#[idempotent(scope = "scope", key = "k", skip(fails))]
async fn charge(rowlock: &Rowlock, fails: bool) -> Result<i64, Failed> {
    if fails {
        return Err(Failed::Declined);
    }
    Ok(attempt.attempt())
}

#[idempotent(scope = "scope", key = "k")]
async fn charge_once(rowlock: &Rowlock) -> Result<u32, Failed> {
    let charge = async { Err::<u32, _>(StepFailed::Unknown(Failed::Declined)) };
    attempt.step_once("charge", charge).await
}

async fn has_begun(world: &World, runs: u32) {
    let begun = async || world.begun.load(Ordering::SeqCst) == runs;
    rowlock_test::eventually("the body has begun", begun).await;
}

on_every_engine! {
    async fn a_function_runs_once_and_its_result_is_replayed(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let world = World::default();
        let first = pay(&one, &world, "alice", &order(500)).await.unwrap();
        for rowlock in [&one, &two, &one] {
            // Each order has a map with an order of its own.
            assert_eq!(pay(rowlock, &world, "alice", &order(500)).await.unwrap(), first);
        }
        // What is skipped makes no difference.
        assert_eq!(pay(&two, &World::default(), "alice", &order(500)).await.unwrap(), first);
        assert_eq!(world.runs(), 1);
        // Another scope has keys of its own.
        assert_eq!(pay(&one, &world, "bob", &order(500)).await.unwrap().run, 2);
        let record = one.idempotency().inspect(Scope("alice").key("pay:4711")).await.unwrap().unwrap();
        assert_eq!((record.state, record.attempt), (RecordState::Done, first.attempt));
    }

    async fn other_arguments_and_other_functions_are_refused(db: &Db) {
        let rowlock = db.rowlock().await;
        let world = World::default();
        pay(&rowlock, &world, "alice", &order(500)).await.unwrap();
        let error = refused(pay(&rowlock, &world, "alice", &order(501)).await);
        assert!(matches!(error, Refused::Mismatch { .. }), "{error}");
        let error = refused(refund(&rowlock, &world, "alice", &order(500)).await);
        assert!(matches!(error, Refused::Mismatch { .. }), "{error}");
        assert!(error.to_string().contains("\"pay:4711\" of \"alice\""), "{error}");
        assert_eq!(world.runs(), 1);
    }

    async fn a_call_in_flight_is_refused_or_waited_for(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let (world, gate) = (Arc::<World>::default(), Arc::new(Semaphore::new(0)));
        let call = |rowlock: &Rowlock| wait_at(rowlock.clone(), world.clone(), gate.clone(), "k");
        let running = tokio::spawn(call(&one));
        has_begun(&world, 1).await;
        let Refused::InFlight { attempt, .. } = refused(call(&two).await) else { panic!("not in flight") };
        assert!(attempt.remaining.unwrap() > Duration::from_secs(20));
        gate.add_permits(1);
        assert_eq!(running.await.unwrap().unwrap(), 1);
        assert_eq!(call(&two).await.unwrap(), 1);

        let call = |rowlock: &Rowlock| wait_for(rowlock.clone(), world.clone(), gate.clone(), "waits");
        let running = tokio::spawn(call(&one));
        has_begun(&world, 2).await;
        let waiting = tokio::spawn(call(&two));
        gate.add_permits(1);
        assert_eq!(running.await.unwrap().unwrap(), 2);
        assert_eq!(waiting.await.unwrap().unwrap(), 2);
    }

    async fn an_error_frees_the_key_for_the_next_attempt(db: &Db) {
        let rowlock = db.rowlock().await;
        let mut last = 0;
        // More often than attempts may be abandoned.
        for _ in 0..6 {
            let failed = charge(&rowlock, true).await;
            assert!(matches!(failed, Err(Failed::Declined)), "{failed:?}");
            let record = rowlock.idempotency().inspect(Scope("scope").key("k")).await.unwrap().unwrap();
            assert_eq!(record.state, RecordState::Free);
            assert!(record.attempt > last);
            last = record.attempt;
        }
        let attempt = charge(&rowlock, false).await.unwrap();
        assert!(attempt > last);
        assert_eq!(charge(&rowlock, true).await.unwrap(), attempt);
    }

    async fn an_open_step_makes_the_call_unknown(db: &Db) {
        let rowlock = db.rowlock().await;
        let failed = charge_once(&rowlock).await;
        assert!(matches!(failed, Err(Failed::Declined)), "{failed:?}");
        let Refused::Unknown(step) = refused(charge_once(&rowlock).await) else { panic!("not unknown") };
        assert_eq!(step.step, "charge");
    }

    async fn a_call_whose_result_is_gone_is_refused(db: &Db) {
        let rowlock = db.rowlock().await;
        charge(&rowlock, false).await.unwrap();
        let past = db.past();
        db.execute(&format!("UPDATE rowlock_idempotency SET retain_until = {past}")).await;
        let error = refused(charge(&rowlock, false).await);
        assert!(matches!(error, Refused::Expired { .. }), "{error}");
    }

    async fn a_key_whose_attempts_are_abandoned_is_poisoned(db: &Db) {
        let rowlock = db.rowlock().await;
        let (world, gate) = (Arc::<World>::default(), Arc::new(Semaphore::new(0)));
        let call = || wait_for(rowlock.clone(), world.clone(), gate.clone(), "k");
        for runs in 1..=5 {
            let running = tokio::spawn(call());
            has_begun(&world, runs).await;
            running.abort();
            assert!(running.await.unwrap_err().is_cancelled());
            rowlock.flush().await;
        }
        let error = refused(call().await);
        assert!(matches!(error, Refused::Poisoned { attempts: 5, .. }), "{error}");
    }
}
