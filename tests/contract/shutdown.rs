//! The end of a client: in order, within a limit, and what did not end is told.

use std::pin::pin;
use std::time::Duration;

use rowlock::{Begun, Error, Fingerprint, Name, Outcome, Scope, Subject, Unfinished};
use rowlock_test::{
    App, Db, loss, on_app, on_every_engine, queue_is, queue_of, release, renewed, take,
};
use tokio::sync::oneshot;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(200);

fn lock(name: &str) -> Subject {
    Subject::Lock(Name::new(name).unwrap())
}

fn names(unfinished: &[Unfinished]) -> Vec<String> {
    unfinished.iter().map(ToString::to_string).collect()
}

on_every_engine! {
    async fn what_was_dropped_is_told_to_the_database_and_nothing_is_granted_any_more(db: &Db) {
        let (rowlock, other) = (db.rowlock().await, db.rowlock().await);
        for n in 0..50 {
            drop(take(&rowlock, &format!("n{n}"), LONG).await);
        }
        let key = rowlock.idempotency().begin(Scope("me").key("k"), Fingerprint::of("request")).await.unwrap();
        drop(key);
        let unfinished = rowlock.clone().shutdown(LONG).await;
        assert!(unfinished.is_empty(), "{unfinished:?}");
        assert!(other.admin().list().await.unwrap().is_empty());
        let again = other.idempotency().begin(Scope("me").key("k"), Fingerprint::of("request")).await.unwrap();
        assert!(matches!(again, Begun::New(_)), "{again:?}");

        for _ in 0..2 {
            let refused = rowlock.lock("a").try_acquire().await.unwrap_err();
            assert!(matches!(refused, Error::ShutDown { .. }), "{refused}");
            let refused = rowlock.idempotency().begin(Scope("me").key("l"), Fingerprint::of("request")).await;
            assert!(matches!(refused, Err(Error::ShutDown { .. })), "{refused:?}");
            let mut tx = db.begin().await;
            let refused = tx.try_lock(&rowlock, "b").await;
            assert!(matches!(refused, Err(Error::ShutDown { .. })), "{refused:?}");
            let refused = tx.acquire(&rowlock, "b", LONG).await;
            assert!(matches!(refused, Err(Error::ShutDown { .. })), "{refused:?}");
            tx.release().await;
            for lock in [rowlock.lock("a"), rowlock.lock("a").in_session(), rowlock.lock("a").linger(LONG)] {
                let refused = lock.acquire().await.unwrap_err();
                assert!(matches!(refused, Error::ShutDown { .. }), "{refused}");
            }
            assert_eq!(db.number("SELECT COUNT(*) FROM rowlock_session").await, 0);
            let refused: Result<_, Error> = on_app!(&db.app, pool => {
                rowlock.idempotency().run_in_tx(pool, Scope("me").key("m"), Fingerprint::of("request"), async |_| {
                    Outcome::json(&"done")
                }).await
            });
            assert!(matches!(refused, Err(Error::ShutDown { .. })), "{refused:?}");
            // It may be called again.
            assert!(rowlock.shutdown(LONG).await.is_empty());
        }
    }

    async fn what_comes_later_needs_no_connection_to_hear_it(db: &Db) {
        let rowlock = db.rowlock().await;
        let tokens = rowlock.form_tokens();
        let token = tokens.issue("me").await.unwrap();
        rowlock.shutdown(LONG).await;
        let app = App::connect(&db.url, 1).await;
        let kept = app.begin().await;
        let refused: Result<_, Error> = on_app!(&app, pool => {
            rowlock.idempotency().run_in_tx(pool, Scope("me").key("k"), Fingerprint::of("request"), async |_| {
                Outcome::json(&"done")
            }).await
        });
        let form: Result<_, Error> = on_app!(&app, pool => {
            let token = Scope("me").key(token.as_str());
            tokens.submit(pool, token, Fingerprint::of("form"), async |_| Outcome::json(&"done")).await
        });
        assert!(matches!(refused, Err(Error::ShutDown { .. })), "{refused:?}");
        assert!(matches!(form, Err(Error::ShutDown { .. })), "{form:?}");
        kept.release().await;
    }

    async fn a_guard_that_is_left_is_reported_and_stays_good(db: &Db) {
        let rowlock = db.rowlock().await;
        let held = take(&rowlock, "a", Duration::from_secs(4)).await;
        let request = Fingerprint::of("request");
        let begun = rowlock.idempotency().begin(Scope("me").key("k"), request).await.unwrap();
        let Begun::New(attempt) = begun else {
            panic!("{begun:?}")
        };
        let unfinished = rowlock.shutdown(LONG).await;
        let mut names = names(&unfinished);
        names.sort();
        assert_eq!(names, ["hold \"a\"", "hold the record \"k\" of \"me\""]);
        assert!(unfinished.iter().any(|left| left.on == Some(lock("a"))));
        renewed(&held).await;
        attempt.complete(&Outcome::json(&"done").unwrap()).await.unwrap();
        held.release().await.unwrap();
        assert!(rowlock.shutdown(LONG).await.is_empty());
        let again = db.rowlock().await.idempotency().begin(Scope("me").key("k"), request).await;
        assert!(matches!(again, Ok(Begun::Replay(_))), "{again:?}");
    }

    async fn a_wait_that_nobody_polls_leaves_the_queue(db: &Db) {
        let (rowlock, other) = (db.rowlock().await, db.rowlock().await);
        let (_kept, taken) = (take(&rowlock, "a", LONG).await, take(&other, "b", LONG).await);
        let lock = rowlock.lock("b").holder("waiter");
        let mut waits = pin!(lock.acquire());
        tokio::select! {
            biased;
            ended = &mut waits => panic!("{ended:?}"),
            () = queue_is(&other, "b", &["waiter"]) => {}
        }
        let unfinished = rowlock.shutdown(LONG).await;
        assert_eq!(names(&unfinished), ["hold \"a\""]);
        assert_eq!(queue_of(&other, "b").await.len(), 0);
        let ended = waits.await.unwrap_err();
        assert!(matches!(ended, Error::ShutDown { .. }), "{ended}");
        release(&taken).await;
    }

    async fn work_that_goes_on_is_waited_for_and_told_when_it_takes_too_long(db: &Db) {
        let rowlock = db.rowlock().await;
        let (go_on, wait) = oneshot::channel::<()>();
        let held = take(&rowlock, "a", LONG).await;
        drop(rowlock.spawn("a letter", async move {
            let _ = wait.await;
            held.release().await
        }));
        let unfinished = rowlock.shutdown(SHORT).await;
        let mut names = names(&unfinished);
        names.sort();
        assert_eq!(names, ["a letter", "hold \"a\""]);
        drop(go_on);

        let rowlock = db.rowlock().await;
        let (go_on, wait) = oneshot::channel();
        let held = take(&rowlock, "b", LONG).await;
        let locks = rowlock.clone();
        let work = rowlock.spawn("a letter", async move {
            let _ = wait.await;
            let next = locks.lock("d").acquire().await.unwrap();
            next.release().await.unwrap();
            held.release().await
        });
        let all = rowlock.clone();
        let shutdown = tokio::spawn(async move { all.shutdown(LONG).await });
        while rowlock.lock("c").try_acquire().await.is_ok() {}
        // What the work needs to end well is there, also a lock.
        go_on.send(()).unwrap();
        work.await.unwrap().unwrap();
        assert!(shutdown.await.unwrap().is_empty());
    }

    async fn the_guard_of_a_lost_lock_is_not_reported_and_the_others_are_sorted(db: &Db) {
        let (rowlock, other) = (db.rowlock().await, db.rowlock().await);
        let lost = take(&rowlock, "lost", LONG).await;
        let mut held = Vec::new();
        for name in ["c", "a", "d", "b"] {
            held.push(take(&rowlock, name, LONG).await);
        }
        let dropped = take(&rowlock, "dropped", LONG).await;
        for lost in [&lost, &dropped] {
            other.admin().force_release(lost.name().clone()).await.unwrap();
            let mut tx = db.begin().await;
            tx.pin(lost).await.unwrap_err();
            tx.release().await;
            assert!(!lost.is_held());
        }
        let unfinished = rowlock.shutdown(LONG).await;
        assert_eq!(names(&unfinished), ["hold \"a\"", "hold \"b\"", "hold \"c\"", "hold \"d\""]);
        drop(held);
        assert!(rowlock.shutdown(LONG).await.is_empty());
        assert!(loss(lost.release().await).is_some());
        drop(dropped);
        assert!(rowlock.shutdown(LONG).await.is_empty());
        assert!(other.admin().list().await.unwrap().is_empty());
    }

    async fn a_flush_waits_for_work_that_was_spawned_before_it(db: &Db) {
        let rowlock = db.rowlock().await;
        let (go_on, wait) = oneshot::channel::<()>();
        let work = rowlock.spawn("a letter", wait);
        let flush = rowlock.flush();
        tokio::pin!(flush);
        let soon = tokio::time::timeout(SHORT, &mut flush).await;
        assert!(soon.is_err());
        go_on.send(()).unwrap();
        flush.await;
        work.await.unwrap().unwrap();
    }

    async fn a_release_that_a_transaction_holds_up_is_told(db: &Db) {
        let rowlock = db.rowlock().await;
        let held = take(&rowlock, "a", LONG).await;
        let mut tx = db.begin().await;
        tx.pin(&held).await.unwrap();
        drop(held);
        let unfinished = rowlock.shutdown(SHORT).await;
        // While a lane waits for the answer to a statement, it is told as a whole.
        let told = ["release \"a\"", "the thread rowlock-lanes"];
        let names = names(&unfinished);
        assert!(matches!(&names[..], [name] if told.contains(&name.as_str())), "{names:?}");
        tx.release().await;
    }
}
