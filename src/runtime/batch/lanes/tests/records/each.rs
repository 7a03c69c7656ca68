//! The result of each operation: shared, sent again, left out, or refused for good.

use super::*;
use crate::model::RecordError;
use crate::runtime::batch::lanes::batch_limits::BESIDE_OUTCOME;

#[tokio::test]
async fn a_claim_that_an_earlier_sending_has_made_is_renewed_before_it_is_believed() {
    let mut house = House::new().await;
    let params = house.ask(&key("k"));
    let mut other = house.other().await;
    // The lease is over when the lane gets the answer.
    let earlier = ClaimParams {
        lease: Duration::ZERO,
        ..params.clone()
    };
    let earlier = other.record_claim(&[earlier]).await;
    assert!(matches!(earlier.unwrap()[..], [ClaimOutcome::Mine { .. }]));

    let (reply, answer) = oneshot::channel();
    let mut claim = Claim::task(&house.core.holdings, params, reply);
    claim.head.progress.sent = true;
    house.send(claim);
    house.batch().await;
    let claims = answered(&mut vec![answer]);
    let [ClaimAnswer::Mine(guard)] = &claims[..] else {
        panic!("{claims:?}")
    };
    let deadline = guard.grant.status().deadline;
    assert!(deadline.remaining() > PATIENCE / 2, "{deadline:?}");
    let rows = other.record_read(&[key("k")], 0).await.unwrap();
    let left = rows[0].as_ref().map(|row| row.lease_left);
    assert!(left.is_some_and(|left| left > 0), "{left:?}");
}

/// The first sending was granted, and the database's clock was set back by an hour then.
#[tokio::test]
async fn a_claim_with_more_time_than_its_lease_is_trusted_for_its_lease() {
    let mut house = House::new().await;
    let mut other = house.other().await;
    let (claim, params, answer) = house.doubtful(&key("k"), 1);
    let lease = params.lease;
    let first = ClaimParams {
        lease: lease + Duration::from_hours(1),
        ..params
    };
    other.record_claim(&[first]).await.unwrap();
    house.send(claim);
    house.batch().await;
    let claims = answered(&mut vec![answer]);
    let [ClaimAnswer::Mine(guard)] = &claims[..] else {
        panic!("{claims:?}")
    };
    assert!(guard.grant.status().deadline <= Moment::now() + lease);
}

#[tokio::test]
async fn what_nobody_waits_for_is_left_out_unless_it_may_have_changed_something() {
    let house = House::new().await;
    for is_sent in [false, true] {
        let mut progress = Progress::within(PATIENCE);
        progress.sent = is_sent;
        let (reply, read) = oneshot::channel();
        let look = Job::from(Read::task(&key("k"), progress, reply));
        let (reply, claimed) = oneshot::channel();
        let mut claim = Claim::task(&house.core.holdings, house.ask(&key("k")), reply);
        claim.head.progress.sent = is_sent;
        let claim = Job::from(claim);
        assert!(!look.is_abandoned() && !claim.is_abandoned());
        drop((read, claimed));
        assert!(look.is_abandoned());
        assert_eq!(claim.is_abandoned(), !is_sent);
    }
}

#[tokio::test]
async fn only_what_was_not_sent_shares_an_answer_with_its_like() {
    let house = House::new().await;
    let read = |is_sent| {
        let (reply, _) = oneshot::channel();
        let mut read = Read::task(&key("k"), Progress::within(PATIENCE), reply);
        read.head.progress.sent = is_sent;
        Job::from(read)
    };
    let claim = |is_sent| {
        let (reply, _) = oneshot::channel();
        let mut claim = Claim::task(&house.core.holdings, house.ask(&key("k")), reply);
        claim.head.progress.sent = is_sent;
        Job::from(claim)
    };
    let shares = |job: &Job, first: &Job| job.shares(&**first);
    for first_sent in [false, true] {
        assert!(shares(&read(false), &read(first_sent)));
        assert!(shares(&claim(false), &claim(first_sent)));
        assert!(!shares(&claim(true), &claim(first_sent)));
        assert!(!shares(&claim(false), &read(first_sent)));
        assert!(!shares(&read(false), &claim(first_sent)));
    }
}

#[tokio::test]
async fn a_step_whose_caller_is_gone_before_it_hears_of_it_is_not_open() {
    let mut house = House::new().await;
    let params = house.ask(&key("k"));
    let mut other = house.other().await;
    let claimed = other.record_claim(std::slice::from_ref(&params)).await;
    let [ClaimOutcome::Mine { attempt }] = claimed.unwrap()[..] else {
        panic!("it is new")
    };
    let step = StepParams {
        key: key("k"),
        attempt_id: params.attempt_id,
        attempt,
        step: "charge".into(),
        kind: StepKind::Once { number: 1 },
    };
    let begun = house.ask_with(|reply| BeginStep::task(&house.core.lanes, step, reply));
    house.batch().await;
    let row = other.record_read(&[key("k")], 0).await.unwrap().pop();
    let open = row.flatten().and_then(|row| row.open_step);
    assert_eq!(open.as_deref(), Some("charge"));
    drop(begun);
    house.core.flush().await;
    let row = other.record_read(&[key("k")], 0).await.unwrap().pop();
    assert_eq!(row.flatten().map(|row| row.open_step), Some(None));
}

#[tokio::test]
async fn claims_by_what_was_seen_share_a_batch_around_one_that_saw_something_else() {
    let mut house = House::new().await;
    let mut same = vec![house.claim(&key("k"))];
    let params = ClaimParams {
        seen: Some(1),
        ..house.ask(&key("k"))
    };
    let other = house.ask_with(|reply| Claim::task(&house.core.holdings, params, reply));
    same.push(house.claim(&key("k")));
    house.batch().await;
    let claims = answered(&mut same);
    let as_expected = matches!(claims[..], [ClaimAnswer::Mine(_), ClaimAnswer::Missed]);
    assert!(as_expected, "{claims:?}");
    let mut other = vec![other];
    assert!(answered(&mut other).is_empty());
    house.batch().await;
    assert!(matches!(answered(&mut other)[..], [ClaimAnswer::Missed]));
}

#[tokio::test]
async fn a_claim_that_is_refused_for_good_fails_alone() {
    let mut house = House::new().await;
    let mut fine = vec![house.claim(&key("a"))];
    // No column takes the resulting value.
    let params = ClaimParams {
        lease: Duration::MAX,
        ..house.ask(&key("b"))
    };
    let mut refused = house.ask_with(|reply| Claim::task(&house.core.holdings, params, reply));
    fine.push(house.claim(&key("c")));
    house.batch().await;
    let claims = answered(&mut fine);
    let as_expected = matches!(claims[..], [ClaimAnswer::Mine(_), ClaimAnswer::Mine(_)]);
    assert!(as_expected, "{claims:?}");
    let refused = refused.try_recv().expect("an answer");
    assert!(
        matches!(refused, Err(Error::Database { .. })),
        "{refused:?}"
    );
}

#[test]
fn what_a_step_came_to_counts_among_what_is_written() {
    let params = StepParams {
        key: key("k"),
        attempt_id: Uuid::nil(),
        attempt: 1,
        step: "charge".into(),
        kind: StepKind::Repeatable,
    };
    let outcome = Outcome::new("a/b", vec![0; 7]).unwrap();
    let progress = Progress::within(PATIENCE);
    let done = FinishStep::task(params.clone(), Some(outcome), None, progress);
    assert_eq!(done.head.written(), 7);
    let failed = FinishStep::task(params, None, None, progress);
    assert_eq!(failed.head.written(), 0);
}

#[tokio::test]
async fn an_outcome_as_large_as_the_server_takes_is_sent() {
    let house = House::new().await;
    let end = |bytes, reply| {
        let params = FinishParams {
            key: key("k"),
            attempt_id: Uuid::new_v4(),
            attempt: 1,
            end: RecordEnd::Done {
                outcome: Outcome::kept("a/b", vec![0; bytes]),
                retain: PATIENCE,
                remember: PATIENCE,
            },
        };
        Finish::task(params, reply, Progress::within(PATIENCE))
    };
    let written = end(1_000, None).head.written();
    house.lane.link.set_largest(written);
    let (reply, mut answer) = oneshot::channel();
    let sent = house.lane.statements(vec![end(1_000, Some(reply)).into()]);
    assert_eq!(sent.len(), 1);
    assert!(matches!(answer.try_recv(), Err(TryRecvError::Empty)));
    let (reply, mut answer) = oneshot::channel();
    let sent = house.lane.statements(vec![end(1_001, Some(reply)).into()]);
    assert!(sent.is_empty());
    let refused = answer.try_recv().unwrap().unwrap_err();
    assert!(
        matches!(refused, Error::Record(RecordError::OutcomeTooLarge { .. })),
        "{refused}"
    );

    // Three fill a statement, with the bytes that go beside each.
    let lens = |largest| {
        house.lane.link.set_largest(largest);
        let ends = (0..4).map(|_| end(1_000, None).into()).collect();
        let statements = house.lane.statements(ends).into_iter();
        let lens = statements.map(|statement| statement.into_jobs().0.len());
        lens.collect::<Vec<_>>()
    };
    let full = 3 * (written + BESIDE_OUTCOME);
    assert_eq!(lens(full), [3, 1]);
    assert_eq!(lens(full - 1), [2, 2]);
}

#[tokio::test]
async fn ends_and_claims_are_one_statement() {
    let mut house = House::new().await;
    let mut ends: Vec<_> = ["a", "d"].map(|name| house.finish(&key(name))).into();
    let mut claims: Vec<_> = ["b", "c"].map(|name| house.claim(&key(name))).into();
    let mut read = vec![house.read(&key("b"))];
    house.lane.take_in();
    assert!(house.lane.connect().await);
    let jobs = house.lane.pick();
    let statements = house.lane.statements(jobs);
    let told: Vec<_> = statements.iter().map(|batch| batch.told()).collect();
    assert_eq!(told, [("record_exchange", 4), ("read", 1)]);
    // Each caller gets the answer to its own.
    let jobs = statements.into_iter().flat_map(|batch| batch.into_jobs().0);
    house.lane.execute(jobs.collect()).await;
    assert_eq!(answered(&mut ends), [FinishOutcome::Superseded; 2]);
    for (claim, name) in answered(&mut claims).iter().zip(["b", "c"]) {
        let ClaimAnswer::Mine(guard) = claim else {
            panic!("{claim:?}")
        };
        assert_eq!(guard.grant.name, key(name));
    }
    assert!(answered(&mut read)[0].is_some(), "it comes last");
}

#[tokio::test]
async fn what_shares_the_answer_of_a_refused_statement_is_not_left_alone() {
    let mut house = House::new().await;
    let mut reads = Vec::new();
    for _ in 0..3 {
        reads.push(house.read(&key("k")));
    }
    for _ in 0..2 {
        house.lane.take_in();
        let batch = house.lane.pick();
        let (firsts, followers) = house.lane.statements(batch).pop().unwrap().into_jobs();
        let fault = Fault::said(FaultKind::Interrupted, "refused");
        house.lane.broke_off(firsts, followers, fault);
    }
    reads.push(house.read(&key("another")));
    assert_eq!(house.batch().await, 2);
}
