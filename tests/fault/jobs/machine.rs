//! A machine that starts all jobs at their times, by its own clock.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::Rng;
use rowlock::{Error, Rowlock};
use rowlock_recipes::Job;
use rowlock_test::{App, on_app, tell};
use sqlx::AssertSqlSafe;
use tokio::task::JoinSet;

use super::{AT_LEAST_FOR, CARELESS, EVERY, JOBS, SPREAD, STRIKE, TOO_SHORT, clock};
use crate::role::Role;

/// A machine. Times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Machine {
    /// How far its clock is moved.
    pub(crate) skew: i64,
    /// How many rounds each job has.
    pub(super) rounds: i64,
}

/// What a machine tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum Event {
    /// What its clock shows.
    Clock(i64),
    /// It waits for the time of the first round.
    Ready,
    /// It calls a job in this round.
    Calls(i64, i64),
    /// The job runs on it.
    Runs(i64),
    /// The run was cut off: a server that does not answer for longer than the TTL costs the lease.
    CutOff(i64, i64),
    /// The call has returned.
    Called(i64, i64),
    /// All rounds are over.
    Off,
}

/// An event, and the process whose it is.
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
pub(super) struct Told {
    pub(super) process: u32,
    pub(super) event: Event,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for Told {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        serde_json::from_str(line).map_err(|error| format!("{line}: {error}"))
    }
}

fn say(event: Event) {
    let process = std::process::id();
    tell(Told { process, event });
}

/// Starts every job at each of its rounds, until the process is killed.
pub(crate) async fn work(role: &Role, machine: Machine) {
    clock::leave_nothing();
    say(Event::Clock(clock::now()));
    let rowlock = role.connect().await;
    let app = App::connect(&role.url, 4).await;
    say(Event::Ready);
    let begin = begin(&app).await;
    let mut all = JoinSet::new();
    for number in 0..JOBS + CARELESS {
        let at_least_for = if number < JOBS {
            AT_LEAST_FOR
        } else {
            TOO_SHORT
        };
        let job = Scheduled {
            number,
            job: job(&rowlock, number, role.ttl).at_least_for(at_least_for),
            app: app.clone(),
            begin,
        };
        all.spawn(job.each_round(machine));
    }
    all.join_all().await;
    say(Event::Off);
    std::future::pending::<()>().await;
}

/// When the first round of the first job begins. The test tells it when all machines are ready.
async fn begin(app: &App) -> i64 {
    loop {
        let begins = "SELECT COALESCE(MAX(begins), 0) FROM first_round";
        let begins = app.number(begins).await;
        if begins > 0 {
            return begins;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn job(rowlock: &Rowlock, number: i64, ttl: Duration) -> Job {
    Job::new(rowlock, format!("job-{number}"))
        .ttl(ttl)
        .holder(format!("machine {}", std::process::id()))
}

/// A job, as a machine has it.
struct Scheduled {
    number: i64,
    job: Job,
    app: App,
    /// When the first round of the first job begins.
    begin: i64,
}

impl Scheduled {
    /// When a round begins.
    fn time(&self, round: i64) -> i64 {
        let phase = SPREAD.as_millis() * u128::try_from(self.number).unwrap();
        let phase = i64::try_from(phase).unwrap() / (JOBS + CARELESS);
        self.begin + phase + round * i64::try_from(EVERY.as_millis()).unwrap()
    }

    /// Calls the job in all rounds that are not over. A machine that starts late leaves out the rounds before.
    async fn each_round(self, machine: Machine) {
        for round in 0..machine.rounds {
            let time = self.time(round);
            if time < clock::now() {
                continue;
            }
            // A sleep does not follow the wall clock.
            while let Ok(rest @ 1..) = u64::try_from(time - clock::now()) {
                tokio::time::sleep(Duration::from_millis(rest)).await;
            }
            say(Event::Calls(self.number, round));
            let has_begun = AtomicBool::new(false);
            loop {
                let ran = self.job.run(async |_| {
                    has_begun.store(true, Ordering::Relaxed);
                    self.effect(round, time).await
                });
                let Err(error) = ran.await else {
                    break;
                };
                eprintln!("machine: job {} in round {round}: {error}", self.number);
                // A busy server has not answered in time.
                if has_begun.load(Ordering::Relaxed) {
                    say(Event::CutOff(self.number, round));
                    break;
                }
                if !error.is_transient() {
                    break;
                }
            }
            say(Event::Called(self.number, round));
        }
    }

    /// The work: it leaves a row when it begins, and marks it when it ends.
    async fn effect(&self, round: i64, time: i64) -> Result<(), Error> {
        let (job, process) = (self.number, std::process::id());
        let late = clock::now() - time;
        self.execute(format!(
            "INSERT INTO effect (job, round, process, late, done) VALUES ({job}, {round}, {process}, {late}, 0)"
        ))
        .await?;
        say(Event::Runs(job));
        let work = rand::rng().random_range(STRIKE..5 * STRIKE);
        tokio::time::sleep(work).await;
        self.execute(format!(
            "UPDATE effect SET done = 1 WHERE job = {job} AND round = {round} AND process = {process}"
        ))
        .await
    }

    async fn execute(&self, sql: String) -> Result<(), Error> {
        on_app!(&self.app, pool => {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await?;
        });
        Ok(())
    }
}
