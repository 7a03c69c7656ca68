//! Acquires whose first sending may have happened, or may come late.

use super::*;

#[tokio::test]
async fn what_an_earlier_sending_was_granted_is_handed_out() {
    let mut bench = Bench::new().await;
    let take = bench.doubtful("a", 1);
    let mut other = bench.other().await;
    let earlier = other
        .lease_take(std::slice::from_ref(&take.0.request.params))
        .await;
    let guard = bench.granted(take).await;
    let fence = guard.grant().fence();
    assert!(matches!(earlier.unwrap()[..], [TakeOutcome::Granted { fence: row }] if row == fence));
    assert!(guard.grant().is_held());
}

#[tokio::test]
async fn nobody_who_flushes_waits_for_an_undo_that_has_found_nothing() {
    let mut bench = Bench::new().await;
    let (mut take, _outcome) = bench.doubtful("a", 1);
    take.head.progress.give_up = Moment::now();
    bench.send(take);
    bench.step().await;
    let (reply, mut flushed) = oneshot::channel();
    assert!(bench.lane.pending.wakes_at().is_some(), "it is repeated");
    bench.flush(reply);
    bench.lane.take_in();
    assert!(flushed.try_recv().is_ok());
}

#[tokio::test]
async fn a_release_of_what_was_in_doubt_is_followed_until_no_sending_can_come() {
    let mut bench = Bench::new().await;
    let take = bench.take("a");
    let guard = bench.granted(take).await;
    bench.send(bench.release_of(&guard).0);
    bench.step().await;
    assert_eq!(bench.lane.pending.wakes_at(), None, "it was never in doubt");

    for doubts in [1, 2] {
        let mut bench = Bench::new().await;
        let mut other = bench.other().await;
        let take = bench.doubtful("a", doubts);
        let params = take.0.request.params.clone();
        let guard = bench.granted(take).await;
        let (release, mut outcome) = bench.release_of(&guard);
        bench.send(release);
        bench.step().await;
        assert_eq!(answer(&mut outcome), Some(ReleaseOutcome::Released));
        // The undo finds nothing at first, and no flush waits for it.
        bench.step().await;
        let (reply, mut flushed) = oneshot::channel();
        bench.flush(reply);
        bench.lane.take_in();
        assert!(flushed.try_recv().is_ok());

        for sending in 1..=doubts {
            let late = other
                .lease_take(std::slice::from_ref(&params))
                .await
                .unwrap();
            assert!(
                matches!(late[..], [TakeOutcome::Granted { fence }] if fence > guard.grant().fence())
            );
            while bench.holder("a").await.is_some() {
                bench.step().await;
            }
            assert!(bench.lane.pending.is_idle());
            assert_eq!(bench.lane.pending.wakes_at().is_none(), sending == doubts);
        }
    }
}

#[tokio::test]
async fn a_lease_that_has_run_out_accounts_for_no_sending_however_often_it_is_found() {
    let mut bench = Bench::new().await;
    let mut other = bench.other().await;
    let (mut take, _outcome) = bench.doubtful("a", 2);
    take.head.progress.give_up = Moment::now();
    let params = take.request.params.clone();
    // One sending was granted, and its lease has run out.
    let short = TakeParams {
        ttl: Duration::from_millis(1),
        ..params.clone()
    };
    let early = other.lease_take(&[short]).await.unwrap();
    assert!(matches!(early[..], [TakeOutcome::Granted { .. }]));
    while bench.holder("a").await.is_some() {}
    bench.send(take);
    for _ in 0..4 {
        bench.step().await;
        let again = bench.lane.pending.wakes_at();
        assert!(again.is_some(), "the other one is looked for");
    }
    let late = other.lease_take(&[params]).await.unwrap();
    assert!(matches!(late[..], [TakeOutcome::Granted { .. }]));
    while bench.holder("a").await.is_some() {
        bench.step().await;
    }
}

/// The first sending was granted, and the database's clock was set back by an hour then.
#[tokio::test]
async fn a_grant_with_more_time_than_its_ttl_is_trusted_for_its_ttl() {
    for max_hold in [None, Some(TTL / 2)] {
        let mut bench = Bench::new().await;
        let mut other = bench.other().await;
        let (mut take, outcome) = bench.doubtful("a", 1);
        take.request.wanted.max_hold = max_hold;
        let first = TakeParams {
            ttl: TTL + Duration::from_hours(1),
            ..take.request.params.clone()
        };
        other.lease_take(&[first]).await.unwrap();
        let guard = bench.granted((take, outcome)).await;
        let longest = Moment::now() + max_hold.unwrap_or(TTL);
        assert!(guard.grant().status().deadline <= longest, "{max_hold:?}");
    }
}

#[tokio::test]
async fn a_grant_that_has_run_out_is_no_sending_that_came_late() {
    let mut bench = Bench::new().await;
    let mut other = bench.other().await;
    let (mut take, outcome) = bench.doubtful("a", 1);
    take.request.params.ttl = Duration::from_secs(3);
    take.request.wanted.max_hold = Some(take.request.params.ttl);
    let params = take.request.params.clone();
    let guard = bench.granted((take, outcome)).await;
    while bench.holder("a").await.is_some() {}
    let (release, mut outcome) = bench.release_of(&guard);
    bench.send(release);
    bench.step().await;
    let ended = answer(&mut outcome);
    assert!(matches!(ended, Some(ReleaseOutcome::Lost(_))), "{ended:?}");
    for _ in 0..3 {
        bench.step().await;
        let again = bench.lane.pending.wakes_at();
        assert!(again.is_some(), "the first sending is looked for");
    }
    let late = TakeParams { ttl: TTL, ..params };
    let late = other.lease_take(&[late]).await.unwrap();
    assert!(matches!(late[..], [TakeOutcome::Granted { .. }]));
    while bench.holder("a").await.is_some() {
        bench.step().await;
    }
    assert_eq!(bench.lane.pending.wakes_at(), None);
}

#[tokio::test]
async fn what_undoes_a_release_in_time_looks_for_the_sendings_of_its_acquire_as_well() {
    for doubts in [0, 1, 2] {
        let mut bench = Bench::new().await;
        let mut other = bench.other().await;
        let take = bench.doubtful("a", doubts);
        let params = take.0.request.params.clone();
        let guard = bench.granted(take).await;
        let (release, _outcome) = bench.release_of(&guard);
        bench.lane.pending.arrive(release.into());
        bench
            .lane
            .give_up_in_time(Moment::now() + PATIENCE + PATIENCE);
        bench.step().await;
        assert_eq!(bench.holder("a").await, None);
        for _ in 0..doubts {
            let late = other
                .lease_take(std::slice::from_ref(&params))
                .await
                .unwrap();
            assert!(matches!(late[..], [TakeOutcome::Granted { .. }]));
            assert!(bench.lane.pending.wakes_at().is_some(), "{doubts}");
            while bench.holder("a").await.is_some() {
                bench.step().await;
            }
        }
        assert_eq!(bench.lane.pending.wakes_at(), None, "{doubts}");
    }
}

#[tokio::test]
async fn a_release_that_its_caller_has_waited_for_long_enough_goes_on_without_him() {
    let mut bench = Bench::new().await;
    let take = bench.take("a");
    let guard = bench.granted(take).await;
    let (release, mut outcome) = bench.release_of(&guard);
    bench.lane.pending.arrive(release.into());
    let later = Moment::now() + PATIENCE + PATIENCE;
    bench.lane.give_up_in_time(later);
    assert!(outcome.try_recv().expect("an answer").is_err());
    assert!(bench.holder("a").await.is_some());
    // No flush waits for it: the database may be away.
    let (reply, mut flushed) = oneshot::channel();
    bench.flush(reply);
    bench.lane.take_in();
    assert!(flushed.try_recv().is_ok());
    assert!(!bench.lane.pending.is_idle(), "it goes on");
    bench.step().await;
    assert_eq!(bench.holder("a").await, None);
    assert!(bench.lane.pending.is_idle());
    assert_eq!(bench.lane.pending.wakes_at(), None);
}

#[tokio::test]
async fn an_acquire_that_was_in_doubt_is_undone_also_when_the_name_is_held() {
    let mut bench = Bench::new().await;
    let take = bench.take("a");
    let guard = bench.granted(take).await;
    for doubts in [0, 1] {
        let (take, mut outcome) = bench.doubtful("a", doubts);
        bench.send(take);
        bench.step().await;
        let Some(AcquireAnswer::Not(Busy { holder, .. })) = answer(&mut outcome) else {
            panic!("it is held");
        };
        assert_eq!(holder.unwrap().grant_id, guard.grant().id);
        assert_eq!(bench.lane.pending.wakes_at().is_some(), doubts > 0);
    }
}

#[tokio::test]
async fn an_acquire_whose_caller_is_gone_is_undone_before_what_comes_behind() {
    let mut bench = Bench::new().await;
    let (first, outcome) = bench.doubtful("a", 1);
    // The first acquire has happened.
    let mut other = bench.other().await;
    other
        .lease_take(std::slice::from_ref(&first.request.params))
        .await
        .unwrap();
    drop(outcome);
    let (second, mut outcome) = bench.take("a");
    bench.send(first);
    bench.send(second);
    bench.step().await;
    bench.step().await;
    assert!(matches!(answer(&mut outcome), Some(AcquireAnswer::Held(_))));
    assert_eq!(bench.lane.pending.wakes_at(), None);
}

#[tokio::test]
async fn an_acquire_that_was_sent_is_picked_as_its_undo_when_its_caller_is_gone() {
    let mut bench = Bench::new().await;
    let (waited_for, _outcome) = bench.doubtful("a", 1);
    let (gone, _) = bench.doubtful("b", 1);
    let grant_ids = [
        waited_for.request.params.grant_id,
        gone.request.params.grant_id,
    ];
    bench.lane.pending.arrive(waited_for.into());
    bench.lane.pending.arrive(gone.into());
    let batch = bench.lane.pending.pick(Moment::now());
    let [take, undo] = &batch[..] else {
        panic!("{batch:?}")
    };
    let (take, undo) = (as_take(take).unwrap(), as_release(undo).unwrap());
    assert_eq!(
        [take.request.params.grant_id, undo.request.params.grant_id],
        grant_ids
    );
}

#[tokio::test]
async fn an_acquire_that_was_sent_and_is_given_up_is_undone_in_its_place() {
    let mut bench = Bench::new().await;
    // `None`: not sent. Otherwise it was sent, and was this often in doubt.
    for sent in [None, Some(0), Some(1)] {
        let (mut first, mut outcome) = bench.take("a");
        first.head.progress.sent = sent.is_some();
        first.head.progress.doubts = sent.unwrap_or(0);
        first.head.progress.give_up = Moment::now();
        let grant_id = first.request.params.grant_id;
        bench.lane.pending.arrive(first.into());
        let (second, _outcome) = bench.take("a");
        bench.lane.pending.arrive(second.into());

        let batch = bench.lane.pick();
        let error = outcome.try_recv().unwrap().unwrap_err();
        let is_unknown = matches!(error, Error::OutcomeUnknown { .. });
        assert_eq!(is_unknown, sent == Some(1), "{error}");
        assert_eq!(batch.len(), 1);
        if let Some(doubts) = sent {
            let undo = as_release(&batch[0]).unwrap();
            assert_eq!(
                (undo.request.params.grant_id, undo.request.late),
                (grant_id, doubts)
            );
            assert_eq!(undo.head.manner, Manner::Duty);
            let left = undo.head.progress.give_up.remaining();
            assert!(left <= TTL && left > TTL / 2, "{left:?}");
            assert!(!bench.lane.pending.is_idle());
        } else {
            assert!(as_take(&batch[0]).is_some());
        }
        bench.lane.pending.pick(Moment::now());
    }
}

#[tokio::test]
async fn an_undo_is_repeated_for_ten_minutes_at_most() {
    let bench = Bench::new().await;
    let (mut take, _outcome) = bench.doubtful("a", 1);
    take.request.wanted.ttl = Duration::from_hours(1);
    let now = Moment::now();
    let undo = Job::from(take).undo(now).unwrap();
    assert_eq!(undo.head().progress.give_up, now + Duration::from_mins(10));
    let (take, _outcome) = bench.doubtful("b", 1);
    let undo = Job::from(take).undo(now).unwrap();
    assert_eq!(undo.head().progress.give_up, now + TTL);
    let (take, _outcome) = bench.take("a");
    assert!(Job::from(take).undo(now).is_none(), "it was not sent");
    assert!(inspect("a").0.undo(now).is_none());
}

#[tokio::test]
async fn the_first_waiter_hears_of_a_release() {
    let mut bench = Bench::new().await;
    let name = Name::new("a").unwrap();
    let waiter = bench.core.waiters.join(&name);
    let take = bench.doubtful("a", 1);
    let params = take.0.request.params.clone();
    let guard = bench.granted(take).await;
    for round in 0..2 {
        let mut freed = pin!(waiter.freed());
        let heard = poll_fn(|cx| Poll::Ready(freed.as_mut().poll(cx).is_ready()));
        assert!(!heard.await);
        if round == 0 {
            bench.send(bench.release_of(&guard).0);
        } else {
            // The first sending comes late, and is undone.
            let mut other = bench.other().await;
            other
                .lease_take(std::slice::from_ref(&params))
                .await
                .unwrap();
        }
        while bench.holder("a").await.is_some() {
            bench.step().await;
        }
        let heard = poll_fn(|cx| Poll::Ready(freed.as_mut().poll(cx).is_ready()));
        assert!(heard.await);
    }
}

#[tokio::test]
async fn only_a_release_that_somebody_waits_for_goes_on_after_its_time() {
    let mut bench = Bench::new().await;
    let take = bench.take("a");
    let guard = bench.granted(take).await;
    let (mut release, _outcome) = bench.release_of(&guard);
    assert!(
        release
            .request
            .undo(&release.head.progress, Moment::now())
            .is_some()
    );
    // Its time is the TTL of the lease, and no sending of the acquire was in doubt.
    release.request.reply = None;
    assert!(
        release
            .request
            .undo(&release.head.progress, Moment::now())
            .is_none()
    );
}

#[tokio::test]
async fn a_server_that_takes_no_writes_does_not_answer_for_an_acquire_that_may_have_happened() {
    let mut bench = Bench::new().await;
    let fault = Fault::said(FaultKind::ReadOnly, "a standby");
    let (fresh, mut refused) = bench.take("a");
    let (doubtful, mut waits) = bench.doubtful("b", 1);
    let jobs = [fresh.into(), doubtful.into()];
    let others = bench.lane.refuse_takes(jobs, &fault);
    assert!(matches!(
        refused.try_recv(),
        Ok(Err(Error::ReadOnly { .. }))
    ));
    assert_eq!(others.len(), 1);
    assert!(others[0].head().progress.in_doubt());
    assert!(answer(&mut waits).is_none());
}
