//! An idempotent request, from its claim to its outcome, beside the naive way: an INSERT and an UPDATE, each
//! committed, on a connection for each task. Fresh keys per second, and the time of one.
//!
//! The server waits for the disk at each commit. The results are medians of several rounds.

mod common;
mod figures;
mod servers;
mod shop;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use comfy_table::Table;
use common::Common;
use figures::{median, micros, table};
use rowlock::{Begun, Engine, Fingerprint, Idempotency, Outcome, Rowlock, Scope};
use servers::Server;
use shop::{Shop, on_shop};
use tokio::task::JoinSet;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Tasks that run at the same time.
    #[arg(long, value_delimiter = ',', default_value = "1,16,128")]
    tasks: Vec<u32>,
    /// Seconds per round.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
}

const SETUP: [&str; 1] =
    ["CREATE TABLE bench_request (id VARCHAR(60) NOT NULL PRIMARY KEY, outcome VARCHAR(400))"];

const OUTCOME: &str = "a response of a common length, ";

fn outcome() -> String {
    OUTCOME.repeat(8)
}

#[derive(Debug, Clone, Copy)]
enum Way {
    Naive,
    Ours,
}

#[derive(Debug, Clone)]
struct Bench {
    shop: Shop,
    engine: Engine,
    idempotency: Idempotency,
    next: Arc<AtomicUsize>,
}

impl Bench {
    async fn naive(self, until: Instant) -> Result<usize, Failure> {
        let [insert, update] = if self.engine == Engine::Postgres {
            [
                "INSERT INTO bench_request (id) VALUES ($1)",
                "UPDATE bench_request SET outcome = $1 WHERE id = $2",
            ]
        } else {
            [
                "INSERT INTO bench_request (id) VALUES (?)",
                "UPDATE bench_request SET outcome = ? WHERE id = ?",
            ]
        };
        let mut count = 0;
        on_shop!(&self.shop, pool => {
            let mut conn = pool.acquire().await?;
            while Instant::now() < until {
                let key = self.key();
                sqlx::query(insert).bind(&key).execute(&mut *conn).await?;
                sqlx::query(update).bind(outcome()).bind(&key).execute(&mut *conn).await?;
                count += 1;
            }
        });
        Ok(count)
    }

    async fn ours(self, until: Instant) -> Result<usize, Failure> {
        let request = Fingerprint::of("request");
        let mut count = 0;
        while Instant::now() < until {
            let key = self.key();
            let begun = self.idempotency.begin(Scope("bench").key(&key), &request);
            let Begun::New(guard) = begun.await? else {
                return Err("not new".into());
            };
            let outcome = Outcome::new("text/plain", outcome())?;
            guard.complete(&outcome).await?;
            count += 1;
        }
        Ok(count)
    }

    fn key(&self) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}-{number}", fastrand::u64(..))
    }

    /// Keys in a round.
    async fn round(&self, way: Way, tasks: u32, span: Duration) -> Result<usize, Failure> {
        let until = Instant::now() + span;
        let mut running = JoinSet::new();
        for _ in 0..tasks {
            let bench = self.clone();
            running.spawn(async move {
                match way {
                    Way::Naive => bench.naive(until).await,
                    Way::Ours => bench.ours(until).await,
                }
            });
        }
        let mut count = 0;
        while let Some(task) = running.join_next().await {
            count += task??;
        }
        Ok(count)
    }
}

async fn measure(arguments: &Arguments, engine: Engine, table: &mut Table) -> Result<(), Failure> {
    let server = Server::start(engine)?;
    let rowlock = Rowlock::connect(&server.url).await?;
    let most = arguments.tasks.iter().copied().max().unwrap_or(1);
    let bench = Bench {
        shop: Shop::open(&server, most, &SETUP).await?,
        engine,
        idempotency: rowlock.idempotency(),
        next: Arc::default(),
    };
    let span = Duration::from_secs_f64(arguments.seconds);
    for tasks in &arguments.tasks {
        let mut rates: [Vec<f64>; 2] = Default::default();
        // One more round: the first round warms up, and does not count.
        for round in 0..=arguments.common.rounds {
            for (rates, way) in rates.iter_mut().zip([Way::Naive, Way::Ours]) {
                let began = Instant::now();
                let count = bench.round(way, *tasks, span).await?;
                if round > 0 {
                    rates.push(1e6 / micros(began.elapsed(), count));
                }
            }
        }
        let [naive, ours] = rates.map(median);
        let of_one = |rate: f64| format!("{:.2}", 1e3 * f64::from(*tasks) / rate);
        table.add_row([
            engine.name().to_owned(),
            tasks.to_string(),
            format!("{naive:.0}"),
            format!("{ours:.0}"),
            format!("{:.2}", ours / naive),
            of_one(naive),
            of_one(ours),
        ]);
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let mut rates = table(&[
        "engine",
        "tasks",
        "naive",
        "rowlock",
        "rowlock / naive",
        "naive ms",
        "rowlock ms",
    ]);
    for engine in arguments.common.engines.clone() {
        measure(&arguments, engine, &mut rates).await?;
    }
    println!(
        "\nFresh keys per second, begun and completed, and the time of one (median of {} rounds):\n\n{rates}",
        arguments.common.rounds
    );
    Ok(())
}
