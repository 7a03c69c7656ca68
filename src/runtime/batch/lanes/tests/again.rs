//! Sending jobs again: in how many statements, and with which answers.

use super::*;

#[tokio::test]
async fn acquires_that_a_busy_file_has_refused_share_statements() {
    let mut bench = Bench::new().await;
    let mut other = bench.other().await;
    sql(&mut other, BEGIN_TO_WRITE).await;
    let mut outcomes = Vec::new();
    for n in 0..MAX_BATCH {
        let (take, outcome) = bench.take(&format!("n{n}"));
        bench.send(take);
        outcomes.push(outcome);
    }
    bench.step().await;
    assert!(outcomes.iter_mut().all(|outcome| answer(outcome).is_none()));
    let detail = bench.lane.trouble.detail();
    assert!(detail.contains("locked"), "{detail}");
    assert_eq!(bench.lane.pending.moments().len(), 1);

    sql(&mut other, "ROLLBACK").await;
    let before = bench.commits();
    bench.step().await;
    let commits = bench.commits() - before;
    assert!((1..=2).contains(&commits), "{commits} commits");
    for outcome in &mut outcomes {
        let attempt = answer(outcome).expect("an answer");
        assert!(matches!(attempt, AcquireAnswer::Held(guard) if guard.grant().is_held()));
    }
}

#[tokio::test]
async fn releases_that_a_busy_file_has_refused_share_a_statement_and_those_behind_go_back() {
    let mut bench = Bench::new().await;
    let mut guards = Vec::new();
    let mut before = 0;
    for n in 0..20 {
        let take = bench.take(&format!("n{n}"));
        guards.push(bench.granted(take).await);
        if n == 0 {
            before = bench.commits();
        }
    }
    assert_eq!(
        bench.commits() - before,
        19,
        "what is granted in time is not confirmed"
    );
    let mut other = bench.other().await;
    sql(&mut other, BEGIN_TO_WRITE).await;
    let mut outcomes = Vec::new();
    for guard in &guards {
        let (release, outcome) = bench.release_of(guard);
        bench.send(release);
        outcomes.push(outcome);
    }
    let (take, mut taken) = bench.take("together");
    bench.send(take);
    let mut behind = ["n0", "behind"].map(|name| {
        let (look, found) = inspect(name);
        bench.send(look);
        found
    });
    bench.step().await;
    // The acquire was in the refused statement. The jobs after it were not tried, and keep their order.
    assert!(answer(&mut taken).is_none());
    let untried = behind.each_mut().map(|found| answer(found).is_none());
    assert_eq!(untried, [true, true]);
    let batch = bench.lane.pending.pick(Moment::now());
    let order: Vec<_> = batch.iter().map(|job| job.head().doing).collect();
    assert_eq!(order, ["inspect", "inspect"]);

    sql(&mut other, "ROLLBACK").await;
    let before = bench.commits();
    bench.step().await;
    // The releases, the acquire, and its confirmation.
    assert!(bench.commits() - before <= 3);
    for outcome in &mut outcomes {
        assert_eq!(answer(outcome), Some(ReleaseOutcome::Released));
    }
    assert!(matches!(answer(&mut taken), Some(AcquireAnswer::Held(_))));
}

#[tokio::test]
async fn an_operation_that_is_refused_for_good_fails_alone_after_few_statements() {
    let mut bench = Bench::new().await;
    let mut outcomes = Vec::new();
    for n in 0..64 {
        let (mut take, outcome) = bench.take(&format!("n{n}"));
        if n == 17 {
            // No column takes the resulting value.
            take.request.params.ttl = Duration::MAX;
        }
        bench.send(take);
        outcomes.push(outcome);
    }
    let before = bench.commits();
    bench.step().await;
    // 64 are halved six times; each half that is whole is granted and confirmed.
    let commits = bench.commits() - before;
    assert!((6..=2 * 6).contains(&commits), "{commits} commits");
    // It was sent, and may have happened (where a statement for many is not all or nothing).
    let batch = bench.lane.pick();
    assert_eq!(batch.len(), 1);
    let undo = as_release(&batch[0]).expect("an undo");
    assert_eq!(undo.request.params.name.as_str(), "n17");
    for (n, outcome) in outcomes.iter_mut().enumerate() {
        match outcome.try_recv().expect("an answer") {
            Ok(AcquireAnswer::Held(_)) => assert_ne!(n, 17),
            other => assert_eq!(n, 17, "{other:?}"),
        }
    }
}

#[tokio::test]
async fn releases_that_are_refused_for_good_are_all_answered() {
    let mut bench = Bench::new().await;
    let (mut guards, mut outcomes) = (Vec::new(), Vec::new());
    for n in 0..5 {
        let take = bench.take(&format!("n{n}"));
        guards.push(bench.granted(take).await);
    }
    for guard in &guards {
        let (release, outcome) = bench.release_of(guard);
        bench.lane.pending.arrive(release.into());
        outcomes.push(outcome);
    }
    sql(&mut bench.other().await, "DROP TABLE rowlock_lock").await;
    let batch = bench.lane.pick();
    bench.lane.execute(batch).await;
    for outcome in &mut outcomes {
        let error = outcome.try_recv().expect("an answer").unwrap_err();
        assert!(error.to_string().contains("rowlock_lock"), "{error}");
    }
}

#[tokio::test]
async fn a_grant_whose_answer_came_late_is_confirmed() {
    let mut bench = Bench::new().await;
    let mut other = bench.other().await;
    let ttl = Duration::from_secs(6);
    // SQLite itself waits for the file, for as long as it takes.
    bench.lane.link.connect().await.unwrap();
    let mut waiting = bench.other().await;
    sql(&mut waiting, "PRAGMA busy_timeout = 60000").await;
    let waiting = <Sqlite as Connector>::Connection::without_turns(waiting);
    bench.lane.link.put(Box::new(waiting));
    sql(&mut other, BEGIN_TO_WRITE).await;
    let (mut take, mut outcome) = bench.take("a");
    take.request.params.ttl = ttl;
    bench.send(take);
    // The statement waits for the file, for more than a sixth of the TTL.
    let release = async {
        sleep_until(Moment::now() + ttl / 5).await;
        let now = Moment::now();
        sql(&mut other, "ROLLBACK").await;
        now
    };
    let ((), released) = tokio::join!(bench.step(), release);
    let Some(AcquireAnswer::Held(guard)) = answer(&mut outcome) else {
        panic!("the name is free")
    };
    // Five sixths of the TTL are trusted. Counted from before the statement, the deadline would come a fifth of that
    // earlier.
    assert!(guard.grant().status().deadline > released + ttl * 2 / 3);
}

#[tokio::test]
async fn a_lease_with_a_cap_is_renewed_up_to_it() {
    let mut bench = Bench::new().await;
    let (mut take, outcome) = bench.take("a");
    take.request.wanted.max_hold = Some(TTL * 2);
    let guard = bench.granted((take, outcome)).await;
    let now = Moment::now();
    let may_ask = guard.grant().renewal_ttl(now);
    assert_eq!(may_ask, Some(TTL), "the cap is far");
    let cap = now + TTL * 2;
    guard.grant().confirm(now, now + TTL * 2, TTL);
    assert_eq!(guard.grant().renewal_ttl(now), None);
    assert!(guard.grant().status().deadline <= cap);
}

#[tokio::test]
async fn a_broken_connection_leaves_all_of_a_batch_in_doubt_but_looks() {
    let mut bench = Bench::new().await;
    let (take, _outcome) = bench.take("a");
    let (look, _found) = inspect("b");
    let (reply, mut forced) = oneshot::channel();
    let name = Name::new("c").unwrap();
    let progress = Progress::within(PATIENCE);
    let head = JobHead::new(
        Subject::Lock(name.clone()),
        "force release",
        Manner::Order,
        progress,
    );
    let free =
        async move |store: &mut dyn Store| store.lease_force_release(&name, None, PATIENCE).await;
    let jobs = vec![take.into(), look, alone(head, free, reply).into()];
    assert!(bench.lane.failed(jobs, Fault::timed_out()).is_empty());
    // A forced release tells whom it has freed, so that it is never sent twice.
    let error = forced.try_recv().unwrap().unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
    let batch = bench.lane.pick();
    let progresses: Vec<_> = batch.iter().map(|job| job.head().progress).collect();
    let doubts: Vec<_> = progresses
        .iter()
        .map(|progress| (progress.sent, progress.doubts))
        .collect();
    assert_eq!(doubts, [(true, 1), (true, 0)]);
    // After another break, one more sending may come.
    bench.lane.failed(batch, Fault::timed_out());
    assert_eq!(bench.lane.pick()[0].head().progress.doubts, 2);
}

/// A server that ends the connection under every statement with the guilty job.
async fn with_a_guilty_one(kind: FaultKind, expected: &[usize]) {
    let mut bench = Bench::new().await;
    let mut outcomes = Vec::new();
    for n in 0..64 {
        let (take, outcome) = bench.take(&format!("n{n}"));
        bench.send(take);
        outcomes.push(outcome);
    }
    let guilty = Some(Subject::Lock(Name::new("n17").unwrap()));
    let is_guilty = |job: &Job| job.head().subject == guilty;
    let (mut broken, mut answered) = (Vec::new(), 0);
    while answered < 63 {
        assert!(bench.lane.gather().await && bench.lane.connect().await);
        let batch = bench.lane.pick();
        if batch.iter().any(is_guilty) {
            broken.push(batch.len());
            bench.lane.link.hang_up().await;
            let fault = Fault::said(kind, "too large");
            assert!(bench.lane.failed(batch, fault).is_empty());
            assert!(
                broken.len() < 40,
                "the others wait for the guilty one: {broken:?}"
            );
            // Making a new connection takes longer than the pause of the guilty job.
            if let Some(at) = bench.lane.pending.wakes_at() {
                sleep_until(at).await;
            }
        } else {
            answered += batch.len();
            bench.lane.execute(batch).await;
        }
    }
    let (first, rest) = broken.split_at(expected.len());
    assert_eq!(first, expected, "{kind:?}");
    // The guilty job is tried again, alone, between the others.
    assert!(rest.iter().all(|size| *size == 1), "{rest:?}");
    for (n, outcome) in outcomes.iter_mut().enumerate() {
        match (n, outcome.try_recv()) {
            (17, answer) if kind == FaultKind::TooLarge => {
                let error = answer.expect("an answer").unwrap_err();
                assert!(error.to_string().contains("too large"), "{error}");
            }
            (17, answer) => assert!(matches!(answer, Err(TryRecvError::Empty))),
            (_, answer) => assert!(matches!(answer, Ok(Ok(AcquireAnswer::Held(_)))), "n{n}"),
        }
    }
}

#[tokio::test]
async fn what_breaks_the_connection_again_is_sent_with_fewer_others_and_at_last_alone_between_them()
{
    with_a_guilty_one(FaultKind::Disconnected, &[64, 64, 4, 1]).await;
}

#[tokio::test]
async fn what_the_server_finds_too_large_is_sent_with_fewer_others_and_refused() {
    with_a_guilty_one(FaultKind::TooLarge, &[64, 4, 1]).await;
}

#[tokio::test]
async fn a_server_that_takes_no_writes_refuses_an_acquire_at_once_and_is_asked_again_for_a_release()
{
    let mut bench = Bench::new().await;
    let fresh = bench.take("held");
    let guard = bench.granted(fresh).await;
    bench.lane.strike(Fault::timed_out());
    let (take, mut outcome) = bench.take("a");
    let (release, _released) = bench.release_of(&guard);
    let fault = Fault {
        kind: FaultKind::ReadOnly,
        ..Fault::timed_out()
    };
    let before = Moment::now();
    let jobs = vec![take.into(), release.into()];
    assert!(bench.lane.failed(jobs, fault).is_empty());
    assert!(bench.lane.trouble.dial_at() > before, "a strike");
    let refused = outcome.try_recv().expect("an answer").unwrap_err();
    assert!(matches!(refused, Error::ReadOnly { .. }), "{refused}");
    let at = bench.lane.pending.wakes_at().expect("it is put off");
    bench.lane.pending.wake(at);
    assert_eq!(bench.lane.pick()[0].head().progress.doubts, 0);
}

#[tokio::test]
async fn acquires_do_not_wait_for_a_release_that_a_server_without_writes_has_refused() {
    let mut bench = Bench::new().await;
    let fresh = bench.take("held");
    let guard = bench.granted(fresh).await;
    let (release, _released) = bench.release_of(&guard);
    bench.send(release);
    let (take, mut outcome) = bench.take("held");
    bench.send(take);
    bench.lane.take_in();
    let batch = bench.lane.pick();
    assert_eq!(batch.len(), 1, "the release goes first");
    let fault = Fault {
        kind: FaultKind::ReadOnly,
        ..Fault::timed_out()
    };
    assert!(bench.lane.failed(batch, fault).is_empty());
    let refused = outcome.try_recv().expect("an answer").unwrap_err();
    assert!(matches!(refused, Error::ReadOnly { .. }), "{refused}");
    assert!(bench.lane.pending.is_idle());
    // The jobs in the batch are refused after it.
    assert!(bench.lane.read_only.is_some());
}

#[tokio::test]
async fn a_statement_that_succeeds_ends_the_trouble() {
    let mut bench = Bench::new().await;
    for _ in 0..5 {
        bench.lane.strike(Fault::timed_out());
    }
    let dial_at = bench.lane.trouble.dial_at();
    assert!(!dial_at.has_passed());
    let (look, mut found) = inspect("a");
    bench.send(look);
    bench.step().await;
    assert_eq!(answer(&mut found), Some(None));
    assert!(dial_at.has_passed(), "the connection was made before");
    bench.lane.strike(Fault::timed_out());
    assert!(bench.lane.trouble.dial_at().has_passed());
}

#[test]
fn an_answer_is_late_after_a_sixth_of_the_ttl() {
    let ttl = Duration::from_millis(600);
    let sent = Moment::now();
    let after = |ms| AnswerTime {
        sent,
        took: Duration::from_millis(ms),
    };
    assert!(!after(100).is_stale(ttl));
    assert!(after(101).is_stale(ttl));
}

#[tokio::test]
async fn an_error_says_what_was_tried() {
    let mut bench = Bench::new().await;
    let take = bench.take("a");
    let guard = bench.granted(take).await;
    let (take, _outcome) = bench.take("b");
    let (look, _found) = inspect("a");
    for (job, doing) in [
        (Job::from(take), "acquire"),
        (bench.release_of(&guard).0.into(), "release"),
        (look, "inspect"),
    ] {
        assert_eq!(job.head().doing, doing);
    }
}
