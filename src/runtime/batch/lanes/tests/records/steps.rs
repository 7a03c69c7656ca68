//! Late sendings about steps.

use super::*;
use crate::runtime::batch::lanes::tests::sql;

impl House {
    async fn guard(&self, key: &RecordKey) -> RecordGuard {
        let claim = |reply| Claim::task(&self.core.holdings, self.ask(key), reply);
        match self.core.lanes.answer(claim).await.unwrap() {
            ClaimAnswer::Mine(guard) => guard,
            other => panic!("{other:?}"),
        }
    }

    async fn open_step(&self, key: &RecordKey) -> Option<String> {
        self.row(key).await.unwrap().open_step
    }
}

fn step(guard: &RecordGuard, kind: StepKind) -> StepParams {
    StepParams {
        key: guard.key().clone(),
        attempt_id: guard.attempt_id(),
        attempt: guard.grant.fence(),
        step: "charge".into(),
        kind,
    }
}

#[tokio::test]
async fn the_end_of_an_attempt_closes_the_step_that_it_knows_not_to_have_happened() {
    let house = House::new().await;
    let mut other = house.other().await;
    for (happened, state) in [(false, KeptState::Free), (true, KeptState::Unknown)] {
        let guard = house.guard(&key(state.name())).await;
        guard.set_step_is_open(happened);
        // A late sending, or a sending whose answer was lost.
        let begun = other
            .step_begin(&step(&guard, StepKind::Once { number: 1 }))
            .await
            .unwrap();
        assert!(matches!(begun, StepBegun::Fresh));
        assert_eq!(
            house.open_step(guard.key()).await.as_deref(),
            Some("charge")
        );
        let ended = guard.finish(guard.give_up()).await.unwrap();
        assert_eq!(ended, FinishOutcome::Ended);
        let row = house.row(guard.key()).await.unwrap();
        assert_eq!(row.state, state);
        assert_eq!(row.open_step.is_some(), happened);
        assert_eq!(row.forget_left.is_some(), !happened);
    }
}

#[tokio::test]
async fn what_is_said_late_of_a_step_does_not_touch_the_same_step_begun_again() {
    let house = House::new().await;
    let mut other = house.other().await;
    let guard = house.guard(&key("k")).await;
    let [first, second] = [1, 2].map(|number| step(&guard, StepKind::Once { number }));
    for ends in [true, false] {
        assert!(matches!(
            other.step_begin(&first).await.unwrap(),
            StepBegun::Fresh
        ));
        if ends {
            let ended = other.step_finish(&first, None).await.unwrap();
            assert_eq!(ended, FinishOutcome::Ended);
            assert_eq!(house.open_step(guard.key()).await, None);
        }
        // Begun again; the second time by another sending.
        for _ in 0..2 {
            let begun = other.step_begin(&second).await.unwrap();
            assert!(matches!(begun, StepBegun::Fresh), "{begun:?}");
        }
        // Late sendings about the first beginning.
        let begun = other.step_begin(&first).await.unwrap();
        assert!(
            matches!(&begun, StepBegun::OtherOpen(step) if step == "charge"),
            "{begun:?}"
        );
        other.step_finish(&first, None).await.unwrap();
        assert!(house.open_step(guard.key()).await.is_some());
        // Nor does a step that may be repeated.
        let repeatable = step(&guard, StepKind::Repeatable);
        let kept = Outcome::new("a/b", "c").unwrap();
        let letter = StepParams {
            step: "letter".into(),
            ..repeatable
        };
        other.step_finish(&letter, Some(&kept)).await.unwrap();
        assert!(house.open_step(guard.key()).await.is_some());
        other.step_finish(&second, None).await.unwrap();
        assert_eq!(house.open_step(guard.key()).await, None);
    }
}

#[tokio::test]
async fn a_step_that_cannot_begin_tells_why() {
    let mut house = House::new().await;
    let guard = house.guard(&key("k")).await;
    sql(
        &mut house.other().await,
        "DROP TABLE rowlock_idempotency_step",
    )
    .await;
    let (reply, mut begun) = oneshot::channel();
    let params = step(&guard, StepKind::Once { number: 1 });
    house.send(BeginStep::task(&house.core.lanes, params, reply));
    house.batch().await;
    let error = begun.try_recv().expect("an answer").unwrap_err();
    assert!(
        error.to_string().contains("rowlock_idempotency_step"),
        "{error}"
    );
}

/// If one fails, what the others did is not in doubt.
#[tokio::test]
async fn each_step_begins_in_a_statement_of_its_own() {
    let mut house = House::new().await;
    let mut begun = Vec::new();
    for name in ["one", "two"] {
        let guard = house.guard(&key(name)).await;
        let (reply, begins) = oneshot::channel();
        let params = step(&guard, StepKind::Once { number: 1 });
        house.send(BeginStep::task(&house.core.lanes, params, reply));
        begun.push((guard, begins));
    }
    house.lane.take_in();
    let batch = house.lane.pick();
    assert_eq!(batch.len(), 2);
    assert_eq!(house.lane.statements(batch).len(), 2);
}
