//! What waiting costs: the time from one client's release to another client's guard.

mod figures;
mod servers;

use std::time::{Duration, Instant};

use clap::Parser;
use rowlock::{Engine, Held, Lock, Rowlock};
use sqlx::{Connection, MySqlConnection, PgConnection, SqliteConnection};

use figures::{median, micros, table};
use servers::Server;

/// A table with one row.
const TOUCHED: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS touched (id INTEGER PRIMARY KEY, times INTEGER)",
    "INSERT INTO touched SELECT 1, 0 WHERE NOT EXISTS (SELECT 1 FROM touched)",
];

/// A transaction that changes that row.
const TOUCH: &str = "UPDATE touched SET times = times + 1 WHERE id = 1";

/// The first hand-overs are not counted: each client opens a connection for its waiters.
const WARM_UP: usize = 10;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Parser)]
struct Arguments {
    /// Engines to measure, each on a separate durable server.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "sqlite,postgres,mysql,mariadb"
    )]
    engines: Vec<Engine>,
    /// How often the lock is handed over, in each run.
    #[arg(long, default_value_t = 300)]
    rounds: usize,
    /// The number of runs; the medians of their percentiles are printed.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// How long each client holds the lock, in milliseconds.
    #[arg(long, default_value_t = 10)]
    hold: u64,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let mut wakes = table(&[
        "engine",
        "round trip µs",
        "commit µs",
        "p50 µs",
        "p99 µs",
        "p50 in round trips",
        "p99 in round trips",
    ]);
    for engine in &arguments.engines {
        let server = Server::start(*engine)?;
        let mut runs = Vec::new();
        for _ in 0..arguments.runs {
            runs.push(hand_over(&arguments, &server).await?);
        }
        let of = |figure: fn(&[f64; 4]) -> f64| median(runs.iter().map(figure).collect());
        wakes.add_row([
            engine.name().to_owned(),
            format!("{:.0}", of(|run| run[0])),
            format!("{:.0}", of(|run| run[1])),
            format!("{:.0}", of(|run| run[2])),
            format!("{:.0}", of(|run| run[3])),
            format!("{:.1}", of(|run| run[2] / run[0])),
            format!("{:.1}", of(|run| run[3] / run[0])),
        ]);
    }
    println!("\nFrom a release to another client's guard:\n\n{wakes}");
    Ok(())
}

/// The medians of bare round trips and of bare durable commits, and p50 and p99 of the hand-over, in microseconds.
async fn hand_over(arguments: &Arguments, server: &Server) -> Result<[f64; 4], Failure> {
    let clients = [
        Rowlock::connect(&server.url).await?,
        Rowlock::connect(&server.url).await?,
    ];
    let lock = |number: usize| -> Lock { clients[number % 2].lock("handed over") };
    let mut bare = Bare::connect(server).await?;
    let (mut trips, mut commits, mut wakes) = (Vec::new(), Vec::new(), Vec::new());
    let hold = Duration::from_millis(arguments.hold);
    for _ in 0..arguments.rounds {
        tokio::time::sleep(hold).await;
        let began = Instant::now();
        bare.run(TOUCH).await?;
        commits.push(micros(began.elapsed(), 1));
    }
    let mut held: Held = lock(0).acquire().await?;
    for round in 1..=WARM_UP + arguments.rounds {
        let next = lock(round);
        let next = tokio::spawn(async move {
            let held = next.acquire().await?;
            Ok::<_, rowlock::Error>((held, Instant::now()))
        });
        tokio::time::sleep(hold).await;
        let began = Instant::now();
        bare.run("SELECT 1").await?;
        trips.push(micros(began.elapsed(), 1));
        let released = Instant::now();
        held.release().await?;
        let (next, at) = next.await??;
        if round > WARM_UP {
            wakes.push(micros(at.saturating_duration_since(released), 1));
        }
        held = next;
    }
    wakes.sort_by(f64::total_cmp);
    let at = |percent: usize| wakes[(wakes.len() * percent / 100).min(wakes.len() - 1)];
    Ok([median(trips), median(commits), at(50), at(99)])
}

/// A connection beside the clients.
#[derive(Debug)]
enum Bare {
    Postgres(PgConnection),
    MySql(MySqlConnection),
    Sqlite(SqliteConnection),
}

impl Bare {
    async fn connect(server: &Server) -> Result<Self, Failure> {
        let mut bare = match server.engine {
            Engine::Postgres => Self::Postgres(PgConnection::connect(&server.url).await?),
            Engine::MySql | Engine::MariaDb => {
                Self::MySql(MySqlConnection::connect(&server.url).await?)
            }
            _ => Self::Sqlite(SqliteConnection::connect(&server.url).await?),
        };
        for sql in TOUCHED {
            bare.run(sql).await?;
        }
        Ok(bare)
    }

    async fn run(&mut self, sql: &'static str) -> Result<(), Failure> {
        match self {
            Self::Postgres(conn) => sqlx::query(sql).execute(conn).await.map(drop),
            Self::MySql(conn) => sqlx::query(sql).execute(conn).await.map(drop),
            Self::Sqlite(conn) => sqlx::query(sql).execute(conn).await.map(drop),
        }?;
        Ok(())
    }
}
