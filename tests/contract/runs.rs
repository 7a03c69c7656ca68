//! The last run of the work under a lock: it is that of the greatest fence, and it is running for as long as its lease
//! is live.

use std::time::Duration;

use rowlock::extend::raise_fence;
use rowlock::{Error, RunState};
use rowlock_recipes::Job;
use rowlock_test::{Db, last_run, on_every_engine, release, take};

const LONG: Duration = Duration::from_mins(10);

on_every_engine! {
    async fn a_run_begins_under_a_live_lease_only(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        // It was lost by this process's clock.
        let held = one.lock("hold").max_hold(Duration::from_millis(200)).acquire().await.unwrap();
        held.lost().await;
        let error = held.begin_run().await.unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error}");
        // It has expired by the database's clock, once without a run before and once with one.
        for round in 0..2 {
            let held = take(&one, "a", LONG).await;
            let past = db.past();
            let name = db.bytes("a");
            db.execute(&format!("UPDATE rowlock_lock SET expires_at = {past}, acquired_at = {past} WHERE name = {name}")).await;
            let error = held.begin_run().await.unwrap_err();
            assert!(matches!(error, Error::Lost { .. }), "{error}");
            assert_eq!(last_run(&two, "a").await.is_some(), round == 1);
            let next = take(&two, "a", LONG).await;
            next.begin_run().await.unwrap();
            release(&next).await;
        }
    }

    async fn a_run_belongs_to_the_lease_and_not_to_its_fence(db: &Db) {
        let one = db.rowlock().await;
        let held = take(&one, "a", LONG).await;
        held.begin_run().await.unwrap();
        let began = last_run(&one, "a").await.unwrap();
        raise_fence(&held, held.fence() + 1_000).await.unwrap();
        held.begin_run().await.unwrap();
        assert_eq!(last_run(&one, "a").await.unwrap().began_at, began.began_at, "it began before");
        assert!(held.end_run(true, "done").await.unwrap());
        let run = last_run(&one, "a").await.unwrap();
        assert_eq!((run.state, run.message.as_str()), (RunState::Succeeded, "done"));
        release(&held).await;
        // A later lease without a run does not end it.
        let next = take(&one, "a", LONG).await;
        assert!(!next.end_run(false, "other").await.unwrap());
        assert_eq!(last_run(&one, "a").await.unwrap(), run);
    }

    async fn a_run_does_not_wait_for_a_transaction_that_has_the_row_locked(db: &Db) {
        let held = take(&db.rowlock().await, "a", LONG).await;
        for _ in 0..2 {
            // (On SQLite every transaction that writes excludes every other one.)
            let mut tx = None;
            if db.has_server() {
                let lock = format!("SELECT 1 FROM rowlock_lock WHERE name = {} FOR UPDATE", db.bytes("a"));
                let tx = tx.insert(db.begin().await);
                tx.execute(&lock).await.unwrap();
            }
            held.begin_run().await.unwrap();
            assert!(held.end_run(true, "").await.unwrap());
            if let Some(tx) = tx {
                tx.release().await;
            }
            raise_fence(&held, 0).await.unwrap();
        }
        release(&held).await;
    }

    async fn a_task_does_not_end_the_run_of_the_task_after_it(db: &Db) {
        let one = db.rowlock().await;
        // Both have the same grant, in memory.
        let lock = one.lock("a").linger(Duration::from_mins(1));
        let first = lock.acquire().await.unwrap();
        first.begin_run().await.unwrap();
        release(&first).await;
        let second = lock.acquire().await.unwrap();
        second.begin_run().await.unwrap();
        assert!(!first.end_run(false, "late").await.unwrap());
        let run = last_run(&one, "a").await.unwrap();
        assert_eq!((run.state, run.fence), (RunState::Running, second.fence()));
        assert!(second.end_run(true, "done").await.unwrap());
        release(&second).await;
    }

    async fn a_second_sending_of_the_end_changes_nothing(db: &Db) {
        let one = db.rowlock().await;
        let held = take(&one, "a", LONG).await;
        held.begin_run().await.unwrap();
        assert!(held.end_run(false, "no paper").await.unwrap());
        let run = last_run(&one, "a").await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(held.end_run(false, "no paper").await.unwrap());
        assert!(!held.end_run(true, "no paper").await.unwrap());
        assert!(!held.end_run(false, "").await.unwrap());
        assert_eq!(last_run(&one, "a").await.unwrap(), run);
    }

    async fn a_run_under_a_lock_of_a_session_was_abandoned_with_it(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = one.lock("a").in_session().acquire().await.unwrap();
        held.begin_run().await.unwrap();
        // One lock with a run of before, and one without.
        let before = take(&one, "b", LONG).await;
        before.begin_run().await.unwrap();
        release(&before).await;
        let mut others = Vec::new();
        for name in ["b", "c"] {
            others.push(one.lock(name).in_session().acquire().await.unwrap());
        }
        let run = last_run(&two, "a").await.unwrap();
        assert_eq!(run.state, RunState::Running);
        let past = db.past();
        db.execute(&format!("UPDATE rowlock_session SET expires_at = {past}")).await;
        let run = last_run(&two, "a").await.unwrap();
        assert_eq!(run.state, RunState::Abandoned);
        for other in others {
            let error = other.begin_run().await.unwrap_err();
            assert!(matches!(error, Error::Lost { .. }), "{error}");
        }
    }

    async fn a_job_whose_process_dies_keeps_its_name_taken(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let job = Job::new(&one, "j").at_least_for(LONG).ttl(Duration::from_secs(1));
        let ran = job.run(async |_| {
            let row = two.inspect("j").await?.expect("it runs");
            Ok::<_, Error>(row.remaining)
        });
        let remaining = ran.await.unwrap().here().unwrap();
        assert!(remaining > LONG / 2, "{remaining:?}");
    }

    async fn a_job_that_was_paused_for_too_long_does_not_touch_the_next_one(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let job = Job::new(&one, "j").at_least_for(Duration::from_millis(1)).holder("late");
        let late = job.run(async |held| {
            let past = db.past();
            db.execute(&format!("UPDATE rowlock_lock SET expires_at = {past}, acquired_at = {past}")).await;
            let next = two.lock("j").holder("next").try_acquire().await.unwrap().expect("it has expired");
            next.begin_run().await.unwrap();
            let _ = held;
            Ok::<_, Error>(next)
        });
        // (The work may be done before the loss is seen.)
        if let Some(next) = late.await.ok().and_then(rowlock_recipes::job::Ran::here) {
            assert!(next.is_held());
            let run = last_run(&two, "j").await.unwrap();
            assert_eq!((run.state, run.holder.as_str(), run.fence), (RunState::Running, "next", next.fence()));
            assert!(one.lock("j").try_acquire().await.unwrap().is_none());
        }
    }

    async fn the_last_twenty_runs_are_kept(db: &Db) {
        let rowlock = db.rowlock().await;
        for run in 0..23 {
            let held = take(&rowlock, "j", LONG).await;
            held.begin_run().await.unwrap();
            if run != 21 {
                held.end_run(run % 2 == 0, &run.to_string()).await.unwrap();
            }
            release(&held).await;
        }
        let runs = rowlock.admin().runs_of("j").await.unwrap();
        assert!(runs.is_sorted_by(|one, two| one.fence > two.fence));
        let said: Vec<_> = runs.iter().map(|run| run.message.parse().unwrap_or(21)).collect();
        assert_eq!(said, (3..23).rev().collect::<Vec<u32>>());
        let states = [RunState::Succeeded, RunState::Abandoned, RunState::Succeeded, RunState::Failed];
        assert_eq!(runs.iter().take(4).map(|run| run.state).collect::<Vec<_>>(), states);
        assert_eq!(rowlock.admin().runs().await.unwrap(), runs[..1]);
        // A late process ends no run after the next one has begun, and begins none.
        let late = take(&rowlock, "late", LONG).await;
        late.begin_run().await.unwrap();
        let next = db.rowlock().await;
        next.admin().force_release("late").await.unwrap();
        let held = take(&next, "late", LONG).await;
        held.begin_run().await.unwrap();
        assert!(!late.end_run(true, "late").await.unwrap_or(false));
        let [last, first] = &next.admin().runs_of("late").await.unwrap()[..] else { panic!("two runs") };
        assert_eq!((last.state, first.state), (RunState::Running, RunState::Abandoned));
    }

    async fn runs_of_long_ago_are_cleaned_away(db: &Db) {
        let one = db.rowlock().await;
        for name in ["old", "new"] {
            let held = take(&one, name, LONG).await;
            held.begin_run().await.unwrap();
            held.end_run(true, "").await.unwrap();
            release(&held).await;
        }
        let ago = |days: i64| db.moved("began_at", -days * 24 * 3_600);
        for (name, days) in [("old", 401), ("new", 399)] {
            let name = db.bytes(name);
            let began = ago(days);
            db.execute(&format!("UPDATE rowlock_run SET began_at = {began} WHERE name = {name}")).await;
        }
        one.admin().clean_all(100).await.unwrap();
        let runs = one.admin().runs().await.unwrap();
        let names: Vec<_> = runs.iter().map(|run| run.name.as_str()).collect();
        assert_eq!(names, ["new"]);
    }

    async fn a_name_stays_taken_when_the_runtime_of_its_job_ends(db: &Db) {
        let two = db.rowlock().await;
        let url = db.url.clone();
        // The job's runtime ends while it runs. The client lives on.
        let one = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let (one, began) = runtime.block_on(async {
                let one = rowlock::Rowlock::connect(&url).await.unwrap();
                let (begins, began) = tokio::sync::oneshot::channel();
                let job = Job::new(&one, "j").at_least_for(LONG);
                tokio::spawn(async move {
                    job.run(async |_| {
                        let _ = begins.send(());
                        std::future::pending::<Result<(), Error>>().await
                    }).await
                });
                (one, began)
            });
            runtime.block_on(began).unwrap();
            drop(runtime);
            one
        }).await.unwrap();
        one.flush().await;
        let busy = two.lock("j").try_acquire().await.unwrap();
        assert!(busy.is_none(), "the name is free before its time");
        one.shutdown(Duration::from_secs(10)).await;
        let busy = two.lock("j").try_acquire().await.unwrap();
        assert!(busy.is_none(), "the name is free before its time");
    }
}
