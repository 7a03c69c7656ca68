//! A `#[job]` on three replicas of an application, started by the schedulers that people use: one run a round.

use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use apalis::prelude::{BoxDynError, Data, WorkerBuilder};
use apalis_cron::{CronScheduler, Tick};
use cron::Schedule;
use rowlock::{Engine, Rowlock};
use rowlock_test::{Db, patience};
use tokio_cron_scheduler::{Job, JobScheduler};

/// A round begins every two seconds. The schedulers may be late by some hundred milliseconds.
const ROUNDS: &str = "*/2 * * * * *";
const ROUND: Duration = Duration::from_secs(2);

/// How many rounds are waited for.
const SEEN: u32 = 4;
const REPLICAS: usize = 3;

/// A replica: a client of its own, and what all replicas of the test count.
#[derive(Debug, Clone)]
struct Replica {
    rowlock: Rowlock,
    /// How often a scheduler has started the job, and how often it ran.
    starts: Arc<AtomicU32>,
    runs: Arc<AtomicU32>,
}

impl Replica {
    #[rowlock_recipes::job(name = "report", at_least_for = "1s")]
    async fn report(&self) -> Result<(), rowlock::Error> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    async fn start(&self) {
        self.starts.fetch_add(1, Ordering::SeqCst);
        self.report().await.unwrap();
    }
}

async fn replicas(db: &Db) -> Vec<Replica> {
    let (starts, runs) = (Arc::default(), Arc::default());
    let mut replicas = Vec::new();
    for _ in 0..REPLICAS {
        replicas.push(Replica {
            rowlock: db.rowlock().await,
            starts: Arc::clone(&starts),
            runs: Arc::clone(&runs),
        });
    }
    replicas
}

/// Each round had one run: as many as full rounds have passed, and one more at most at either end.
async fn one_run_a_round(replicas: &[Replica]) {
    let (starts, runs) = (&replicas[0].starts, &replicas[0].runs);
    let began = tokio::time::Instant::now();
    while runs.load(Ordering::SeqCst) < SEEN {
        assert!(began.elapsed() < patience(), "the job does not run");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let rounds = began.elapsed().as_millis().div_ceil(ROUND.as_millis()) + 1;
    let (starts, runs) = (starts.load(Ordering::SeqCst), runs.load(Ordering::SeqCst));
    assert!(u128::from(runs) <= rounds, "{runs} runs in {rounds} rounds");
    assert!(starts > runs, "{starts} starts, {runs} runs");
}

async fn with_tokio_cron_scheduler(engine: Engine) {
    let db = Db::new(engine).await;
    let replicas = replicas(&db).await;
    let mut schedulers = Vec::new();
    for replica in &replicas {
        let scheduler = JobScheduler::new().await.unwrap();
        let replica = replica.clone();
        let job = Job::new_async(ROUNDS, move |_, _| {
            let replica = replica.clone();
            Box::pin(async move { replica.start().await })
        });
        scheduler.add(job.unwrap()).await.unwrap();
        scheduler.start().await.unwrap();
        schedulers.push(scheduler);
    }
    one_run_a_round(&replicas).await;
    for mut scheduler in schedulers {
        scheduler.shutdown().await.unwrap();
    }
    db.remove().await;
}

async fn tick(_: Tick, replica: Data<Replica>) -> Result<(), BoxDynError> {
    replica.start().await;
    Ok(())
}

async fn with_apalis(engine: Engine) {
    let db = Db::new(engine).await;
    let replicas = replicas(&db).await;
    let mut workers = tokio::task::JoinSet::new();
    for replica in &replicas {
        let schedule = Schedule::from_str(ROUNDS).unwrap();
        let worker = WorkerBuilder::new("report")
            .backend(CronScheduler::new(schedule))
            .data(replica.clone())
            .build(tick);
        workers.spawn(worker.run());
    }
    one_run_a_round(&replicas).await;
    workers.shutdown().await;
    db.remove().await;
}

#[tokio::test]
async fn tokio_cron_scheduler_on_sqlite() {
    with_tokio_cron_scheduler(Engine::Sqlite).await;
}

#[tokio::test]
async fn tokio_cron_scheduler_on_postgres() {
    with_tokio_cron_scheduler(Engine::Postgres).await;
}

#[tokio::test]
async fn apalis_on_sqlite() {
    with_apalis(Engine::Sqlite).await;
}

#[tokio::test]
async fn apalis_on_postgres() {
    with_apalis(Engine::Postgres).await;
}
