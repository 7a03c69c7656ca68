//! Claims that are undone: their outcome is unknown, or a sending may come late.

use super::*;
use crate::runtime::requests::finish;

#[tokio::test]
async fn a_claim_that_was_given_up_is_undone_until_no_sending_can_come() {
    let mut house = House::new().await;
    let mut other = house.other().await;
    for doubts in [0, 1] {
        let key = key(&format!("k{doubts}"));
        let (claim, params, mut claimed) = house.doubtful(&key, doubts);
        house.lane.pending.arrive(claim.into());
        house.lane.give_up_in_time(Moment::now() + PATIENCE);
        let error = claimed.try_recv().unwrap().unwrap_err();
        let is_unknown = matches!(error, Error::OutcomeUnknown { .. });
        assert_eq!(is_unknown, doubts > 0, "{error}");
        // It finds nothing.
        house.step().await;
        assert_eq!(house.lane.pending.wakes_at().is_some(), doubts > 0);
        if doubts == 0 {
            continue;
        }
        // Neither a flush nor what another attempt says of its record waits for it.
        let (reply, mut flushed) = oneshot::channel();
        house.to_lane.send(Message::Flush(reply)).unwrap();
        let end = house.finish(&key);
        // Its pause is not over, however long this thread has waited for a processor.
        while let Ok(message) = house.lane.queue.try_recv() {
            house.lane.arrive(message);
        }
        let batch = house.lane.pick();
        assert_eq!(batch.len(), 1);
        house.lane.execute(batch).await;
        assert_eq!(answered(&mut vec![end]), [FinishOutcome::Superseded]);
        house.lane.take_in();
        assert!(flushed.try_recv().is_ok());

        let late = other.record_claim(std::slice::from_ref(&params)).await;
        assert!(matches!(late.unwrap()[..], [ClaimOutcome::Mine { .. }]));
        loop {
            let row = house.row(&key).await.unwrap();
            assert_eq!(row.attempt_id, params.attempt_id);
            if row.state != KeptState::Running {
                assert_eq!((row.state, row.abandoned), (KeptState::Free, 0));
                break;
            }
            house.step().await;
        }
        assert!(house.lane.pending.is_idle());
        assert_eq!(house.lane.pending.wakes_at(), None);
    }
}

#[tokio::test]
async fn a_claim_in_doubt_is_undone_also_when_the_key_is_not_to_be_had() {
    let mut house = House::new().await;
    let mut other = house.other().await;
    let key = key("k");
    for doubts in [0, 1] {
        let first = house.ask(&key);
        let taken = other.record_claim(std::slice::from_ref(&first)).await;
        let [ClaimOutcome::Mine { attempt }] = taken.unwrap()[..] else {
            panic!("nobody else has it")
        };
        let (claim, params, claimed) = house.doubtful(&key, doubts);
        house.send(claim);
        house.step().await;
        assert!(matches!(
            answered(&mut vec![claimed])[..],
            [ClaimAnswer::Missed]
        ));
        assert_eq!(house.lane.pending.wakes_at().is_some(), doubts > 0);
        // The other's record goes: the first sending finds what it has seen.
        let end = FinishParams {
            key: key.clone(),
            attempt_id: first.attempt_id,
            attempt,
            end: RecordEnd::Free {
                bound: false,
                pardon: 0,
                remember: Duration::ZERO,
                remember_begun: Duration::ZERO,
                step_is_open: false,
            },
        };
        let ended = other.record_finish(&[end]).await.unwrap();
        assert_eq!(ended, [FinishOutcome::Ended]);
        other.record_forget(&key, attempt).await.unwrap();
        assert!(house.row(&key).await.is_none());
        if doubts > 0 {
            let late = other.record_claim(std::slice::from_ref(&params)).await;
            assert!(matches!(late.unwrap()[..], [ClaimOutcome::Mine { .. }]));
            while house.row(&key).await.unwrap().state == KeptState::Running {
                house.step().await;
            }
            assert_eq!(house.lane.pending.wakes_at(), None);
        }
    }
}

#[tokio::test]
async fn the_undo_of_a_claim_frees_nobody_else_and_ends_with_its_lease() {
    let mut house = House::new().await;
    let mut other = house.other().await;
    let key = key("k");
    let (claim, mut params, _claimed) = house.doubtful(&key, 1);
    let second = house.ask(&key);
    let taken = other.record_claim(std::slice::from_ref(&second)).await;
    assert!(matches!(taken.unwrap()[..], [ClaimOutcome::Mine { .. }]));
    let undo = claim
        .request
        .undo(&claim.head.progress, Moment::now())
        .unwrap();
    house.lane.pending.arrive(undo);
    house.step().await;
    let row = house.row(&key).await.unwrap();
    assert_eq!(
        (row.attempt_id, row.state),
        (second.attempt_id, KeptState::Running)
    );

    let now = Moment::now();
    for (lease, longest) in [(1, 1), (600, 600), (3_600, 600)] {
        params.lease = Duration::from_secs(lease);
        let undo = finish::undo(&params, &claim.head.progress, now);
        assert_eq!(
            undo.head.progress.give_up,
            now + Duration::from_secs(longest)
        );
    }
}
