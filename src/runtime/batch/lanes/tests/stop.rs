//! A lane that is stopped, and a client that is shut down: no duty is lost, and the report names unfinished ones.

use super::*;
use crate::runtime::batch::job::Next;
use crate::store::verbs::lock_row::LockRowStore;

const MS: Duration = Duration::from_millis(1);

/// A guard that a lane of the client's own grants.
pub(super) async fn held(core: &Arc<Core>, name: &str) -> Guard {
    let params = TakeParams {
        name: Name::new(name).unwrap(),
        grant_id: Uuid::new_v4(),
        ttl: TTL,
        holder: "test".into(),
        session: None,
    };
    let give_up = Moment::now() + PATIENCE;
    let wanted = core.wanted((&params.name, params.grant_id), TTL, None, None);
    let take = |reply| Take::task(params, wanted, reply, give_up);
    match core.lanes.answer(take).await.unwrap() {
        AcquireAnswer::Held(guard) => guard,
        AcquireAnswer::Not(busy) => panic!("{busy}"),
    }
}

pub(super) fn stop(bench: &Bench, until: Moment) -> oneshot::Receiver<Vec<Unfinished>> {
    let (left, told) = oneshot::channel();
    let stop = Message::Stop(Report { until, left });
    bench.queue.send(stop).unwrap();
    told
}

pub(super) fn names(unfinished: &[Unfinished]) -> Vec<String> {
    unfinished.iter().map(ToString::to_string).collect()
}

/// A slow operation that takes this long.
pub(super) fn slow(core: &Arc<Core>, time: Duration) -> tokio::task::JoinHandle<Result<(), Error>> {
    let core = Arc::clone(core);
    tokio::spawn(async move {
        let work = async move |_: &mut dyn Store| {
            sleep_until(Moment::now() + time).await;
            Ok(())
        };
        core.lanes
            .run_slow(core.lanes.wish(None, "a slow operation"), work)
            .await
    })
}

#[tokio::test]
async fn what_a_lane_drops_after_its_stop_is_released() {
    let mut bench = Bench::new().await;
    bench.redirect();
    let (take, outcome) = bench.take("a");
    bench.send(take);
    let told = stop(&bench, Moment::now() + PATIENCE);
    assert!(bench.lane.gather().await && bench.lane.connect().await);
    let batch = bench.lane.pick();
    // Its caller goes while the statement is in flight: the lane drops the guard.
    drop(outcome);
    bench.lane.execute(batch).await;
    let (
        mut other,
        Bench {
            dir: _dir, lane, ..
        },
    ) = (bench.other().await, bench);
    lane.work().await;
    assert_eq!(told.await.unwrap(), []);
    let name = Name::new("a").unwrap();
    let row = other.lock_inspect(&name).await.unwrap();
    assert!(row.is_none());
}

#[tokio::test]
async fn a_lane_tells_its_duties_in_time_and_goes_on_with_them() {
    let mut bench = Bench::new().await;
    let take = bench.take("a");
    let guard = bench.granted(take).await;
    let (release, released) = bench.release_of(&guard);
    bench.send(release);
    let told = [Moment::now(), Moment::now()].map(|until| stop(&bench, until));
    let (
        mut other,
        Bench {
            dir: _dir, lane, ..
        },
    ) = (bench.other().await, bench);
    lane.work().await;
    for told in told {
        assert_eq!(names(&told.await.unwrap()), ["release \"a\""]);
    }
    assert_eq!(released.await.unwrap().unwrap(), ReleaseOutcome::Released);
    let name = Name::new("a").unwrap();
    assert!(other.lock_inspect(&name).await.unwrap().is_none());
}

#[tokio::test]
async fn what_may_never_come_is_not_waited_for_and_not_told() {
    let mut bench = Bench::new().await;
    let (mut take, _outcome) = bench.doubtful("a", 1);
    take.head.progress.give_up = Moment::now();
    bench.send(take);
    bench.step().await;
    assert!(bench.lane.pending.wakes_at().is_some(), "a vigil");
    let told = stop(&bench, Moment::now() + PATIENCE);
    bench.lane.work().await;
    assert_eq!(told.await.unwrap(), []);
}

#[tokio::test]
async fn a_stopped_lane_does_not_dial_for_what_may_never_come() {
    let mut bench = Bench::new().await;
    let nowhere = Sqlite::from_url("sqlite:/no/such/folder/a.db?mode=rwc").unwrap();
    bench.lane.link = Link::new(nowhere, PATIENCE, &Arc::default());
    let (name, now) = (Name::new("a").unwrap(), Moment::now());
    let waiters = Arc::clone(&bench.core.waiters);
    let undo = release::undo(&name, Uuid::new_v4(), TTL, 1, &waiters, now);
    bench.send(undo.repeated());
    let Bench {
        dir: _dir,
        lane,
        queue,
        ..
    } = bench;
    let (left, told) = oneshot::channel();
    let stops = async {
        sleep_until(now + 50 * MS).await;
        let until = now + PATIENCE;
        queue.send(Message::Stop(Report { until, left })).unwrap();
    };
    let ended = async { tokio::join!(lane.work(), stops) };
    let ended = tokio::time::timeout(PATIENCE / 2, ended).await;
    ended.expect("it goes on dialing");
    assert_eq!(told.await.unwrap(), []);
}

/// Its confirmation was not sent, so it was sent again, and the row is locked: by another client, or by its own grant.
#[tokio::test]
async fn an_acquire_that_was_sent_and_finds_the_row_locked_is_undone() {
    let bench = Bench::new().await;
    let answered = AnswerTime {
        sent: Moment::now(),
        took: MS,
    };
    for sent in [false, true] {
        let (mut take, mut outcome) = bench.take("a");
        take.head.progress.sent = sent;
        let next = Take::settle(take, TakeOutcome::Busy(None), answered);
        assert!(matches!(answer(&mut outcome), Some(AcquireAnswer::Not(_))));
        match next {
            Next::Later(undo) => assert!(sent && as_release(&undo).is_some()),
            _ => assert!(!sent, "it has to be undone"),
        }
    }
}

#[tokio::test]
async fn a_guard_that_is_dropped_while_slow_operations_end_is_released() {
    let bench = Bench::new().await;
    let guard = held(&bench.core, "a").await;
    let slow = slow(&bench.core, 300 * MS);
    while bench
        .core
        .lanes
        .tasks
        .running(TaskKind::SlowOp, u64::MAX)
        .is_empty()
    {
        tokio::task::yield_now().await;
    }
    let drops = async {
        sleep_until(Moment::now() + 50 * MS).await;
        drop(guard);
    };
    let (unfinished, ()) = tokio::join!(bench.core.shut_down(PATIENCE), drops);
    assert_eq!(unfinished, []);
    slow.await.unwrap().unwrap();
    assert!(bench.holder("a").await.is_none());
}

#[tokio::test]
async fn shutdowns_that_overlap_or_are_dropped_lose_nothing() {
    for is_dropped in [false, true] {
        let bench = Bench::new().await;
        let guards = (held(&bench.core, "a").await, held(&bench.core, "b").await);
        let mut other = bench.other().await;
        sql(&mut other, BEGIN_TO_WRITE).await;
        drop(guards);
        let unlock = async {
            sleep_until(Moment::now() + 500 * MS).await;
            sql(&mut other, "ROLLBACK").await;
        };
        let first = bench.core.shut_down(PATIENCE);
        if is_dropped {
            let cut_off = tokio::time::timeout(50 * MS, first).await;
            assert!(cut_off.is_err());
            let (again, ()) = tokio::join!(bench.core.shut_down(PATIENCE), unlock);
            assert_eq!(again, []);
        } else {
            let (first, second, ()) =
                tokio::join!(first, bench.core.shut_down(Duration::ZERO), unlock);
            assert_eq!(first, []);
            assert!(!second.is_empty());
        }
        for name in ["a", "b"] {
            assert!(bench.holder(name).await.is_none(), "{name}");
        }
    }
}

#[tokio::test]
async fn work_that_work_has_spawned_is_waited_for() {
    let bench = Bench::new().await;
    let guard = held(&bench.core, "a").await;
    let tasks = bench.core.lanes.tasks.clone();
    drop(bench.core.lanes.tasks.spawn("a request", async move {
        sleep_until(Moment::now() + 20 * MS).await;
        drop(tasks.spawn("its response", async move {
            sleep_until(Moment::now() + 100 * MS).await;
            let _ = guard.release().await.unwrap();
        }));
    }));
    bench.core.flush().await;
    assert!(bench.holder("a").await.is_none());
    assert_eq!(bench.core.shut_down(PATIENCE).await, []);
}

#[tokio::test]
async fn work_that_flushes_or_shuts_down_does_not_wait_for_itself() {
    let bench = Bench::new().await;
    let (core, tasks) = (Arc::clone(&bench.core), bench.core.lanes.tasks.clone());
    let outer = bench.core.lanes.tasks.spawn("outer", async move {
        let inner = async move {
            core.flush().await;
            core.shut_down(PATIENCE).await
        };
        tasks.spawn("inner", inner).await.unwrap()
    });
    let unfinished = tokio::time::timeout(PATIENCE / 2, outer).await;
    let unfinished = unfinished.expect("it waits for itself").unwrap();
    // It still runs, and may need a lock.
    assert_eq!(names(&unfinished), ["outer"]);
}

#[tokio::test]
async fn a_flush_tells_what_work_has_dropped() {
    let bench = Bench::new().await;
    let guard = held(&bench.core, "a").await;
    let mut other = bench.other().await;
    sql(&mut other, BEGIN_TO_WRITE).await;
    drop(
        bench
            .core
            .lanes
            .tasks
            .spawn("work", async move { drop(guard) }),
    );
    let unlock = async {
        sleep_until(Moment::now() + 300 * MS).await;
        sql(&mut other, "ROLLBACK").await;
    };
    let flush = async {
        bench.core.flush().await;
        assert!(bench.holder("a").await.is_none());
    };
    tokio::join!(flush, unlock);
}

#[tokio::test]
async fn slow_operations_that_come_after_a_shutdown_are_refused_and_guards_are_not() {
    let bench = Bench::new().await;
    let guard = held(&bench.core, "a").await;
    let running = slow(&bench.core, 300 * MS);
    while bench
        .core
        .lanes
        .tasks
        .running(TaskKind::SlowOp, u64::MAX)
        .is_empty()
    {
        tokio::task::yield_now().await;
    }
    let first = bench.core.shut_down(Duration::ZERO).await;
    assert_eq!(first.len(), 2, "{first:?}");
    let late = slow(&bench.core, Duration::ZERO).await.unwrap();
    assert!(matches!(late, Err(Error::ShutDown { .. })), "{late:?}");
    running.await.unwrap().unwrap();
    drop(guard);
    assert_eq!(bench.core.shut_down(PATIENCE).await, []);
    assert!(bench.holder("a").await.is_none());
}

#[tokio::test]
async fn a_task_of_another_client_is_none_of_this_one() {
    let (one, two) = (Bench::new().await, Bench::new().await);
    let (go_on, wait) = oneshot::channel::<()>();
    let core = Arc::clone(&two.core);
    let work = one.core.lanes.tasks.spawn("of one", async move {
        let unfinished = core.shut_down(50 * MS).await;
        unfinished.len()
    });
    drop(two.core.lanes.tasks.spawn("of two", wait));
    assert_eq!(work.await.unwrap(), 1);
    drop(go_on);
}

#[tokio::test]
async fn callers_hear_in_time_that_renewals_keep_the_connection() {
    let mut bench = Bench::new().await;
    let short = Duration::from_millis(300);
    let connector = Sqlite::from_url(&url(bench.dir.path())).unwrap();
    let link = Link::new(connector, short, &Arc::default());
    let mut urgent = link.beside().urgent();
    let (queue, received) = mpsc::unbounded_channel();
    bench.lane = Lane::new(link, received, Sqlite::REQUEST, "test".into());
    bench.queue = queue;
    // It has something to send, and does not send it.
    urgent.connect().await.unwrap();
    urgent.set_largest(usize::MAX);
    let mut answers = Vec::new();
    // Each is a statement of its own: together they would wait for longer than this test.
    for name in 0..200 {
        let (mut job, found) = inspect(&format!("n{name}"));
        job.head_mut().progress.give_up = Moment::now() + short;
        bench.send(job);
        answers.push(found);
    }
    let Bench { lane, queue, .. } = bench;
    let all = async {
        for answer in answers {
            let error = answer.await.unwrap().unwrap_err();
            assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        }
    };
    let answered = async {
        select! {
            () = all => {}
            () = lane.work() => unreachable!("it has a queue"),
        }
    };
    tokio::time::timeout(PATIENCE, answered)
        .await
        .expect("each caller is answered");
    drop(queue);
}
