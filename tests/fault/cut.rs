//! Promise 7 (unknown is a state): connections that are cut after the request.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rowlock::{Begun, Engine, Error, Fingerprint, Outcome, Rowlock, Scope, StepFailed};
use rowlock_test::{Db, Mode, loss, renewals_are_connected, through_proxy};

/// The answer to an acquire or a release is lost after the server has run it. The client finds the outcome out, and
/// reports it correctly.
pub(crate) async fn cut(engine: Engine) {
    let db = Db::new(engine).await;
    let (proxy, url) = through_proxy(&db).await;
    let (rowlock, watcher) = (Rowlock::connect(&url).await.unwrap(), db.rowlock().await);
    for round in 0..20 {
        let lock = rowlock
            .lock(format!("n{}", round % 5))
            .ttl(Duration::from_mins(5));
        // A new connection first prepares the statement. This run does that, so that the next one loses the answer to
        // the execution.
        let _ = loss(lock.acquire().await.unwrap().release().await);
        proxy.set(Mode::CutNextAnswer);
        let held = lock
            .try_acquire()
            .await
            .unwrap()
            .expect("nobody else wants it");
        assert_eq!(proxy.mode(), Mode::Pass, "an answer was cut");
        let row = watcher
            .inspect(held.name().clone())
            .await
            .unwrap()
            .expect("it is in the table");
        assert_eq!(row.fence, held.fence(), "the grant is the one in the table");
        assert!(held.is_held() && held.remaining() <= row.remaining);
        let _ = loss(held.release().await);

        let held = lock.acquire().await.unwrap();
        proxy.set(Mode::CutNextAnswer);
        let _ = loss(held.release().await);
        assert_eq!(proxy.mode(), Mode::Pass, "an answer was cut");
        assert_eq!(watcher.inspect(held.name().clone()).await.unwrap(), None);
    }
    // A re-entry and its release ask no server, so there is no answer to cut.
    let me = rowlock.owner();
    let lock = rowlock.lock("nested").owner(&me);
    let outer = lock.acquire().await.unwrap();
    proxy.set(Mode::CutNextAnswer);
    for _ in 0..10 {
        let inner = lock.acquire().await.unwrap();
        inner.release().await.unwrap();
    }
    assert_eq!(proxy.mode(), Mode::CutNextAnswer, "nothing was asked");
    proxy.set(Mode::Pass);
    assert!(outer.is_held());
    drop(outer);
    rowlock.flush().await;
    assert_eq!(watcher.admin().list().await.unwrap(), []);
    db.remove().await;
}

/// The connection breaks during a statement for more than 100 acquires. The client finds out all their outcomes with a
/// few statements.
pub(crate) async fn shared_after_a_cut(engine: Engine) {
    const COUNT: usize = 256;
    let db = Db::new(engine).await;
    let (proxy, url) = through_proxy(&db).await;
    let (rowlock, watcher) = (Rowlock::connect(&url).await.unwrap(), db.rowlock().await);
    renewals_are_connected(&rowlock).await;
    let lock = |n| rowlock.lock(format!("n{n}")).ttl(Duration::from_mins(5));
    let locks: Vec<_> = (0..COUNT).map(lock).collect();
    for armed in [false, true] {
        let mut takes: Vec<_> = locks.iter().map(|lock| Box::pin(lock.acquire())).collect();
        // One acquire is under way on each lane, and all others wait in the queues.
        proxy.set(Mode::HoldAnswers);
        let hand_in = std::future::poll_fn(|cx| {
            for take in &mut takes {
                assert!(take.as_mut().poll(cx).is_pending());
            }
            std::task::Poll::Ready(())
        });
        tokio::task::unconstrained(hand_in).await;
        let before = proxy.requests();
        proxy.set(if armed {
            Mode::CutNextAnswer
        } else {
            Mode::Pass
        });
        let mut held = Vec::new();
        for take in takes {
            held.push(take.await.unwrap());
        }
        let said = proxy.requests() - before;
        assert_eq!(proxy.mode(), Mode::Pass, "an answer was cut");
        assert!(
            said < 60,
            "{said} requests for {COUNT} acquires, cut: {armed}"
        );
        assert!(held.iter().all(rowlock::Held::is_held));
        assert_eq!(watcher.admin().list().await.unwrap().len(), COUNT);
        drop(held);
        rowlock.flush().await;
        assert_eq!(watcher.admin().list().await.unwrap(), []);
    }
    db.remove().await;
}

/// The answer to any statement about a record is lost after the server has run it. Each step happens once, each
/// outcome is kept once, and every caller gets the right outcome.
pub(crate) async fn records(engine: Engine) {
    let db = Db::new(engine).await;
    let (proxy, url) = through_proxy(&db).await;
    let (rowlock, watcher) = (Rowlock::connect(&url).await.unwrap(), db.rowlock().await);
    let (idempotency, watcher) = (rowlock.idempotency(), watcher.idempotency());
    let request = Fingerprint::of("request");
    let charges = AtomicU32::new(0);
    for round in 0..40_u32 {
        let key = format!("k{round}");
        let cut = |place: u32| {
            if round % 5 == place {
                proxy.set(Mode::CutNextAnswer);
            }
        };
        cut(0);
        let begun = idempotency
            .begin(Scope("scope").key(&key), request)
            .await
            .unwrap();
        let Begun::New(guard) = begun else {
            panic!("{key}: {begun:?}")
        };
        assert_eq!(proxy.mode(), Mode::Pass, "an answer was cut");
        cut(1);
        let charge = async {
            // Only this step counts, so that a repeated step shows.
            let number = charges.fetch_add(1, Ordering::SeqCst);
            cut(2);
            Ok::<u32, StepFailed<Error>>(number)
        };
        assert_eq!(guard.step_once("charge", charge).await.unwrap(), round);
        assert_eq!(proxy.mode(), Mode::Pass, "an answer was cut");
        cut(3);
        if round % 2 == 0 {
            guard
                .complete(&Outcome::json(&round).unwrap())
                .await
                .unwrap();
        } else {
            guard.release().await.unwrap();
            let again = idempotency
                .begin(Scope("scope").key(&key), request)
                .await
                .unwrap();
            let Begun::New(guard) = again else {
                panic!("{key}: {again:?}")
            };
            let charge =
                async { Ok::<u32, StepFailed<Error>>(charges.fetch_add(1, Ordering::SeqCst)) };
            assert_eq!(guard.step_once("charge", charge).await.unwrap(), round);
            guard
                .complete(&Outcome::json(&round).unwrap())
                .await
                .unwrap();
        }
        cut(4);
        for idempotency in [&idempotency, &watcher] {
            let begun = idempotency
                .begin(Scope("scope").key(&key), request)
                .await
                .unwrap();
            let Begun::Replay(outcome) = begun else {
                panic!("{key}: {begun:?}")
            };
            assert_eq!(outcome.parse_json::<u32>().unwrap(), round);
        }
        assert_eq!(proxy.mode(), Mode::Pass, "an answer was cut");
    }
    assert_eq!(charges.into_inner(), 40);
    db.remove().await;
}
