//! Promise 1: at any instant at most one live grant exists for a name.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rowlock::Error;
use rowlock_test::{Db, busy, is_left_of, on_every_engine, release, take};

const TTL: Duration = Duration::from_secs(30);

on_every_engine! {
    async fn a_held_name_is_busy_and_tells_its_holder(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let began = Instant::now();
        let held = one.lock("a").ttl(TTL).holder("worker one").acquire().await.unwrap();
        let busy = busy(two.lock("a").wait(Duration::ZERO).acquire().await);
        let holder = busy.holder.expect("the row is not locked");
        assert_eq!(holder.holder, "worker one");
        assert_eq!(holder.fence, held.fence());
        assert_eq!((holder.expires_at - holder.acquired_at).num_seconds(), 30);
        assert!(is_left_of(TTL, began, holder.remaining), "{holder:?}");
    }

    async fn names_are_bytes(db: &Db) {
        let rowlock = db.rowlock().await;
        let long = "x".repeat(255);
        let names = ["Order1", "order1", "order1 ", " order1", "ördér1", "order1\n", "😀'\"\\%_", &long];
        let mut held = Vec::new();
        for name in names {
            held.push(take(&rowlock, name, TTL).await);
        }
        let listed: Vec<String> =
            rowlock.admin().list().await.unwrap().iter().map(|lock| lock.name.to_string()).collect();
        let mut expected: Vec<String> = names.iter().map(ToString::to_string).collect();
        expected.sort();
        assert_eq!(listed, expected);
        for name in names {
            assert_eq!(rowlock.inspect(name).await.unwrap().unwrap().name.as_str(), name);
        }
    }

    async fn holders_never_overlap(db: &Db) {
        let inside = Arc::new(AtomicBool::new(false));
        let entered = Arc::new(AtomicU32::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let rowlock = db.rowlock().await;
            for _ in 0..25 {
                let (rowlock, inside, entered) =
                    (rowlock.clone(), Arc::clone(&inside), Arc::clone(&entered));
                tasks.spawn(async move {
                    let held = rowlock.lock("hot").acquire().await.unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two holders");
                    tokio::task::yield_now().await;
                    inside.store(false, Ordering::SeqCst);
                    entered.fetch_add(1, Ordering::SeqCst);
                    held.release().await.unwrap();
                });
            }
        }
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
        assert_eq!(entered.load(Ordering::SeqCst), 100);
    }

    async fn many_acquires_share_statements_and_each_gets_its_own_answer(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        // New names, then the same ones again, a third of them held by another client.
        for round in 0..3 {
            let mut theirs = Vec::new();
            for number in (0..60).step_by(3) {
                theirs.push(take(&two, &format!("n{number}"), TTL).await);
            }
            let mut tasks = tokio::task::JoinSet::new();
            for number in 0..60 {
                let lock = one.lock(format!("n{number}")).holder(format!("holder {number}"));
                let lock = lock.wait(Duration::ZERO);
                tasks.spawn(async move { (number, lock.acquire().await) });
            }
            let mut mine = Vec::new();
            while let Some(task) = tasks.join_next().await {
                let (number, outcome) = task.unwrap();
                match outcome {
                    Err(Error::WaitTimeout { busy, .. }) => {
                        assert_eq!(number % 3, 0, "round {round}: {busy:?}");
                        assert_eq!(busy.name.as_str(), format!("n{number}"));
                        assert_eq!(busy.holder.unwrap().fence, theirs[number / 3].fence());
                    }
                    Err(error) => panic!("{error}"),
                    Ok(held) => {
                        assert_ne!(number % 3, 0, "round {round}: n{number} was granted twice");
                        assert_eq!(held.name().as_str(), format!("n{number}"));
                        mine.push((number, held));
                    }
                }
            }
            for (number, held) in &mine {
                let row = two.inspect(held.name().clone()).await.unwrap().unwrap();
                assert_eq!((row.fence, row.holder), (held.fence(), format!("holder {number}")));
            }
            drop((mine, theirs));
            one.flush().await;
            two.flush().await;
            assert_eq!(one.admin().list().await.unwrap(), []);
        }
    }

    async fn one_locked_row_holds_up_nobody_else(db: &Db) {
        let rowlock = db.rowlock().await;
        for name in ["locked", "free"] {
            drop(take(&rowlock, name, TTL).await);
        }
        rowlock.flush().await;
        if db.one_writer() {
            return; // there a transaction locks the file: see dialect/sqlite.rs
        }
        let row = db.lock_row("locked").await;
        let (locked, free) = (rowlock.lock("locked"), rowlock.lock("free"));
        let locked = locked.wait(Duration::ZERO);
        let (locked, free) = tokio::join!(locked.acquire(), free.try_acquire());
        assert!(busy(locked).holder.is_none());
        assert!(free.unwrap().is_some());
        row.release().await;
        let _held = take(&rowlock, "locked", TTL).await;
    }

    async fn waiting_ends_in_time_and_tells_who_has_it(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = one.lock("a").holder("the other").acquire().await.unwrap();
        let wait = Duration::from_millis(200);
        let error = two.lock("a").wait(wait).acquire().await.unwrap_err();
        let Error::WaitTimeout { waited, busy, .. } = &error else { panic!("{error}") };
        assert!(*waited >= wait, "{waited:?}");
        assert_eq!(busy.holder.as_ref().unwrap().holder, "the other");
        // Waiting without end is over as soon as the name is free, in whatever process.
        let lock = two.lock("a");
        let (second, _) = tokio::join!(lock.acquire(), held.release());
        assert!(second.unwrap().is_held());
    }

    async fn a_holder_of_the_client_that_frees_by_force_knows_it_at_once(db: &Db) {
        let rowlock = db.rowlock().await;
        let held = take(&rowlock, "a", TTL).await;
        let other = take(&rowlock, "b", TTL).await;
        assert!(rowlock.admin().force_release("a").await.unwrap().is_some());
        assert!(!held.is_held());
        assert_eq!(held.lost().await, rowlock::Loss::TakenOver);
        assert!(other.is_held());
        release(&other).await;
    }

    async fn force_release_frees_a_name_and_tells_who_had_it(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = one.lock("a").ttl(Duration::from_secs(6)).acquire().await.unwrap();
        let was = two.admin().force_release("a").await.unwrap().unwrap();
        assert_eq!(was.fence, held.fence());
        assert_eq!(two.admin().force_release("a").await.unwrap(), None);
        assert_eq!(two.inspect("a").await.unwrap(), None);
        let next = take(&two, "a", TTL).await;
        assert!(next.fence() > held.fence());
        // The old holder learns it with its next renewal, long before its TTL is over.
        assert_eq!(held.lost().await, rowlock::Loss::TakenOver);
    }

    async fn a_forced_release_of_a_grant_that_has_ended_frees_nobody_else(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let shown = take(&one, "a", TTL).await;
        let ids: Vec<_> = two.admin().holders("a").await.unwrap().iter().map(|held| held.grant_id).collect();
        release(&shown).await;
        let next = take(&one, "a", TTL).await;
        assert_eq!(two.admin().force_release_grants("a", &ids).await.unwrap(), []);
        assert_eq!(two.inspect("a").await.unwrap().unwrap().fence, next.fence());
        let ids: Vec<_> = two.admin().holders("a").await.unwrap().iter().map(|held| held.grant_id).collect();
        let freed = two.admin().force_release_grants("a", &ids).await.unwrap();
        assert_eq!(freed.iter().map(|held| held.fence).collect::<Vec<_>>(), [next.fence()]);
        assert_eq!(two.admin().force_release_grants("a", &[]).await.unwrap(), []);
    }
}
