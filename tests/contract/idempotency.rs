//! Promise 8: for one scope and key at most one effect commits, and everybody gets its outcome.

use std::time::Duration;

use rowlock::{
    Begun, Error, Fingerprint, Idempotency, IdempotencyGuard, Outcome, RecordState, Rowlock,
};
use rowlock_test::{Db, lapse, on_app, on_every_engine, on_tx};
use tokio::task::JoinSet;

const SHORT: Duration = Duration::from_secs(2);

fn request() -> Fingerprint {
    Fingerprint::of("request")
}

fn outcome(text: &str) -> Outcome {
    Outcome::new("text/plain", text).unwrap()
}

async fn begin(idempotency: &Idempotency, key: &str) -> Begun<IdempotencyGuard> {
    idempotency.begin("scope", key, &request()).await.unwrap()
}

/// The guard of an attempt that must be had.
async fn new(idempotency: &Idempotency, key: &str) -> IdempotencyGuard {
    match begin(idempotency, key).await {
        Begun::New(guard) => guard,
        other => panic!("not new: {other:?}"),
    }
}

/// Waits until the attempt of somebody who has vanished is taken over.
async fn take_over(idempotency: &Idempotency, key: &str) -> IdempotencyGuard {
    new(&idempotency.clone().wait(Duration::from_secs(30)), key).await
}

async fn table(db: &Db) {
    db.execute("CREATE TABLE payment (id VARCHAR(40) NOT NULL)")
        .await;
}

async fn payments(db: &Db) -> i64 {
    db.number("SELECT COUNT(*) FROM payment").await
}

on_every_engine! {
    async fn the_second_one_gets_the_outcome_of_the_first(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        let guard = new(&idempotency, "k").await;
        let Begun::InFlight(in_flight) = begin(&idempotency, "k").await else { panic!("in flight") };
        let left = in_flight.remaining.unwrap();
        assert!(left > Duration::from_secs(20) && left <= Duration::from_secs(30), "{left:?}");
        assert!(in_flight.until.is_some() && in_flight.holder.is_some());
        guard.complete(&outcome("done\0\u{e9}")).await.unwrap();
        for client in [&rowlock, &db.rowlock().await] {
            let Begun::Replay(replay) = begin(&client.idempotency(), "k").await else { panic!("replay") };
            assert_eq!(replay.bytes(), "done\0\u{e9}".as_bytes());
            assert_eq!(replay.content_type(), "text/plain");
        }
        let info = idempotency.inspect("scope", "k").await.unwrap().unwrap();
        assert_eq!((info.state, info.vanished), (RecordState::Done, 0));
        assert_eq!(info.outcome.unwrap().bytes(), "done\0\u{e9}".as_bytes());
    }

    async fn keys_and_scopes_are_bytes(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        let names: [&[u8]; 7] = [b"a", b"A", b"a ", b"a\0", b"\xff\xfe", "\u{e1}".as_bytes(), &[7; 255]];
        let mut guards = Vec::new();
        for scope in names {
            for key in names {
                match idempotency.begin(scope, key, &request()).await.unwrap() {
                    Begun::New(guard) => guards.push(guard),
                    other => panic!("{scope:?} {key:?}: {other:?}"),
                }
            }
        }
        for guard in guards {
            let whole = [guard.record().scope(), guard.record().key()].concat();
            guard.complete(&Outcome::new("b", whole).unwrap()).await.unwrap();
        }
        for scope in names {
            for key in names {
                let begun = idempotency.begin(scope, key, &request()).await.unwrap();
                let Begun::Replay(replay) = begun else { panic!("replay") };
                assert_eq!(replay.bytes(), [scope, key].concat());
            }
        }
    }

    async fn another_request_under_the_key_is_refused_also_while_the_first_runs(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let other = Fingerprint::of("another request");
        let guard = new(&idempotency, "k").await;
        let begun = idempotency.begin("scope", "k", &other).await.unwrap();
        assert!(matches!(begun, Begun::Mismatch), "{begun:?}");
        guard.complete(&outcome("done")).await.unwrap();
        let begun = idempotency.begin("scope", "k", &other).await.unwrap();
        assert!(matches!(begun, Begun::Mismatch), "{begun:?}");
    }

    async fn what_is_released_is_run_again_under_a_higher_attempt(db: &Db) {
        let idempotency = db.rowlock().await.idempotency().max_attempts(2);
        let mut before = 0;
        for _ in 0..5 {
            let guard = new(&idempotency, "k").await;
            assert!(guard.attempt() > before);
            before = guard.attempt();
            guard.release().await.unwrap();
            assert!(matches!(guard.complete(&outcome("late")).await, Err(Error::Superseded { .. })));
        }
        // A request that was never acted on does not bind the key.
        let other = Fingerprint::of("another request");
        let begun = idempotency.begin("scope", "k", &other).await.unwrap();
        assert!(matches!(begun, Begun::New(_)), "{begun:?}");
    }

    async fn a_dropped_guard_frees_the_key(db: &Db) {
        let rowlock = db.rowlock().await;
        let guard = new(&rowlock.idempotency(), "k").await;
        drop(guard);
        rowlock.flush().await;
        let info = rowlock.idempotency().inspect("scope", "k").await.unwrap().unwrap();
        assert_eq!((info.state, info.vanished), (RecordState::Free, 1));
        drop(new(&rowlock.idempotency(), "k").await);
    }

    async fn a_release_that_failed_is_no_attempt_that_vanished(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency().max_attempts(1);
        let guard = new(&idempotency, "k").await;
        db.execute("ALTER TABLE rowlock_idempotency RENAME TO elsewhere").await;
        let error = guard.release().await.unwrap_err();
        assert!(matches!(error, Error::Database { .. }), "{error}");
        db.execute("ALTER TABLE elsewhere RENAME TO rowlock_idempotency").await;
        drop(guard);
        rowlock.flush().await;
        let info = idempotency.inspect("scope", "k").await.unwrap().unwrap();
        assert_eq!((info.state, info.vanished), (RecordState::Free, 0));
        drop(new(&idempotency, "k").await);
    }

    async fn a_begin_that_is_cut_off_leaves_nothing_behind_and_does_not_count(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        for after in 0..60 {
            {
                let begin = idempotency.begin("scope", "k", request());
                tokio::pin!(begin);
                tokio::select! {
                    biased;
                    begun = &mut begin => {
                        if let Begun::New(guard) = begun.unwrap() {
                            guard.release().await.unwrap();
                        }
                    }
                    () = async { for _ in 0..after * after { tokio::task::yield_now().await } } => {}
                }
            }
            rowlock.flush().await;
            if let Some(info) = idempotency.inspect("scope", "k").await.unwrap() {
                assert_eq!((info.state, info.vanished), (RecordState::Free, 0), "after {after}");
            }
        }
    }

    async fn a_complete_that_is_cut_off_goes_on_and_is_not_overtaken_by_the_drop(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        for after in 0..30 {
            let key = format!("k{after}");
            let guard = new(&idempotency, &key).await;
            // Somebody has the row locked for a moment: the lane puts completing off.
            let mut tx = db.begin().await;
            if db.engine != rowlock::Engine::Sqlite {
                tx.number(&format!(
                    "SELECT attempt FROM rowlock_idempotency WHERE idempotency_key = {} FOR UPDATE",
                    db.bytes(&key)
                ))
                .await;
            }
            {
                let done = outcome("done");
                let complete = guard.complete(&done);
                tokio::pin!(complete);
                tokio::select! {
                    biased;
                    _ = &mut complete => unreachable!("the row is locked"),
                    () = async { for _ in 0..=after * after { tokio::task::yield_now().await } } => {}
                }
            }
            drop(guard);
            tx.release().await;
            rowlock.flush().await;
            let begun = begin(&idempotency, &key).await;
            assert!(matches!(begun, Begun::Replay(_)), "after {after}: {begun:?}");
        }
    }

    async fn a_complete_that_was_given_up_does_not_become_a_free_key(db: &Db) {
        let builder = Rowlock::builder().operation_timeout(Duration::from_secs(1));
        let rowlock = builder.connect(&db.url).await.unwrap();
        let idempotency = rowlock.idempotency();
        let (guard, other) = (new(&idempotency, "a").await, new(&idempotency, "b").await);
        let mut tx = db.lock_record("a").await;
        if db.engine != rowlock::Engine::Sqlite {
            let key = db.bytes("b");
            let sql = format!("SELECT attempt FROM rowlock_idempotency WHERE idempotency_key = {key} FOR UPDATE");
            tx.number(&sql).await;
        }
        {
            let done = outcome("done");
            let complete = guard.complete(&done);
            tokio::pin!(complete);
            tokio::select! {
                biased;
                _ = &mut complete => unreachable!("the row is locked"),
                () = tokio::task::yield_now() => {}
            }
        }
        // The work is done, and its commit may have been sent.
        drop(guard);
        // This one was asked for later, so the other one's time is over, too.
        let error = other.complete(&outcome("done")).await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        tx.release().await;
        rowlock.flush().await;
        let info = idempotency.inspect("scope", "a").await.unwrap().unwrap();
        assert_eq!(info.state, RecordState::Running);
    }

    async fn an_attempt_that_has_ended_says_so(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let guard = new(&idempotency, "k").await;
        guard.complete(&outcome("done")).await.unwrap();
        let step = guard.step("charge", async { Ok::<_, Error>(7) }).await;
        for again in [guard.complete(&outcome("else")).await, guard.release().await, step.map(drop)] {
            let error = again.unwrap_err();
            assert!(matches!(error, Error::Superseded { .. }), "{error}");
            assert!(error.to_string().contains("has ended before"), "{error}");
        }
        assert!(matches!(begin(&idempotency, "k").await, Begun::Replay(_)));
    }

    async fn records_are_listed_by_scope_and_state(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        let running = new(&idempotency, "running").await;
        new(&idempotency, "done").await.complete(&outcome("done")).await.unwrap();
        new(&idempotency, "free").await.release().await.unwrap();
        let begun = idempotency.begin("other", "k", &request()).await.unwrap();
        let Begun::New(elsewhere) = begun else { panic!("{begun:?}") };
        let list = async |scope: Option<&[u8]>, state, limit| {
            let found = idempotency.list(scope, state, limit).await.unwrap();
            let names = found.iter().map(|info| (info.record.to_string(), info.state));
            names.collect::<Vec<_>>()
        };
        let of = |key: &str, scope: &str, state| (format!("\"{key}\" of \"{scope}\""), state);
        let all = [
            of("k", "other", RecordState::Running),
            of("done", "scope", RecordState::Done),
            of("free", "scope", RecordState::Free),
            of("running", "scope", RecordState::Running),
        ];
        assert_eq!(list(None, None, 10).await, all);
        assert_eq!(list(None, None, 2).await, all[..2]);
        assert_eq!(list(Some(b"scope"), None, 10).await, all[1..]);
        assert_eq!(list(None, Some(RecordState::Done), 10).await, all[1..2]);
        assert_eq!(list(Some(b"scope"), Some(RecordState::Running), 10).await, all[3..]);
        assert_eq!(list(Some(b"nowhere"), None, 10).await, []);
        drop((running, elsewhere));
    }

    async fn its_own_commit_is_no_loss(db: &Db) {
        let idempotency = db.rowlock().await.idempotency().lease(SHORT);
        let guard = new(&idempotency, "k").await;
        let mut tx = db.begin().await;
        on_tx!(&mut tx, tx => guard.complete_in(tx, &outcome("a")).await).unwrap();
        tx.commit().await.unwrap();
        // Longer than a lease: it was asked to renew what has ended.
        let lost = tokio::time::timeout(SHORT * 3 / 2, guard.lost()).await;
        assert!(lost.is_err(), "{lost:?}");
    }

    async fn a_lease_is_renewed_while_the_guard_lives(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency().lease(SHORT);
        let guard = new(&idempotency, "k").await;
        let other = db.rowlock().await.idempotency().wait(SHORT * 2);
        let begun = begin(&other, "k").await;
        assert!(matches!(begun, Begun::InFlight(_)), "{begun:?}");
        assert!(guard.is_held());
        guard.complete(&outcome("done")).await.unwrap();
        assert!(!guard.is_held());
    }

    async fn whoever_was_taken_over_can_neither_record_nor_commit(db: &Db) {
        table(db).await;
        let idempotency = db.rowlock().await.idempotency();
        let zombie = new(&idempotency, "k").await;
        lapse(db).await;
        let successor = take_over(&idempotency, "k").await;
        assert!(successor.attempt() > zombie.attempt());

        let mut tx = db.begin().await;
        tx.execute("INSERT INTO payment VALUES ('zombie')").await.unwrap();
        let refused = on_tx!(&mut tx, tx => zombie.complete_in(tx, &outcome("zombie")).await);
        assert!(matches!(refused, Err(Error::Superseded { .. })), "{refused:?}");
        tx.release().await;
        assert!(matches!(zombie.complete(&outcome("zombie")).await, Err(Error::Superseded { .. })));

        let mut tx = db.begin().await;
        tx.execute("INSERT INTO payment VALUES ('successor')").await.unwrap();
        on_tx!(&mut tx, tx => successor.complete_in(tx, &outcome("successor")).await).unwrap();
        tx.commit().await.unwrap();
        drop(zombie);
        drop(successor);
        let Begun::Replay(replay) = begin(&idempotency, "k").await else { panic!("replay") };
        assert_eq!(replay.bytes(), b"successor");
        assert_eq!(payments(db).await, 1);
    }

    async fn a_lapsed_attempt_that_nobody_took_over_may_still_end(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let guard = new(&idempotency, "k").await;
        lapse(db).await;
        guard.complete(&outcome("late")).await.unwrap();
        assert!(matches!(begin(&idempotency, "k").await, Begun::Replay(_)));
    }

    async fn the_outcome_commits_with_the_write_or_not_at_all(db: &Db) {
        table(db).await;
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        let guard = new(&idempotency, "k").await;
        let mut tx = db.begin().await;
        tx.execute("INSERT INTO payment VALUES ('a')").await.unwrap();
        on_tx!(&mut tx, tx => guard.complete_in(tx, &outcome("a")).await).unwrap();
        tx.release().await;
        let begun = begin(&idempotency, "k").await;
        assert!(matches!(begun, Begun::InFlight(_)), "{begun:?}");

        let mut tx = db.begin().await;
        tx.execute("INSERT INTO payment VALUES ('b')").await.unwrap();
        on_tx!(&mut tx, tx => guard.complete_in(tx, &outcome("b")).await).unwrap();
        // Dropped before the commit: what the transaction does decides.
        drop(guard);
        tx.commit().await.unwrap();
        rowlock.flush().await;
        let Begun::Replay(replay) = begin(&idempotency, "k").await else { panic!("replay") };
        assert_eq!(replay.bytes(), b"b");
        assert_eq!(payments(db).await, 1);
    }

    async fn a_guard_that_is_dropped_before_a_rollback_frees_the_key(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        let guard = new(&idempotency, "k").await;
        let mut tx = db.begin().await;
        on_tx!(&mut tx, tx => guard.complete_in(tx, &outcome("a")).await).unwrap();
        drop(guard);
        tx.release().await;
        rowlock.flush().await;
        drop(new(&idempotency, "k").await);
    }

    async fn a_transaction_that_is_over_records_nothing(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let guard = new(&idempotency, "k").await;
        let mut tx = db.begin().await;
        // It fails; or somebody ends it, and sqlx does not know.
        let end = if db.engine == rowlock::Engine::Postgres { "SELECT 1 / 0" } else { "ROLLBACK" };
        let _ = tx.execute(end).await;
        let error = on_tx!(&mut tx, tx => guard.complete_in(tx, &outcome("a")).await);
        assert!(matches!(error, Err(Error::TransactionOver { .. })), "{error:?}");
        drop(tx);
        assert!(matches!(begin(&idempotency, "k").await, Begun::InFlight(_)));
    }

    async fn a_transaction_of_another_database_is_refused(db: &Db) {
        let other = Db::new(db.engine).await;
        drop(other.rowlock().await);
        let idempotency = db.rowlock().await.idempotency();
        let guard = new(&idempotency, "k").await;
        let mut tx = other.begin().await;
        let error = on_tx!(&mut tx, tx => guard.complete_in(tx, &outcome("a")).await).unwrap_err();
        assert!(matches!(error, Error::WrongDatabase { .. }), "{error}");
        tx.release().await;
        new(&idempotency, "freed").await.release().await.unwrap();
        for key in ["k2", "freed"] {
            let ran = on_app!(&other.app, pool => {
                idempotency.run_in_tx(pool, "scope", key, &request(), |tx| async move { drop(tx); Outcome::json(&1) }).await
            });
            assert!(matches!(ran, Err(Error::WrongDatabase { .. })), "{key}: {ran:?}");
        }
        other.remove().await;
    }

    async fn attempts_that_vanish_are_counted_and_the_key_is_poisoned(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency().max_attempts(3);
        for _ in 0..3 {
            drop(new(&idempotency, "k").await);
            rowlock.flush().await;
        }
        let begun = begin(&idempotency, "k").await;
        assert!(matches!(begun, Begun::Poisoned { attempts: 3 }), "{begun:?}");
        let info = idempotency.inspect("scope", "k").await.unwrap().unwrap();
        assert_eq!(info.state, RecordState::Poisoned);
        idempotency.reset("scope", "k").await.unwrap();
        // Those that crash, too.
        for _ in 0..3 {
            std::mem::forget(take_over(&idempotency, "k").await);
            lapse(db).await;
        }
        let begun = begin(&idempotency.clone().wait(Duration::from_secs(30)), "k").await;
        assert!(matches!(begun, Begun::Poisoned { attempts: 3 }), "{begun:?}");
        idempotency.reset("scope", "k").await.unwrap();
        let guard = new(&idempotency, "k").await;
        let refused = idempotency.reset("scope", "k").await;
        assert!(matches!(refused, Err(Error::NotDecided { .. })), "somebody is working on it");
        guard.complete(&outcome("done")).await.unwrap();
        assert!(matches!(idempotency.reset("scope", "k").await, Err(Error::NotDecided { .. })));
        assert!(matches!(idempotency.reset("scope", "none").await, Err(Error::NoSuchRecord { .. })));
    }

    async fn outcomes_are_capped_before_anything_is_sent(db: &Db) {
        let idempotency = db.rowlock().await.idempotency().max_outcome(10);
        let guard = new(&idempotency, "k").await;
        guard.ensure_fits(10).unwrap();
        assert!(matches!(guard.ensure_fits(11), Err(Error::OutcomeTooLarge { bytes: 11, limit: 10, .. })));
        let error = guard.complete(&outcome("more than ten bytes")).await.unwrap_err();
        assert!(matches!(error, Error::OutcomeTooLarge { .. }), "{error}");
        guard.complete(&outcome("0123456789")).await.unwrap();
    }

    async fn large_outcomes_are_kept_byte_for_byte(db: &Db) {
        let rowlock = db.rowlock().await;
        let bytes: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[1] ^ n.to_le_bytes()[0]).collect();
        let large = Outcome::new("application/octet-stream", bytes).unwrap();
        let idempotency = rowlock.idempotency();
        new(&idempotency, "a").await.complete(&large).await.unwrap();
        let guard = new(&idempotency, "b").await;
        let mut tx = db.begin().await;
        on_tx!(&mut tx, tx => guard.complete_in(tx, &large).await).unwrap();
        tx.commit().await.unwrap();
        for key in ["a", "b"] {
            let Begun::Replay(replay) = begin(&idempotency, key).await else { panic!("replay") };
            assert_eq!(replay, large);
        }
        let empty = Outcome::empty();
        new(&idempotency, "c").await.complete(&empty).await.unwrap();
        let guard = new(&idempotency, "d").await;
        let mut tx = db.begin().await;
        on_tx!(&mut tx, tx => guard.complete_in(tx, &empty).await).unwrap();
        tx.commit().await.unwrap();
        for key in ["c", "d"] {
            let Begun::Replay(replay) = begin(&idempotency, key).await else { panic!("replay") };
            assert_eq!(replay, empty);
        }
    }

    async fn many_keys_share_statements_and_each_gets_its_own(db: &Db) {
        let rowlock = db.rowlock().await;
        let mut tasks = JoinSet::new();
        for task in 0..300_u32 {
            let idempotency = rowlock.idempotency();
            tasks.spawn(async move {
                // Three tasks a key.
                let (scope, key) = (format!("scope {}", task % 7), format!("key {}", task % 100));
                let wait = idempotency.wait(Duration::from_mins(1));
                match wait.begin(&scope, &key, &Fingerprint::of(&key)).await.unwrap() {
                    Begun::New(guard) => {
                        guard.complete(&outcome(&format!("{scope} {key}"))).await.unwrap();
                        1
                    }
                    Begun::Replay(replay) => {
                        assert_eq!(replay.bytes(), format!("{scope} {key}").as_bytes());
                        0
                    }
                    other => panic!("{other:?}"),
                }
            });
        }
        let mut new = 0;
        while let Some(task) = tasks.join_next().await {
            new += task.unwrap();
        }
        assert_eq!(new, db.number("SELECT COUNT(*) FROM rowlock_idempotency WHERE state = 'done'").await);
    }

    async fn many_large_replays_at_once_are_each_byte_for_byte(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        // Some fit into a share of a statement, some do not.
        let large = |n: usize| {
            let size = [0, 1, 3_000, 70_000, 300_000][n % 5];
            Outcome::new("b", vec![u8::try_from(n).unwrap(); size]).unwrap()
        };
        for n in 0..40 {
            new(&idempotency, &format!("k{n}")).await.complete(&large(n)).await.unwrap();
        }
        let mut tasks = JoinSet::new();
        for task in 0..240 {
            let idempotency = idempotency.clone();
            tasks.spawn(async move {
                let n = task % 40;
                let Begun::Replay(replay) = begin(&idempotency, &format!("k{n}")).await else { panic!("replay") };
                assert!(replay == large(n), "{n}: {replay:?}");
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
    }

    async fn a_storm_of_one_key_runs_it_once(db: &Db) {
        let rowlock = db.rowlock().await;
        let mut tasks = JoinSet::new();
        for _ in 0..500 {
            let idempotency = rowlock.idempotency();
            tasks.spawn(async move {
                match begin(&idempotency, "k").await {
                    Begun::New(guard) => {
                        guard.complete(&outcome("done")).await.unwrap();
                        1
                    }
                    Begun::Replay(_) | Begun::InFlight(_) => 0,
                    other => panic!("{other:?}"),
                }
            });
        }
        let mut new = 0;
        while let Some(task) = tasks.join_next().await {
            new += task.unwrap();
        }
        assert_eq!(new, 1);
    }

    async fn settings_that_make_no_sense_are_refused(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let refused = [
            idempotency.clone().lease(Duration::from_millis(99)),
            idempotency.clone().retention(Duration::ZERO),
            idempotency.clone().remember_expired(Duration::MAX),
            idempotency.clone().wait(Duration::MAX),
            idempotency.clone().max_attempts(0),
            idempotency.clone().max_outcome(usize::MAX),
        ];
        for idempotency in refused {
            let error = idempotency.begin("s", "k", &request()).await.unwrap_err();
            assert!(matches!(error, Error::InvalidDuration { .. } | Error::InvalidSetting { .. }), "{error}");
        }
        let short = idempotency.clone().lease(Duration::ZERO);
        let error = short.begin("s", "k", &request()).await.unwrap_err();
        assert!(matches!(error, Error::InvalidDuration { setting: "lease", .. }), "{error}");
        for (scope, key) in [("", "k"), ("s", ""), (&*"x".repeat(256), "k"), ("s", &*"x".repeat(256))] {
            let error = idempotency.begin(scope, key, &request()).await.unwrap_err();
            assert!(matches!(error, Error::InvalidKey { .. }), "{error}");
        }
    }

    async fn a_record_that_was_edited_by_hand_is_an_error_that_names_it(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        new(&idempotency, "k").await.complete(&outcome("done")).await.unwrap();
        new(&idempotency, "fine").await.complete(&outcome("done")).await.unwrap();
        db.damage_record(&format!(
            "UPDATE rowlock_idempotency SET state = 'gone' WHERE idempotency_key = {}",
            db.bytes("k")
        ))
        .await;
        let error = idempotency.begin("scope", "k", &request()).await.unwrap_err();
        assert!(error.to_string().contains("\"k\" of \"scope\""), "{error}");
        assert!(matches!(error, Error::CorruptRecord { .. }), "{error}");
        assert!(matches!(begin(&idempotency, "fine").await, Begun::Replay(_)));
    }

    async fn a_database_that_is_gone_is_an_error(db: &Db) {
        let rowlock = Rowlock::builder().operation_timeout(Duration::from_secs(1)).connect(&db.url).await.unwrap();
        let idempotency = rowlock.idempotency();
        let guard = new(&idempotency, "k").await;
        db.execute("ALTER TABLE rowlock_idempotency RENAME TO elsewhere").await;
        let error = guard.complete(&outcome("done")).await.unwrap_err();
        assert!(matches!(error, Error::Database { .. }), "{error}");
        // The attempt can be ended when it is back.
        db.execute("ALTER TABLE elsewhere RENAME TO rowlock_idempotency").await;
        guard.complete(&outcome("done")).await.unwrap();
    }
}
