//! Promise 8: for one scope and key at most one effect commits, and every caller gets its outcome.

use std::time::{Duration, Instant};

use rowlock::layer::LayerAttempt as _;
use rowlock::{
    Begun, Error, Fingerprint, InvalidError, Outcome, RecordError, RecordFilter, RecordState, Scope,
};
use rowlock_test::{Db, begin, begin_new, is_left_of, on_every_engine, on_tx, outcome, request};
use tokio::task::JoinSet;

on_every_engine! {
    async fn the_second_one_gets_the_outcome_of_the_first(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        let began = Instant::now();
        let guard = begin_new(&idempotency, "k").await;
        let Begun::InFlight(in_flight) = begin(&idempotency, "k").await else { panic!("in flight") };
        let left = in_flight.remaining.unwrap();
        assert!(is_left_of(Duration::from_secs(30), began, left), "{left:?}");
        assert!(in_flight.until.is_some() && in_flight.holder.is_some());
        guard.complete(&outcome("done\0\u{e9}")).await.unwrap();
        for client in [&rowlock, &db.rowlock().await] {
            let Begun::Replay(replay) = begin(&client.idempotency(), "k").await else { panic!("replay") };
            assert_eq!(replay.bytes(), "done\0\u{e9}".as_bytes());
            assert_eq!(replay.content_type(), "text/plain");
        }
        let info = idempotency.inspect(Scope("scope").key("k")).await.unwrap().unwrap();
        assert_eq!((info.state, info.abandoned), (RecordState::Done, 0));
        assert_eq!(info.outcome.unwrap().bytes(), "done\0\u{e9}".as_bytes());
    }

    async fn keys_and_scopes_are_bytes(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        let names: [&[u8]; 7] = [b"a", b"A", b"a ", b"a\0", b"\xff\xfe", "\u{e1}".as_bytes(), &[7; 255]];
        let mut guards = Vec::new();
        for scope in names {
            for key in names {
                match idempotency.begin(Scope(scope).key(key), &request()).await.unwrap() {
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
                let begun = idempotency.begin(Scope(scope).key(key), &request()).await.unwrap();
                let Begun::Replay(replay) = begun else { panic!("replay") };
                assert_eq!(replay.bytes(), [scope, key].concat());
            }
        }
    }

    async fn another_request_under_the_key_is_refused_also_while_the_first_runs(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let other = Fingerprint::of("another request");
        let guard = begin_new(&idempotency, "k").await;
        let begun = idempotency.begin(Scope("scope").key("k"), &other).await.unwrap();
        assert!(matches!(begun, Begun::Mismatch), "{begun:?}");
        guard.complete(&outcome("done")).await.unwrap();
        let begun = idempotency.begin(Scope("scope").key("k"), &other).await.unwrap();
        assert!(matches!(begun, Begun::Mismatch), "{begun:?}");
    }

    async fn a_dropped_attempt_keeps_its_request_and_a_released_one_does_not(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        let other = Fingerprint::of("another request");
        drop(begin_new(&idempotency, "dropped").await);
        rowlock.flush().await;
        // Its work may have had effects.
        let begun = idempotency.begin(Scope("scope").key("dropped"), &other).await.unwrap();
        assert!(matches!(begun, Begun::Mismatch), "{begun:?}");
        drop(begin_new(&idempotency, "dropped").await);
        begin_new(&idempotency, "released").await.release().await.unwrap();
        let untouched = begin_new(&idempotency, "untouched").await;
        untouched.do_not_count();
        drop(untouched);
        rowlock.flush().await;
        for key in ["released", "untouched"] {
            let begun = idempotency.begin(Scope("scope").key(key), &other).await.unwrap();
            assert!(matches!(begun, Begun::New(_)), "{key}: {begun:?}");
        }
    }

    async fn records_are_listed_by_scope_and_state(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        let running = begin_new(&idempotency, "running").await;
        begin_new(&idempotency, "done").await.complete(&outcome("done")).await.unwrap();
        begin_new(&idempotency, "free").await.release().await.unwrap();
        let begun = idempotency.begin(Scope("other").key("k"), &request()).await.unwrap();
        let Begun::New(elsewhere) = begun else { panic!("{begun:?}") };
        let list = async |scope: Option<&[u8]>, state: Option<RecordState>, limit| {
            let mut filter = RecordFilter::new().limit(limit);
            if let Some(scope) = scope {
                filter = filter.scope(scope, "");
            }
            if let Some(state) = state {
                filter = filter.state(state);
            }
            let found = idempotency.list(&filter).await.unwrap().items;
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

    async fn outcomes_are_capped_before_anything_is_sent(db: &Db) {
        let idempotency = db.rowlock().await.idempotency().max_outcome(10);
        let guard = begin_new(&idempotency, "k").await;
        guard.ensure_fits(10).unwrap();
        assert!(matches!(guard.ensure_fits(11), Err(Error::Record(RecordError::OutcomeTooLarge { bytes: 11, limit: 10, .. }))));
        let error = guard.complete(&outcome("more than ten bytes")).await.unwrap_err();
        assert!(matches!(error, Error::Record(RecordError::OutcomeTooLarge { .. })), "{error}");
        guard.complete(&outcome("0123456789")).await.unwrap();
    }

    async fn large_outcomes_are_kept_byte_for_byte(db: &Db) {
        let rowlock = db.rowlock().await;
        let bytes: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[1] ^ n.to_le_bytes()[0]).collect();
        let large = Outcome::new("application/octet-stream", bytes).unwrap();
        let idempotency = rowlock.idempotency();
        begin_new(&idempotency, "a").await.complete(&large).await.unwrap();
        let guard = begin_new(&idempotency, "b").await;
        let mut tx = db.begin().await;
        on_tx!(&mut tx, tx => guard.complete_in(tx, &large).await).unwrap();
        tx.commit().await.unwrap();
        for key in ["a", "b"] {
            let Begun::Replay(replay) = begin(&idempotency, key).await else { panic!("replay") };
            assert_eq!(replay, large);
        }
        let empty = Outcome::empty();
        begin_new(&idempotency, "c").await.complete(&empty).await.unwrap();
        let guard = begin_new(&idempotency, "d").await;
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
                // Three tasks for each key.
                let (scope, key) = (format!("scope {}", task % 7), format!("key {}", task % 100));
                let wait = idempotency.wait(Duration::from_mins(1));
                match wait.begin(Scope(&scope).key(&key), &Fingerprint::of(&key)).await.unwrap() {
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
        // Some outcomes fit into a shared statement, some do not.
        let large = |n: usize| {
            let size = [0, 1, 3_000, 70_000, 300_000][n % 5];
            Outcome::new("b", vec![u8::try_from(n).unwrap(); size]).unwrap()
        };
        for n in 0..40 {
            begin_new(&idempotency, &format!("k{n}")).await.complete(&large(n)).await.unwrap();
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
            let error = idempotency.begin(Scope("s").key("k"), &request()).await.unwrap_err();
            assert!(matches!(error, Error::Invalid(InvalidError::Duration { .. } | InvalidError::Setting { .. })), "{error}");
        }
        let short = idempotency.clone().lease(Duration::ZERO);
        let error = short.begin(Scope("s").key("k"), &request()).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(InvalidError::Duration { setting: "lease", .. })), "{error}");
        for (scope, key) in [("", "k"), ("s", ""), (&*"x".repeat(256), "k"), ("s", &*"x".repeat(256))] {
            let error = idempotency.begin(Scope(scope).key(key), &request()).await.unwrap_err();
            assert!(matches!(error, Error::Invalid(InvalidError::Key { .. })), "{error}");
        }
    }

    async fn a_record_that_was_edited_by_hand_is_an_error_that_names_it(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        begin_new(&idempotency, "k").await.complete(&outcome("done")).await.unwrap();
        begin_new(&idempotency, "fine").await.complete(&outcome("done")).await.unwrap();
        db.damage_record(&format!(
            "UPDATE rowlock_idempotency SET state = 'gone' WHERE idempotency_key = {}",
            db.bytes("k")
        ))
        .await;
        let error = idempotency.begin(Scope("scope").key("k"), &request()).await.unwrap_err();
        assert!(error.to_string().contains("\"k\" of \"scope\""), "{error}");
        assert!(matches!(error, Error::Record(RecordError::Corrupt { .. })), "{error}");
        assert!(matches!(begin(&idempotency, "fine").await, Begun::Replay(_)));
    }
}
