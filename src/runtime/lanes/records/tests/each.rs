//! What each operation comes to: shared, sent again, left out, or refused for good.

use super::*;
use crate::runtime::lanes::records::place::shares;

#[tokio::test]
async fn a_claim_that_an_earlier_sending_has_made_is_renewed_before_it_is_believed() {
    let mut house = House::new().await;
    let ask = house.ask(&key("k"));
    let mut other = house.other().await;
    // Its lease is over when the lane learns of it.
    let earlier = ClaimAsk {
        lease: Duration::ZERO,
        ..ask.clone()
    };
    let earlier = other.record_claim(&[earlier]).await;
    assert!(matches!(earlier.unwrap()[..], [Claimed::Mine { .. }]));

    let (reply, answer) = oneshot::channel();
    let core = Arc::clone(&house.core);
    let work = RecordWork::Claim(Box::new(Claim { ask, core, reply }));
    let mut fate = Fate::within(PATIENCE);
    fate.sent = true;
    house
        .to_lane
        .send(Op::Record(RecordOp { work, fate }))
        .unwrap();
    house.batch().await;
    let claims = answered(&mut vec![answer]);
    let [Claiming::Mine(guard)] = &claims[..] else {
        panic!("{claims:?}")
    };
    let deadline = guard.grant.status().deadline;
    assert!(deadline.remaining() > PATIENCE / 2, "{deadline:?}");
    let rows = other.record_read(&[key("k")], 0).await.unwrap();
    let left = rows[0].as_ref().map(|row| row.lease_left);
    assert!(left.is_some_and(|left| left > 0), "{left:?}");
}

#[tokio::test]
async fn what_nobody_waits_for_is_left_out_unless_it_may_have_changed_something() {
    let house = House::new().await;
    for is_sent in [false, true] {
        let mut fate = Fate::within(PATIENCE);
        fate.sent = is_sent;
        let (reply, read) = oneshot::channel();
        let work = RecordWork::Read(Read {
            key: key("k"),
            size: None,
            reply,
        });
        let look = Op::Record(RecordOp { work, fate });
        let (reply, claimed) = oneshot::channel();
        let (ask, core) = (house.ask(&key("k")), Arc::clone(&house.core));
        let work = RecordWork::Claim(Box::new(Claim { ask, core, reply }));
        let claim = Op::Record(RecordOp { work, fate });
        assert!(!look.is_abandoned() && !claim.is_abandoned());
        drop((read, claimed));
        assert!(look.is_abandoned());
        assert_eq!(claim.is_abandoned(), !is_sent);
    }
}

#[tokio::test]
async fn only_what_was_not_sent_shares_an_answer_with_its_like() {
    let house = House::new().await;
    let op = |work, is_sent| {
        let mut fate = Fate::within(PATIENCE);
        fate.sent = is_sent;
        Op::Record(RecordOp { work, fate })
    };
    let read = |is_sent| {
        let (reply, _) = oneshot::channel();
        let (key, size) = (key("k"), None);
        op(RecordWork::Read(Read { key, size, reply }), is_sent)
    };
    let claim = |is_sent| {
        let (reply, _) = oneshot::channel();
        let (ask, core) = (house.ask(&key("k")), Arc::clone(&house.core));
        let claim = Claim { ask, core, reply };
        op(RecordWork::Claim(Box::new(claim)), is_sent)
    };
    for first_sent in [false, true] {
        assert!(shares(&read(false), &read(first_sent)));
        assert!(shares(&claim(false), &claim(first_sent)));
        assert!(!shares(&claim(true), &claim(first_sent)));
        assert!(!shares(&claim(false), &read(first_sent)));
        assert!(!shares(&read(false), &claim(first_sent)));
    }
}

#[tokio::test]
async fn a_step_whose_caller_is_gone_before_it_hears_of_it_is_in_no_doubt() {
    let mut house = House::new().await;
    let ask = house.ask(&key("k"));
    let mut other = house.other().await;
    let claimed = other.record_claim(std::slice::from_ref(&ask)).await;
    let [Claimed::Mine { attempt }] = claimed.unwrap()[..] else {
        panic!("it is new")
    };
    let step = StepAsk {
        key: key("k"),
        owner: ask.owner,
        attempt,
        step: "charge".into(),
        repeatable: false,
        number: 1,
    };
    let core = Arc::clone(&house.core);
    let begun = house.send(|reply| RecordWork::StepBegin(step, core, reply));
    house.batch().await;
    let row = other.record_read(&[key("k")], 0).await.unwrap().pop();
    let doubt = row.flatten().and_then(|row| row.doubt);
    assert_eq!(doubt.as_deref(), Some("charge"));
    drop(begun);
    house.core.flush().await;
    let row = other.record_read(&[key("k")], 0).await.unwrap().pop();
    assert_eq!(row.flatten().map(|row| row.doubt), Some(None));
}

#[tokio::test]
async fn claims_by_what_was_seen_share_a_batch_around_one_that_saw_something_else() {
    let mut house = House::new().await;
    let mut same = vec![house.claim(&key("k"))];
    let other = house.send(|reply| {
        let ask = ClaimAsk {
            seen: Some(1),
            ..house.ask(&key("k"))
        };
        let core = Arc::clone(&house.core);
        RecordWork::Claim(Box::new(Claim { ask, core, reply }))
    });
    same.push(house.claim(&key("k")));
    house.batch().await;
    let claims = answered(&mut same);
    let as_expected = matches!(claims[..], [Claiming::Mine(_), Claiming::Missed]);
    assert!(as_expected, "{claims:?}");
    let mut other = vec![other];
    assert!(answered(&mut other).is_empty());
    house.batch().await;
    assert!(matches!(answered(&mut other)[..], [Claiming::Missed]));
}

#[tokio::test]
async fn a_claim_that_is_refused_for_good_fails_alone() {
    let mut house = House::new().await;
    let mut fine = vec![house.claim(&key("a"))];
    let mut refused = house.send(|reply| {
        // No column takes what comes of it.
        let ask = ClaimAsk {
            lease: Duration::MAX,
            ..house.ask(&key("b"))
        };
        let core = Arc::clone(&house.core);
        RecordWork::Claim(Box::new(Claim { ask, core, reply }))
    });
    fine.push(house.claim(&key("c")));
    house.batch().await;
    let claims = answered(&mut fine);
    let as_expected = matches!(claims[..], [Claiming::Mine(_), Claiming::Mine(_)]);
    assert!(as_expected, "{claims:?}");
    let refused = refused.try_recv().expect("an answer");
    assert!(
        matches!(refused, Err(Error::Database { .. })),
        "{refused:?}"
    );
}

#[test]
fn what_a_step_came_to_counts_among_what_is_written() {
    let ask = StepAsk {
        key: key("k"),
        owner: Uuid::nil(),
        attempt: 1,
        step: "charge".into(),
        repeatable: true,
        number: 0,
    };
    let outcome = Outcome::new("a/b", vec![0; 7]).unwrap();
    let done = RecordWork::StepFinish(ask.clone(), Some(outcome), None);
    assert_eq!(done.written(), Some(7));
    let failed = RecordWork::StepFinish(ask, None, None);
    assert_eq!(failed.written(), None);
}

#[tokio::test]
async fn an_outcome_as_large_as_the_server_takes_is_sent() {
    let mut house = House::new().await;
    let work = |bytes| {
        let ask = FinishAsk {
            key: key("k"),
            owner: Uuid::new_v4(),
            attempt: 1,
            end: RecordEnd::Done {
                outcome: Outcome::kept("a/b", vec![0; bytes]),
                retain: PATIENCE,
                forget: PATIENCE,
            },
        };
        RecordWork::Finish(ask, None)
    };
    let written = work(1_000).written().unwrap();
    house.lane.largest = written;
    assert!(house.lane.too_large(&work(1_000)).is_none());
    assert!(house.lane.too_large(&work(1_001)).is_some());

    // Three fill a statement, each with what goes beside it.
    let ends = || {
        let op = |_| RecordOp {
            work: work(1_000),
            fate: Fate::within(PATIENCE),
        };
        (0..4).map(op).collect()
    };
    let lens = |largest| {
        portions(ends(), largest)
            .iter()
            .map(Vec::len)
            .collect::<Vec<_>>()
    };
    let full = 3 * (written + BESIDE_OUTCOME);
    assert_eq!(lens(full), [3, 1]);
    assert_eq!(lens(full - 1), [2, 2]);
}
