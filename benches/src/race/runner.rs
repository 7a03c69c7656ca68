//! One process of a run: the closed loop of its tasks.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::Failure;
use crate::locking::Contender;
use crate::referee::Referee;
use crate::workload::{Names, Workload};

/// Tasks that still wait when the time is over get the lock within this time. Otherwise the run fails.
const LAST_WAIT: Duration = Duration::from_mins(1);

/// What a process has to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Orders {
    pub(crate) contender: String,
    pub(crate) url: String,
    pub(crate) workload: Workload,
    /// The number of this process, from 0.
    pub(crate) process: u32,
    pub(crate) processes: u32,
    /// How many tasks each process has.
    pub(crate) tasks: u32,
    pub(crate) warm_up: f64,
    pub(crate) seconds: f64,
    /// The file of the referee.
    pub(crate) referee: Option<PathBuf>,
}

impl Orders {
    /// How many connections a process has, where each operation needs a connection: two for each task, up to 32. A
    /// pool of sqlx pings a connection that returns to it, and meanwhile the task has another one.
    pub(crate) fn connections(&self) -> u32 {
        (2 * self.tasks).min(32)
    }
}

/// What happened in the measured time.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Acquired and released.
    pub(crate) pairs: u64,
    /// The pairs of the task that has the fewest.
    pub(crate) least: u64,
    /// The time from the question for the lock to the lock, in nanoseconds, and how often it was so long.
    pub(crate) latencies: Vec<(u64, u64)>,
    /// The pairs of each second.
    pub(crate) by_second: Vec<u64>,
}

/// Latencies with an error of 1 %, from nanoseconds to an hour.
pub(crate) fn latencies() -> Histogram<u64> {
    let hour = 3_600_000_000_000;
    Histogram::new_with_bounds(1, hour, 2)
        .expect("the bounds are constants in the range of the histogram")
}

/// Connects, tells the parent so, waits for its word, runs, and prints the outcome.
pub(crate) async fn child(
    orders: &str,
    connect: impl AsyncFnOnce(&Orders) -> Result<Arc<dyn Contender>, Failure>,
) -> Result<(), Failure> {
    let orders: Orders = serde_json::from_str(orders)?;
    let contender = connect(&orders).await?;
    println!("ready");
    std::io::stdout().flush()?;
    let mut word = String::new();
    std::io::stdin().lock().read_line(&mut word)?;
    if word != "go\n" {
        return Err("the parent process ended before the start".into());
    }
    let outcome = run(&orders, Arc::clone(&contender)).await?;
    contender.leave().await;
    println!("{}", serde_json::to_string(&outcome)?);
    // The process ends here. What clients do when they are dropped is not measured.
    Ok(())
}

async fn run(orders: &Orders, contender: Arc<dyn Contender>) -> Result<Outcome, Failure> {
    let all = orders.tasks * orders.processes;
    let names = orders.workload.names(all);
    let referee = Arc::new(Referee::new(names, orders.referee.as_deref())?);
    let begin = Instant::now() + Duration::from_secs_f64(orders.warm_up);
    let end = begin + Duration::from_secs_f64(orders.seconds);
    let mut tasks = JoinSet::new();
    for task in 0..orders.tasks {
        let number = orders.process * orders.tasks + task;
        let names = Names::new(
            orders.workload,
            number,
            all,
            SmallRng::seed_from_u64(number.into()),
        );
        let lane = Lane {
            contender: Arc::clone(&contender),
            referee: Arc::clone(&referee),
            prefix: orders.workload.prefix(),
            task,
            begin,
            end,
        };
        tasks.spawn(lane.drive(names));
    }
    let deadline = tokio::time::Instant::from_std(end + LAST_WAIT);
    let (mut outcome, mut all) = (Outcome::default(), latencies());
    outcome.least = u64::MAX;
    loop {
        let next = tokio::time::timeout_at(deadline, tasks.join_next()).await;
        let Some(ended) =
            next.map_err(|_| "a task waited for the lock for a minute after the end")?
        else {
            break;
        };
        let (waits, by_second) = ended??;
        outcome.least = outcome.least.min(waits.len());
        all.add(waits)?;
        outcome
            .by_second
            .resize(outcome.by_second.len().max(by_second.len()), 0);
        for (sum, pairs) in outcome.by_second.iter_mut().zip(by_second) {
            *sum += pairs;
        }
    }
    outcome.pairs = all.len();
    let recorded = all.iter_recorded();
    outcome.latencies = recorded
        .map(|value| (value.value_iterated_to(), value.count_at_value()))
        .collect();
    Ok(outcome)
}

/// One task.
struct Lane {
    contender: Arc<dyn Contender>,
    referee: Arc<Referee>,
    prefix: &'static str,
    task: u32,
    begin: Instant,
    end: Instant,
}

impl Lane {
    async fn drive(self, mut names: Names) -> Result<(Histogram<u64>, Vec<u64>), Failure> {
        let mut waits = latencies();
        let mut by_second = Vec::new();
        // At least one pair, however slow the machine is: so a run without an error shows that every task was granted.
        loop {
            let asked = Instant::now();
            let name = names.next();
            let text = format!("{}{name}", self.prefix);
            let held = self.contender.acquire(self.task, &text).await?;
            let waited = asked.elapsed();
            self.referee.enter(name)?;
            // Lets other tasks run while this one holds the name. A second holder would be seen here.
            tokio::task::yield_now().await;
            self.referee.leave(name)?;
            held.release().await?;
            let done = Instant::now();
            if done >= self.begin && done < self.end {
                waits.record(u64::try_from(waited.as_nanos())?)?;
                let second = usize::try_from((done - self.begin).as_secs())?;
                if by_second.len() <= second {
                    by_second.resize(second + 1, 0);
                }
                by_second[second] += 1;
            }
            if done >= self.end {
                return Ok((waits, by_second));
            }
        }
    }
}
