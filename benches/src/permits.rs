//! What permits cost. Pairs of acquire and release of a semaphore per second, beside a counter in bare SQL and the
//! semaphore of tokio in one process; a try on a full semaphore, by the number of its permits; a place in its queue,
//! by the length of the queue.
//!
//! The servers wait for the disk at each commit. Bare SQL has no queue and no expiry: a permit that does not fit is
//! asked for again a millisecond later.

mod common;
mod figures;
mod servers;
mod shop;

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use comfy_table::Table;
use common::Common;
use figures::{median, micros, table};
use rowlock::{Engine, Rowlock, Semaphore};
use servers::Server;
use shop::{Shop, on_shop};
use tokio::task::JoinSet;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Seconds per round, for the pairs per second.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// The capacities.
    #[arg(long, value_delimiter = ',', default_value = "1,100,10000")]
    capacities: Vec<u32>,
    /// Tasks that run at the same time.
    #[arg(long, value_delimiter = ',', default_value = "1,16,256")]
    tasks: Vec<u32>,
    /// How many permits a full semaphore has, and how many wait.
    #[arg(long, value_delimiter = ',', default_value = "10,1000,9000")]
    lengths: Vec<u32>,
    /// Tries on a full semaphore, and places in a queue, of each length.
    #[arg(long, default_value_t = 300)]
    tries: u32,
}

const SETUP: [&str; 1] = [
    "CREATE TABLE bench_semaphore (name VARCHAR(60) NOT NULL PRIMARY KEY, used BIGINT NOT NULL, capacity BIGINT NOT NULL)",
];

const TAKE: &str =
    "UPDATE bench_semaphore SET used = used + 1 WHERE name = 'bench' AND used < capacity";
const GIVE_BACK: &str = "UPDATE bench_semaphore SET used = used - 1 WHERE name = 'bench'";

/// Who gives permits.
#[derive(Debug, Clone)]
enum Way {
    Tokio(Arc<tokio::sync::Semaphore>),
    Bare(Shop),
    Ours(Arc<Semaphore>),
}

impl Way {
    /// How many permits one task was given and gave back.
    async fn pairs(self, until: Instant) -> Result<usize, Failure> {
        let mut count = 0;
        match self {
            Self::Tokio(semaphore) => {
                while Instant::now() < until {
                    drop(semaphore.acquire().await?);
                    tokio::task::yield_now().await;
                    count += 1;
                }
            }
            Self::Bare(shop) => on_shop!(&shop, pool => {
                let mut conn = pool.acquire().await?;
                while Instant::now() < until {
                    while sqlx::query(TAKE).execute(&mut *conn).await?.rows_affected() == 0 {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    sqlx::query(GIVE_BACK).execute(&mut *conn).await?;
                    count += 1;
                }
            }),
            Self::Ours(semaphore) => {
                while Instant::now() < until {
                    semaphore.acquire().await?.release().await?;
                    count += 1;
                }
            }
        }
        Ok(count)
    }

    /// Pairs per second.
    async fn rate(&self, tasks: u32, span: Duration) -> Result<f64, Failure> {
        let began = Instant::now();
        let mut running = JoinSet::new();
        for _ in 0..tasks {
            running.spawn(self.clone().pairs(began + span));
        }
        let mut count = 0;
        while let Some(task) = running.join_next().await {
            count += task??;
        }
        Ok(1e6 / micros(began.elapsed(), count.max(1)))
    }
}

async fn pairs(
    arguments: &Arguments,
    server: &Server,
    client: &Rowlock,
    table: &mut Table,
) -> Result<(), Failure> {
    let most = arguments.tasks.iter().copied().max().unwrap_or(1);
    let connections = if server.engine == Engine::Sqlite {
        1
    } else {
        most.min(100)
    };
    let shop = Shop::open(server, connections, &SETUP).await?;
    let span = Duration::from_secs_f64(arguments.seconds);
    for &capacity in &arguments.capacities {
        let reset = format!(
            "DELETE FROM bench_semaphore; INSERT INTO bench_semaphore VALUES ('bench', 0, {capacity})"
        );
        on_shop!(&shop, pool => {
            sqlx::raw_sql(sqlx::AssertSqlSafe(reset)).execute(pool).await?;
        });
        let permits = Arc::new(tokio::sync::Semaphore::new(usize::try_from(capacity)?));
        let ways = [
            Way::Tokio(permits),
            Way::Bare(shop.clone()),
            Way::Ours(Arc::new(
                client.semaphore(format!("pairs {capacity}"), capacity),
            )),
        ];
        for &tasks in &arguments.tasks {
            let mut rates: [Vec<f64>; 3] = Default::default();
            // One more round: the first round warms up, and does not count.
            for round in 0..=arguments.common.rounds {
                for (rates, way) in rates.iter_mut().zip(&ways) {
                    let tasks = if let Way::Bare(_) = way {
                        tasks.min(connections)
                    } else {
                        tasks
                    };
                    let rate = way.rate(tasks, span).await?;
                    if round > 0 {
                        rates.push(rate);
                    }
                }
            }
            let [tokio, bare, ours] = rates.map(median);
            table.add_row([
                server.engine.name().to_owned(),
                capacity.to_string(),
                tasks.to_string(),
                format!("{tokio:.0}"),
                format!("{bare:.0}"),
                format!("{ours:.0}"),
                format!("{:.2}", ours / bare),
            ]);
        }
    }
    Ok(())
}

/// The time of a try on a full semaphore of so many permits, in microseconds: p50 and mean.
async fn tries(arguments: &Arguments, client: &Rowlock, permits: u32) -> Result<[f64; 2], Failure> {
    let full = client.semaphore(format!("full {permits}"), permits);
    let mut asked = JoinSet::new();
    for _ in 0..permits {
        let full = full.clone();
        asked.spawn(async move { full.acquire().await });
    }
    let mut held = Vec::new();
    while let Some(permit) = asked.join_next().await {
        held.push(permit??);
    }
    let mut times = Vec::new();
    for _ in 0..arguments.tries {
        let began = Instant::now();
        if full.try_acquire().await?.is_some() {
            return Err("it is not full".into());
        }
        times.push(micros(began.elapsed(), 1));
    }
    let mean = times.iter().sum::<f64>() / f64::from(arguments.tries);
    for permit in held {
        drop(permit);
    }
    Ok([median(times), mean])
}

/// The time for one more place in a queue that is so long, in microseconds.
async fn place(arguments: &Arguments, client: &Rowlock, waiters: u32) -> Result<f64, Failure> {
    let name = format!("queue {waiters}");
    let semaphore = client.semaphore(name.clone(), 1);
    let held = semaphore.acquire().await?;
    let mut waiting = JoinSet::new();
    let mut join = async |count: u32, until: u32| {
        for _ in 0..count {
            let semaphore = semaphore.clone();
            waiting.spawn(async move { semaphore.acquire().await.map(drop) });
        }
        while client.admin().name(&*name).await?.map(|name| name.waiters) != Some(until) {
            if let Some(ended) = waiting.try_join_next() {
                ended??;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok::<_, Failure>(())
    };
    join(waiters, waiters).await?;
    let began = Instant::now();
    join(arguments.tries, waiters + arguments.tries).await?;
    let time = micros(began.elapsed(), usize::try_from(arguments.tries)?);
    waiting.abort_all();
    while waiting.join_next().await.is_some() {}
    drop(held);
    client.flush().await;
    Ok(time)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let mut rates = table(&[
        "engine",
        "capacity",
        "tasks",
        "tokio",
        "bare SQL",
        "rowlock",
        "rowlock / bare SQL",
    ]);
    let mut full = table(&[
        "engine",
        "permits or waiters",
        "try p50 µs",
        "try mean µs",
        "place µs",
    ]);
    for &engine in &arguments.common.engines {
        let server = Server::start(engine)?;
        let client = Rowlock::connect(&server.url).await?;
        pairs(&arguments, &server, &client, &mut rates).await?;
        for &length in &arguments.lengths {
            let [p50, mean] = tries(&arguments, &client, length).await?;
            let place = place(&arguments, &client, length).await?;
            full.add_row([
                engine.name().to_owned(),
                length.to_string(),
                format!("{p50:.0}"),
                format!("{mean:.0}"),
                format!("{place:.0}"),
            ]);
        }
    }
    println!(
        "\nPairs of acquire and release of a semaphore per second (median of {} rounds):\n\n{rates}",
        arguments.common.rounds
    );
    println!("\nA try on a full semaphore, and one more place in a queue:\n\n{full}");
    Ok(())
}
