//! Scheduled jobs on 8 machines whose clocks differ by up to 10 s: libfaketime moves the wall clock of each process.
//! Every machine starts the same jobs at the full round of its own clock. Now and then a machine is killed in the
//! middle of a run. Each round runs once, or at most once when a machine was killed in it. `ROWLOCK_JOB_ROUNDS` is how
//! many rounds.
//!
//! In the same run there are jobs whose `at_least_for` is shorter than the clocks differ. Their rounds run several
//! times, and the [`judge`] must see it.
//!
//! Not on SQLite: its clock is the clock of the process that asks. So the machines would not only call at different
//! times, they would also have different opinions on when a lease ends. (Processes on one SQLite file run on one host,
//! and have one clock.)
//!
//! - [`clock`]: the wall clock, and how it is moved.
//! - [`machine`]: one machine.
//! - [`judge`]: what must be true of the runs.

mod clock;
mod judge;
mod machine;

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

pub(crate) use clock::moved;
pub(crate) use judge::the_judge_sees_violations;
use judge::{Cut, Effect, judge};
use machine::{Event, Told};
pub(crate) use machine::{Machine, work};
use rand::Rng;
use rowlock::Engine;
use rowlock_test::{Crew, Db, on_app, patience};

use crate::role::{Part, Role};

/// How far the clock of each machine is moved, in milliseconds. The first and the last two call at the same instant.
const SKEWS: [i64; 8] = [-5_000, -5_000, -3_000, -1_000, 1_000, 3_000, 5_000, 5_000];
/// How much the clocks differ at most.
const DIFFER: Duration = Duration::from_secs(10);
/// How late a call may be: the machine may stand still for a moment.
const SLACK: Duration = Duration::from_secs(2);
/// More than the clocks differ.
const AT_LEAST_FOR: Duration = Duration::from_secs(12);
/// Longer than `AT_LEAST_FOR` and the difference: every call of a round finds the name free after the last round, also
/// that of the clock that is most ahead.
const EVERY: Duration = Duration::from_secs(24);
/// Less than the clocks differ.
const TOO_SHORT: Duration = Duration::from_secs(1);
/// The jobs that must run once in each round. Their rounds begin one after the other, in the first seconds of
/// [`EVERY`].
const JOBS: i64 = 20;
/// The jobs that are [`TOO_SHORT`].
const CARELESS: i64 = 5;
const SPREAD: Duration = Duration::from_secs(8);
/// Shorter than `AT_LEAST_FOR`: then the name of a killed machine's job is free for the next round.
const TTL: Duration = Duration::from_secs(3);
/// The longest time from the begin of a run to the kill of its machine. Every run takes longer.
const STRIKE: Duration = Duration::from_millis(300);

/// How often each job comes, so that there are `ROWLOCK_JOB_ROUNDS` rounds in all.
fn rounds() -> i64 {
    let all = std::env::var("ROWLOCK_JOB_ROUNDS");
    let all: i64 = all.map_or(20, |text| text.parse().expect("a number"));
    (all + JOBS - 1) / JOBS
}

/// The machines at work.
struct Fleet {
    crew: Crew<Told>,
    url: String,
    /// When the machine in each slot was started, at the earliest.
    started: [Instant; SKEWS.len()],
    /// How many machines have told what their clocks show, and how many have come to wait for the first round.
    clocks: usize,
    ready: usize,
    /// Whether the machine in each slot has nothing left to do.
    off: [bool; SKEWS.len()],
    /// The calls that have begun and not returned, of each process.
    calls: HashMap<u32, BTreeSet<Cut>>,
    killed: Vec<u32>,
    /// The runs whose lease was lost.
    cut_off: BTreeSet<Cut>,
    /// How often a job has run that must run once.
    runs: u32,
    /// When to kill the machine in a slot.
    strikes: Vec<(Instant, usize)>,
}

impl Fleet {
    fn start(url: &str) -> Self {
        let started = Instant::now();
        let roles = (0..SKEWS.len()).map(|slot| role(url, slot));
        Self {
            crew: Crew::start(roles),
            url: url.to_owned(),
            started: [started; SKEWS.len()],
            clocks: 0,
            ready: 0,
            off: [false; SKEWS.len()],
            calls: HashMap::new(),
            killed: Vec::new(),
            cut_off: BTreeSet::new(),
            runs: 0,
            strikes: Vec::new(),
        }
    }

    fn take_in(&mut self) {
        while let Some((slot, told)) = self.crew.next_event() {
            self.hear(slot, told);
        }
    }

    /// `slot`: that of a machine that has not been killed.
    fn hear(&mut self, slot: Option<usize>, Told { process, event }: Told) {
        match event {
            Event::Clock(shows) => {
                let Some(slot) = slot else { return };
                // It was read after the process started, and before now.
                let (now, age) = (clock::now(), self.started[slot].elapsed());
                let age = i64::try_from(age.as_millis()).unwrap() + 1;
                let real = shows - SKEWS[slot];
                assert!(
                    (now - age..=now).contains(&real),
                    "the clock of a machine is moved by {} ms, and not by {} ms",
                    shows - now,
                    SKEWS[slot]
                );
                self.clocks += 1;
            }
            Event::Ready => self.ready += 1,
            Event::Calls(job, round) => {
                self.calls.entry(process).or_default().insert((job, round));
            }
            Event::Runs(job) => {
                let Some(slot) = slot.filter(|_| job < JOBS) else {
                    return;
                };
                self.runs += 1;
                if self.runs % 12 == 4 {
                    let at = Instant::now() + rand::rng().random_range(Duration::ZERO..STRIKE);
                    self.strikes.push((at, slot));
                }
            }
            Event::CutOff(job, round) => drop(self.cut_off.insert((job, round))),
            Event::Called(job, round) => {
                let calls = self.calls.get_mut(&process);
                calls.expect("it called").remove(&(job, round));
            }
            Event::Off => {
                if let Some(slot) = slot {
                    self.off[slot] = true;
                }
            }
        }
    }

    /// Kills those whose time has come, and starts others in their place, with the same clocks.
    fn strike(&mut self) {
        let now = Instant::now();
        let (due, later) = self.strikes.drain(..).partition(|(at, _)| *at <= now);
        let due: Vec<(Instant, usize)> = due;
        self.strikes = later;
        for (_, slot) in due {
            self.strikes.retain(|(_, other)| *other != slot);
            self.killed.push(self.crew.kill(slot));
            self.off[slot] = false;
            self.started[slot] = now;
            self.crew.replace(slot, &role(&self.url, slot));
        }
    }

    /// Ends all machines. Returns the calls that were cut off by a kill, and by the loss of their lease.
    fn end(mut self) -> BTreeSet<Cut> {
        let crew = std::mem::replace(&mut self.crew, Crew::start([] as [Role; 0]));
        for told in crew.end() {
            self.hear(None, told);
        }
        let cut = self.killed.iter().filter_map(|id| self.calls.remove(id));
        cut.flatten().chain(self.cut_off).collect()
    }
}

fn role(url: &str, slot: usize) -> Role {
    let machine = Machine {
        skew: SKEWS[slot],
        rounds: rounds(),
    };
    Role {
        part: Part::Machine(machine),
        url: url.to_owned(),
        ttl: TTL,
    }
}

pub(crate) async fn run(engine: Engine) {
    let db = Db::new(engine).await;
    let columns = "job BIGINT NOT NULL, round BIGINT NOT NULL, process BIGINT NOT NULL, late BIGINT NOT NULL, done BIGINT NOT NULL";
    db.execute(&format!("CREATE TABLE effect ({columns})"))
        .await;
    drop(db.rowlock().await); // the tables
    db.execute("CREATE TABLE first_round (begins BIGINT NOT NULL)")
        .await;
    let mut fleet = Fleet::start(&db.url);
    let until = Instant::now() + patience();
    while fleet.ready < SKEWS.len() {
        assert!(Instant::now() < until, "the machines do not start");
        fleet.take_in();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // By each machine's own clock. The clock that is most ahead comes to it in a second.
    let ahead = i64::try_from((DIFFER / 2).as_millis()).unwrap() + 1_000;
    let begin = clock::now() + ahead;
    db.execute(&format!("INSERT INTO first_round VALUES ({begin})"))
        .await;
    let rounds = rounds();
    let longest = DIFFER + SPREAD + EVERY * u32::try_from(rounds).unwrap();
    let until = Instant::now() + longest + patience();
    while fleet.off != [true; SKEWS.len()] {
        assert!(Instant::now() < until, "the machines do not come to an end");
        fleet.take_in();
        fleet.crew.wake();
        fleet.strike();
        // The pace of the loop: a strike has a time, and no event.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (clocks, kills) = (fleet.clocks, fleet.crew.kills);
    assert!(clocks >= SKEWS.len(), "every machine has told its clock");
    assert!(kills > 0, "no machine was killed");
    let cut = fleet.end();
    let all = "SELECT job, round, late, done FROM effect ORDER BY job, round, late";
    let effects: Vec<(i64, i64, i64, i64)> = on_app!(&db.app, pool => {
        sqlx::query_as(all).fetch_all(pool).await.unwrap()
    });
    let effects: Vec<Effect> = effects.into_iter().map(Effect::from).collect();
    let verdict = judge(&effects, &cut, 0..JOBS, rounds, SLACK);
    let verdict = verdict.unwrap_or_else(|flaw| panic!("{engine}: {flaw}"));
    // (How many depends on the machine: a slow one cuts more of them off.)
    assert!(verdict.once() > 0, "{engine}: {verdict}");
    // The judge would see it if the clocks were not moved: then these would run once, too.
    let careless = judge(&effects, &cut, JOBS..JOBS + CARELESS, rounds, longest);
    let flaw = careless.expect_err("at_least_for is shorter than the clocks differ");
    assert!(flaw.contains("times"), "{engine}: {flaw}");
    println!(
        "jobs {engine}: {} rounds in all, of {JOBS} jobs on {} machines, whose clocks differ by {} s; {kills} kills of a machine: {verdict}; \
         with at_least_for = {} s: {flaw}",
        JOBS * rounds,
        SKEWS.len(),
        DIFFER.as_secs(),
        TOO_SHORT.as_secs(),
    );
    db.remove().await;
}
