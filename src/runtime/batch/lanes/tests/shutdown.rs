//! The shutdown of a client: what is reported, and what goes on.

use super::stop::{held, names, slow};
use super::*;
use crate::model::{Fingerprint, RecordKey};
use crate::runtime::held::attempt_guard::RecordGuard;
use crate::runtime::requests::claim::{Claim, ClaimAnswer};
use crate::store::verbs::record::{ClaimParams, FinishOutcome, RecordEnd};

const MS: Duration = Duration::from_millis(1);

/// An attempt that a lane of the client's own claims.
async fn begun(core: &Arc<Core>, key: &str) -> RecordGuard {
    let params = ClaimParams {
        key: RecordKey::new("me", key).unwrap(),
        attempt_id: Uuid::new_v4(),
        holder: "test".into(),
        fingerprint: Fingerprint::of("request"),
        lease: TTL,
        max_attempts: 5,
        database: core.server.database,
        retain: TTL,
        remember: TTL,
        remember_begun: TTL,
        seen: None,
    };
    match core
        .lanes
        .answer(|reply| Claim::task(&core.holdings, params, reply))
        .await
    {
        Ok(ClaimAnswer::Mine(attempt)) => attempt,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn only_tasks_of_its_own_may_lock_after_the_shutdown_of_a_client() {
    let (one, two) = (Bench::new().await, Bench::new().await);
    let guard = held(&two.core, "a").await;
    let (go_on, wait) = oneshot::channel::<()>();
    let core = Arc::clone(&two.core);
    let of_one = one.core.lanes.tasks.spawn("of one", async move {
        let _ = wait.await;
        // Its task is a late one, however old the task of the other client is.
        let spawned = Arc::clone(&core);
        let late = core
            .lanes
            .tasks
            .spawn("late", async move { spawned.lanes.check_open() });
        (core.lanes.check_open(), late.await.unwrap())
    });
    assert_eq!(names(&two.core.shut_down(50 * MS).await), ["hold \"a\""]);
    go_on.send(()).unwrap();
    let (own, late) = of_one.await.unwrap();
    assert!(matches!(own, Err(Error::ShutDown { .. })), "{own:?}");
    assert!(matches!(late, Err(Error::ShutDown { .. })), "{late:?}");
    drop(guard);
}

#[tokio::test]
async fn a_late_task_is_not_waited_for() {
    let bench = Bench::new().await;
    let guard = held(&bench.core, "a").await;
    assert_eq!(bench.core.shut_down(Duration::ZERO).await.len(), 1);
    let (go_on, wait) = oneshot::channel::<()>();
    let late = bench.core.lanes.tasks.spawn("a late request", wait);
    drop(guard);
    let ended = tokio::time::timeout(PATIENCE / 2, bench.core.shut_down(PATIENCE));
    assert_eq!(ended.await.expect("it waits for the late task"), []);
    drop(go_on);
    assert!(late.await.unwrap().is_err());
}

/// Its caller is a task of the application's, which the client does not know.
#[tokio::test]
async fn what_is_granted_during_a_shutdown_is_renewed_and_can_be_released() {
    let bench = Bench::new().await;
    let mut other = bench.other().await;
    sql(&mut other, BEGIN_TO_WRITE).await;
    let core = Arc::clone(&bench.core);
    let acquire = tokio::spawn(async move { held(&core, "a").await });
    let core = Arc::clone(&bench.core);
    let begin = tokio::spawn(async move { begun(&core, "k").await });
    tokio::task::yield_now().await;
    for _ in 0..2 {
        let unfinished = names(&bench.core.shut_down(Duration::ZERO).await);
        assert!(!unfinished.is_empty());
    }
    sql(&mut other, "ROLLBACK").await;
    let (guard, attempt) = (acquire.await.unwrap(), begin.await.unwrap());
    let mut left = names(&bench.core.shut_down(Duration::ZERO).await);
    left.sort();
    assert_eq!(left, ["hold \"a\"", "hold the record \"k\" of \"me\""]);
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    drop(attempt);
    assert_eq!(bench.core.shut_down(PATIENCE).await, []);
    assert!(bench.holder("a").await.is_none());
}

#[tokio::test]
async fn what_waits_in_a_lane_is_told_beside_what_is_held() {
    let bench = Bench::new().await;
    let guards = (held(&bench.core, "a").await, held(&bench.core, "b").await);
    let mut other = bench.other().await;
    sql(&mut other, BEGIN_TO_WRITE).await;
    drop(guards.1);
    let left = names(&bench.core.shut_down(Duration::ZERO).await);
    assert!(left.contains(&"hold \"a\"".into()), "{left:?}");
    let told = ["release \"b\"", "the thread rowlock-lanes"];
    assert!(
        left.iter().any(|left| told.contains(&left.as_str())),
        "{left:?}"
    );
    sql(&mut other, "ROLLBACK").await;
}

#[tokio::test]
async fn an_attempt_whose_lease_is_over_is_reported_and_records_its_outcome() {
    let bench = Bench::new().await;
    let attempt = begun(&bench.core, "k").await;
    attempt.grant.lose(Loss::Expired);
    let left = names(&bench.core.shut_down(PATIENCE).await);
    assert_eq!(left, ["hold the record \"k\" of \"me\""]);
    let outcome = crate::model::Outcome::json(&"done").unwrap();
    let end = RecordEnd::Done {
        outcome,
        retain: TTL,
        remember: TTL,
    };
    assert_eq!(attempt.finish(end).await.unwrap(), FinishOutcome::Ended);
    assert_eq!(bench.core.shut_down(PATIENCE).await, []);
}

#[tokio::test]
async fn slow_operations_go_on_while_tasks_do() {
    let bench = Bench::new().await;
    let (go_on, wait) = oneshot::channel::<()>();
    let core = Arc::clone(&bench.core);
    let work = bench.core.lanes.tasks.spawn("work", async move {
        let _ = wait.await;
        slow(&core, Duration::ZERO).await.unwrap()
    });
    assert_eq!(names(&bench.core.shut_down(Duration::ZERO).await), ["work"]);
    go_on.send(()).unwrap();
    work.await.unwrap().unwrap();
}

#[tokio::test]
async fn what_a_late_dropped_call_has_begun_is_waited_for() {
    let bench = Bench::new().await;
    let guard = held(&bench.core, "a").await;
    assert_eq!(bench.core.shut_down(Duration::ZERO).await.len(), 1);
    let (go_on, wait) = oneshot::channel::<()>();
    drop(bench.core.lanes.tasks.finish("a commit", wait));
    drop(guard);
    assert_eq!(names(&bench.core.shut_down(50 * MS).await), ["a commit"]);
    go_on.send(()).unwrap();
    assert_eq!(bench.core.shut_down(PATIENCE).await, []);
}
