//! One run: starts the processes of a contender, lets them go at the same time, and adds their outcomes up.

use std::path::Path;
use std::process::Stdio;

use hdrhistogram::Histogram;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

use crate::Failure;
use crate::runner::{Orders, Outcome, latencies};

/// The sum of all processes.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) pairs_per_second: f64,
    pub(crate) latencies: Histogram<u64>,
    /// The pairs of the slowest process, as a part of an equal share.
    pub(crate) least_share: f64,
    /// The pairs of the task that has the fewest, as a part of an equal share.
    pub(crate) least_task_share: f64,
    pub(crate) by_second: Vec<u64>,
}

/// A child process that has connected.
struct Racer {
    child: Child,
    said: BufReader<ChildStdout>,
}

/// Runs `orders` in `orders.processes` processes of `program`.
pub(crate) async fn run(orders: &Orders, program: &Path) -> Result<Run, Failure> {
    let mut racers = Vec::new();
    for process in 0..orders.processes {
        let orders = Orders {
            process,
            ..orders.clone()
        };
        racers.push(Racer::start(&orders, program)?);
    }
    for racer in &mut racers {
        racer.is_ready().await?;
    }
    for racer in &mut racers {
        racer.go().await?;
    }
    let mut outcomes = Vec::new();
    for racer in racers {
        outcomes.push(racer.outcome().await?);
    }
    sum(orders, &outcomes)
}

impl Racer {
    fn start(orders: &Orders, program: &Path) -> Result<Self, Failure> {
        let mut command = Command::new(program);
        command.arg("--child").arg(serde_json::to_string(orders)?);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.kill_on_drop(true).spawn()?;
        let said = child.stdout.take().ok_or("a child process has no output")?;
        let said = BufReader::new(said);
        Ok(Self { child, said })
    }

    async fn is_ready(&mut self) -> Result<(), Failure> {
        let mut line = String::new();
        self.said.read_line(&mut line).await?;
        if line == "ready\n" {
            Ok(())
        } else {
            Err(self.why().await)
        }
    }

    async fn go(&mut self) -> Result<(), Failure> {
        let mut stdin = self
            .child
            .stdin
            .take()
            .ok_or("a child process has no input")?;
        Ok(stdin.write_all(b"go\n").await?)
    }

    async fn outcome(mut self) -> Result<Outcome, Failure> {
        let mut text = String::new();
        self.said.read_to_string(&mut text).await?;
        match serde_json::from_str(&text) {
            Ok(outcome) => Ok(outcome),
            Err(_) => Err(self.why().await),
        }
    }

    /// What the child process said before it failed.
    async fn why(&mut self) -> Failure {
        let mut text = String::new();
        if let Some(errors) = &mut self.child.stderr
            && errors.read_to_string(&mut text).await.is_err()
        {
            text.push_str("a child process failed");
        }
        text.trim().into()
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn sum(orders: &Orders, outcomes: &[Outcome]) -> Result<Run, Failure> {
    let mut all = latencies();
    let mut by_second = Vec::new();
    for outcome in outcomes {
        for (nanoseconds, count) in &outcome.latencies {
            all.record_n(*nanoseconds, *count)?;
        }
        by_second.resize(by_second.len().max(outcome.by_second.len()), 0);
        for (sum, pairs) in by_second.iter_mut().zip(&outcome.by_second) {
            *sum += pairs;
        }
    }
    let pairs: u64 = outcomes.iter().map(|outcome| outcome.pairs).sum();
    // The fewest pairs of anyone, where each of `count` has an equal share of all pairs.
    let share = |least: Option<u64>, count: u32| {
        least.unwrap_or(0) as f64 * f64::from(count) / pairs.max(1) as f64
    };
    let of_a_process = outcomes.iter().map(|outcome| outcome.pairs).min();
    let of_a_task = outcomes.iter().map(|outcome| outcome.least).min();
    Ok(Run {
        pairs_per_second: pairs as f64 / orders.seconds,
        latencies: all,
        least_share: share(of_a_process, orders.processes),
        least_task_share: share(of_a_task, orders.processes * orders.tasks),
        by_second,
    })
}
