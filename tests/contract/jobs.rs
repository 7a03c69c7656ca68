//! A job that several machines start in one round runs once, and its name stays taken for `at_least_for`. The last run
//! is recorded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rowlock::{Error, InvalidError, Loss, RecordError, Rowlock, RunState};
use rowlock_recipes::Job;
use rowlock_recipes::job::Ran;
use rowlock_test::{Db, eventually, last_run, on_every_engine, release, take};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

const LONG: Duration = Duration::from_mins(10);

/// The job does its work here.
async fn works(job: &Job) -> bool {
    let ran = job.run(async |_| Ok::<_, Error>(()));
    ran.await.unwrap().here().is_some()
}

#[rowlock_recipes::job(name = "remind:{shop}", at_least_for = "10min", ttl = "20s")]
async fn remind(rowlock: &Rowlock, shop: &str, count: &AtomicU32) -> Result<Option<u32>, Error> {
    assert!(held.is_held());
    Ok(Some(count.fetch_add(1, Ordering::SeqCst)))
}

on_every_engine! {
    async fn a_function_with_the_attribute_runs_on_one_machine_in_a_round(db: &Db) {
        let (one, two, three) = (db.rowlock().await, db.rowlock().await, db.rowlock().await);
        let count = AtomicU32::new(0);
        let (a, b, c) = tokio::join!(remind(&one, "north", &count), remind(&two, "north", &count), remind(&three, "north", &count));
        let ran: Vec<u32> = [a, b, c].into_iter().filter_map(Result::unwrap).collect();
        assert_eq!(ran, [0]);
        assert_eq!(remind(&two, "south", &count).await.unwrap(), Some(1), "another job");
        assert_eq!(remind(&three, "north", &count).await.unwrap(), None, "a machine whose clock is late");
        let mut runs: Vec<_> = one.admin().runs().await.unwrap().into_iter().map(|run| run.name.as_str().to_owned()).collect();
        runs.sort();
        assert_eq!(runs, ["remind:north", "remind:south"]);
    }

    async fn a_job_that_all_machines_start_runs_once(db: &Db) {
        let count = Arc::new(AtomicU32::new(0));
        let mut machines = JoinSet::new();
        for machine in 0..8 {
            let (rowlock, count) = (db.rowlock().await, Arc::clone(&count));
            machines.spawn(async move {
                let job = Job::new(&rowlock, "j").at_least_for(LONG).holder(format!("m{machine}"));
                let ran = job.run(async |_| {
                    count.fetch_add(1, Ordering::SeqCst);
                    Ok::<_, Error>(machine)
                });
                let ran = ran.await.unwrap();
                // The process ends: the name stays taken.
                rowlock.shutdown(Duration::from_secs(10)).await;
                match ran {
                    Ran::Here(machine) => Some(machine),
                    Ran::Skipped(busy) => {
                        assert!(busy.holder.is_none_or(|holder| holder.holder.starts_with('m')));
                        None
                    }
                }
            });
        }
        let ran: Vec<_> = machines.join_all().await.into_iter().flatten().collect();
        assert_eq!((ran.len(), count.load(Ordering::SeqCst)), (1, 1));
        let late = db.rowlock().await;
        assert!(!works(&Job::new(&late, "j")).await, "a machine whose clock is late");
        let [run] = &late.admin().runs().await.unwrap()[..] else {
            panic!("one run");
        };
        assert_eq!((run.name.as_str(), run.state), ("j", RunState::Succeeded));
        assert_eq!(run.holder, format!("m{}", ran[0]));
        assert_eq!(run.message, "");
    }

    async fn the_name_is_free_after_at_least_for(db: &Db) {
        let rowlock = db.rowlock().await;
        let time = Duration::from_millis(1_200);
        let job = Job::new(&rowlock, "j").at_least_for(time);
        let before = Instant::now();
        assert!(works(&job).await);
        eventually("the next round runs", async || works(&job).await).await;
        assert!(before.elapsed() >= time, "{:?}", before.elapsed());
        // One that takes longer than that frees the name at once.
        let quick = Job::new(&rowlock, "q").at_least_for(Duration::from_secs(1));
        let ran = quick.run(async |_| {
            tokio::time::sleep(Duration::from_millis(1_001)).await;
            Ok::<_, Error>(())
        });
        assert!(ran.await.unwrap().here().is_some());
        assert!(works(&quick).await);
    }

    async fn the_last_run_tells_what_came_of_it(db: &Db) {
        let rowlock = db.rowlock().await;
        assert_eq!(last_run(&rowlock, "j").await, None);
        let job = Job::new(&rowlock, "j").holder("here");
        let other = db.rowlock().await;
        let began = Instant::now();
        let failed = job.run(async |held| {
            let run = last_run(&other, "j").await.unwrap();
            assert_eq!((run.state, run.fence), (RunState::Running, held.fence()));
            let long = format!("no paper\0{}", "ä".repeat(1_000));
            Err::<(), _>(Error::Record(RecordError::Json { detail: long }))
        });
        let error = failed.await.unwrap_err();
        assert!(matches!(error, Error::Record(RecordError::Json { .. })), "{error}");
        let run = last_run(&other, "j").await.unwrap();
        assert_eq!((run.state, run.holder.as_str()), (RunState::Failed, "here"));
        assert!(run.message.contains("no paper") && run.message.len() >= 990, "{}", run.message);
        assert!(run.took.unwrap() <= began.elapsed());
        // The next run replaces it.
        assert!(works(&job).await);
        let next = last_run(&other, "j").await.unwrap();
        assert_eq!((next.state, next.message.as_str()), (RunState::Succeeded, ""));
        assert!(next.fence > run.fence && next.began_at >= run.began_at);
        assert!(works(&Job::new(&rowlock, "a")).await);
        let all = other.admin().runs().await.unwrap();
        let names: Vec<_> = all.iter().map(|run| run.name.as_str()).collect();
        assert_eq!(names, ["a", "j"]);
    }

    async fn a_late_process_does_not_touch_the_run_of_its_successor(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let late = take(&one, "j", LONG).await;
        late.begin_run().await.unwrap();
        late.begin_run().await.unwrap();
        two.admin().force_release("j").await.unwrap();
        let run = last_run(&two, "j").await.unwrap();
        assert_eq!(run.state, RunState::Abandoned);
        let next = take(&two, "j", LONG).await;
        next.begin_run().await.unwrap();
        assert!(!late.end_run(true, "late").await.unwrap());
        let error = late.begin_run().await.unwrap_err();
        assert!(matches!(error, Error::Lost { loss: Loss::TakenOver, .. }), "{error}");
        let run = last_run(&two, "j").await.unwrap();
        assert_eq!((run.state, run.fence), (RunState::Running, next.fence()));
        release(&next).await;
        assert!(next.end_run(true, "done").await.unwrap());
        assert!(next.end_run(true, "done").await.unwrap(), "the answer was lost");
        assert!(!next.end_run(false, "other").await.unwrap());
        let error = next.begin_run().await.unwrap_err();
        assert!(matches!(error, Error::Released { .. }), "{error}");
        let permit = one.semaphore("s", 1).acquire().await.unwrap();
        let error = permit.begin_run().await.unwrap_err();
        assert!(matches!(error, Error::Invalid(InvalidError::Setting { setting: "run", .. })), "{error}");
    }

    async fn a_job_that_was_cut_off_or_panics_keeps_its_name_taken(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let dropped = Job::new(&one, "dropped").at_least_for(LONG);
        let runs = Arc::new(Notify::new());
        let running = {
            let runs = Arc::clone(&runs);
            tokio::spawn(async move {
                let work = dropped.run(async |_| {
                    runs.notify_one();
                    std::future::pending::<Result<(), Error>>().await
                });
                work.await
            })
        };
        // The database shows the run before the work begins. If the job is cut off in between, it frees the name.
        runs.notified().await;
        running.abort();
        let _ = running.await;
        let panics = Job::new(&one, "panics").at_least_for(LONG);
        let panicked = tokio::spawn(async move {
            let run = panics.run(async |_| -> Result<(), Error> { panic!("on purpose") });
            run.await
        });
        assert!(panicked.await.unwrap_err().is_panic());
        one.shutdown(Duration::from_secs(10)).await;
        for name in ["dropped", "panics"] {
            assert!(!works(&Job::new(&two, name)).await, "{name}");
            let run = last_run(&two, name).await.unwrap();
            assert!(matches!(run.state, RunState::Abandoned | RunState::Running), "{run:?}");
        }
    }

    async fn a_run_that_is_left_while_a_transaction_has_it_locked_is_left_in_the_end(db: &Db) {
        let (rowlock, other) = (db.rowlock().await, db.rowlock().await);
        let time = Duration::from_mins(1);
        let job = Job::new(&rowlock, "j").ttl(LONG).at_least_for(time);
        let run = job.begin().await.unwrap();
        let pinned = db.lock_row("j").await;
        let mut leaving = Box::pin(run.leave());
        let first = timeout(Duration::from_millis(100), &mut leaving).await;
        assert!(first.is_err(), "{first:?}");
        // The caller goes away.
        drop(leaving);
        pinned.release().await;
        eventually("the name is taken for the rest", async || {
            let left = other.inspect("j").await.unwrap().expect("it is taken");
            (left.expires_at - left.acquired_at).to_std().unwrap() < LONG / 2
        })
        .await;
    }

    async fn a_run_that_was_abandoned_took_nobody_knows_how_long(db: &Db) {
        let rowlock = db.rowlock().await;
        let job = Job::new(&rowlock, "j");
        job.begin().await.unwrap().held().begin_run().await.unwrap();
        rowlock.flush().await;
        let run = last_run(&rowlock, "j").await.unwrap();
        assert_eq!((run.state, run.took), (RunState::Abandoned, None));
    }

    async fn a_job_runs_at_most_for_its_time(db: &Db) {
        let rowlock = db.rowlock().await;
        let job = Job::new(&rowlock, "j").at_most_for(Duration::from_secs(3));
        let ran = job.run(async |_| std::future::pending::<Result<(), Error>>().await);
        let error = ran.await.unwrap_err();
        assert!(matches!(error, Error::Lost { loss: Loss::MaxHold, .. }), "{error}");
        let run = last_run(&rowlock, "j").await.unwrap();
        assert_eq!(run.state, RunState::Failed);
        assert!(run.message.contains("max_hold"), "{}", run.message);
        eventually("another one can run", async || works(&job).await).await;
    }

    async fn a_round_that_runs_on_no_machine_is_told_apart(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let job = Job::new(&one, "j").at_least_for(LONG);
        let skipped = async |job: &Job| match job.run(async |_| Ok::<_, Error>(())).await.unwrap() {
            Ran::Here(()) => panic!("it ran"),
            Ran::Skipped(busy) => Job::runs_nowhere(&busy),
        };
        let held = take(&two, "j", LONG).await;
        assert!(!skipped(&job).await, "another machine has it");
        two.admin().pause("j", None, "the bank is down").await.unwrap();
        assert!(!skipped(&job).await, "it is paused, but that machine still has it");
        release(&held).await;
        assert!(skipped(&job).await, "it is paused, and nobody has it");
        two.admin().resume("j").await.unwrap();
        two.admin().quarantine(LONG).await.unwrap();
        assert!(skipped(&job).await, "the database is in quarantine");
        two.admin().end_quarantine().await.unwrap();
        assert!(works(&job).await);
    }

    async fn bad_settings_are_refused(db: &Db) {
        let rowlock = db.rowlock().await;
        let job = Job::new(&rowlock, "j").at_least_for(LONG).at_most_for(LONG / 2);
        let error = job.run(async |_| Ok::<_, Error>(())).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(InvalidError::Setting { setting: "at_least_for", .. })), "{error}");
        assert!(error.to_string().contains("longer than at_most_for"), "{error}");
        for (job, setting) in [
            (Job::new(&rowlock, "j").at_least_for(Duration::from_hours(25)), "at_least_for"),
            (Job::new(&rowlock, "j").ttl(Duration::ZERO), "ttl"),
            (Job::new(&rowlock, "j").at_most_for(Duration::ZERO), "at_most_for"),
        ] {
            let error = job.run(async |_| Ok::<_, Error>(())).await.unwrap_err();
            assert!(matches!(error, Error::Invalid(InvalidError::Duration { setting: of, .. }) if of == setting), "{error}");
        }
        let error = Job::new(&rowlock, "").run(async |_| Ok::<_, Error>(())).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(InvalidError::Name { .. })), "{error}");
        assert_eq!(rowlock.admin().runs().await.unwrap(), []);
    }

    async fn a_job_runs_although_its_run_cannot_be_recorded(db: &Db) {
        let rowlock = db.rowlock().await;
        let before = Job::new(&rowlock, "before");
        assert!(works(&before).await);
        db.execute("ALTER TABLE rowlock_run RENAME TO gone").await;
        let job = Job::new(&rowlock, "j").at_least_for(LONG);
        assert!(works(&job).await);
        assert!(!works(&job).await, "its name stays taken");
        db.execute("ALTER TABLE gone RENAME TO rowlock_run").await;
        assert_eq!(last_run(&rowlock, "j").await, None);
    }
}
