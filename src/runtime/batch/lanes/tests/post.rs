//! Answers that are on their way to a runtime which does not run them: its only worker is blocked.

use super::stop::stop;
use super::*;
use crate::runtime::batch::lanes::post::MANY;
use crate::runtime::batch::lanes::post::tests::Blocked;

/// A lane has granted many locks, and the answers are on their way. Their callers have gone meanwhile.
async fn posted() -> (Bench, Blocked) {
    let mut bench = Bench::new().await;
    bench.redirect();
    let mut outcomes = Vec::new();
    for n in 0..MANY {
        let (take, outcome) = bench.take(&format!("n{n}"));
        bench.send(take);
        outcomes.push(outcome);
    }
    assert!(bench.lane.gather().await && bench.lane.connect().await);
    let batch = bench.lane.pick();
    drop(outcomes);

    let home = Blocked::new();
    {
        let _entered = home.handle().enter();
        bench.lane.home.note();
    }
    bench.lane.execute(batch).await;
    (bench, home)
}

#[tokio::test]
async fn a_flush_waits_for_the_releases_of_answers_without_callers() {
    let (mut bench, _home) = posted().await;
    let (reply, mut flushed) = oneshot::channel();
    bench.flush(reply);
    bench.step().await;
    assert!(flushed.try_recv().is_err());
    bench.lane.take_in();
    assert!(flushed.try_recv().is_ok());
    assert!(bench.holder("n0").await.is_none());
}

#[tokio::test]
async fn a_shutdown_waits_for_the_releases_of_answers_without_callers() {
    let (bench, _home) = posted().await;
    let told = stop(&bench, Moment::now() + PATIENCE);
    let mut other = bench.other().await;
    let Bench {
        dir: _dir, lane, ..
    } = bench;
    lane.work().await;
    assert_eq!(told.await.unwrap(), []);
    let name = Name::new("n0").unwrap();
    assert!(other.lock_inspect(&name).await.unwrap().is_none());
}

#[tokio::test]
async fn an_idle_lane_delivers_them() {
    let (mut bench, _home) = posted().await;
    bench.step().await;
    assert!(
        bench.holder("n0").await.is_none(),
        "the guards are dropped, and released"
    );
}
