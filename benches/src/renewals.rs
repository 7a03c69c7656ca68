//! How many leases a client can hold: many leases of one TTL, and a few urgent leases of a short TTL. Prints how many leases were
//! lost, the cost of the renewals, and the client's warnings.

mod servers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use comfy_table::{Table, presets};
use rowlock::{Engine, Held, Rowlock};
use sqlx::{Connection, MySqlConnection, PgConnection};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use servers::Server;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The number of leases that are acquired at the same time.
const AT_ONCE: usize = 512;

#[derive(Debug, Parser)]
struct Arguments {
    /// Engines to measure, each on a separate durable server.
    #[arg(long, value_delimiter = ',', default_value = "postgres,mysql")]
    engines: Vec<Engine>,
    /// The number of leases with the long TTL.
    #[arg(long, default_value_t = 20_000)]
    leases: usize,
    /// The long TTL, in seconds.
    #[arg(long, default_value_t = 1.0)]
    ttl: f64,
    /// The number of urgent leases.
    #[arg(long, default_value_t = 1)]
    urgent: usize,
    /// The TTL of the urgent leases, in seconds.
    #[arg(long, default_value_t = 0.2)]
    urgent_ttl: f64,
    /// How long to hold all leases, in seconds.
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_writer(std::io::stderr)
        .init();
    let mut results = Table::new();
    results.load_preset(presets::ASCII_MARKDOWN).set_header([
        "engine",
        "leases",
        "acquired in s",
        "lost while acquiring",
        "lost while held",
        "urgent",
        "urgent lost",
        "renewals/s",
        "per statement",
        "client MiB",
    ]);
    for engine in &arguments.engines {
        let server = Server::start(*engine)?;
        results.add_row(hold(&arguments, &server).await?);
    }
    println!(
        "\nLeases of {} s beside urgent ones of {} s, held for {} s:\n\n{results}",
        arguments.ttl, arguments.urgent_ttl, arguments.seconds
    );
    Ok(())
}

async fn hold(arguments: &Arguments, server: &Server) -> Result<Vec<String>, Failure> {
    let rowlock = Rowlock::connect(&server.url).await?;
    let started = Instant::now();
    let ttl = Duration::from_secs_f64(arguments.ttl);
    let crowd = acquire(&rowlock, "crowd", arguments.leases, ttl).await?;
    let took = started.elapsed();
    let ttl = Duration::from_secs_f64(arguments.urgent_ttl);
    let urgent = acquire(&rowlock, "urgent", arguments.urgent, ttl).await?;

    let lost = |held: &[Held]| held.iter().filter(|held| held.loss().is_some()).count();
    let before = lost(&crowd);
    let mut counters = Counters::connect(server).await?;
    let from = counters.read().await?;
    let started = Instant::now();
    tokio::time::sleep(Duration::from_secs_f64(arguments.seconds)).await;
    let (after, urgent_lost) = (lost(&crowd), lost(&urgent));
    let to = counters.read().await?;
    let seconds = started.elapsed().as_secs_f64();
    let (statements, rows) = (to.0 - from.0, to.1 - from.1);
    Ok(vec![
        server.engine.name().into(),
        crowd.len().to_string(),
        format!("{:.1}", took.as_secs_f64()),
        before.to_string(),
        (after - before).to_string(),
        urgent.len().to_string(),
        urgent_lost.to_string(),
        format!("{:.0}", rows / seconds),
        format!("{:.0}", rows / statements.max(1.0)),
        memory()?,
    ])
}

async fn acquire(
    rowlock: &Rowlock,
    prefix: &str,
    count: usize,
    ttl: Duration,
) -> Result<Vec<Held>, Failure> {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let mut tasks = JoinSet::new();
    for number in 0..count {
        let place = Arc::clone(&places).acquire_owned().await?;
        let lock = rowlock.lock(format!("{prefix}-{number}")).ttl(ttl);
        tasks.spawn(async move {
            let held = lock.acquire().await;
            drop(place);
            held
        });
    }
    let mut all = Vec::with_capacity(count);
    while let Some(held) = tasks.join_next().await {
        all.push(held??);
    }
    Ok(all)
}

/// The resident memory of this process.
fn memory() -> Result<String, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kib.map_or_else(|| "?".into(), |kib| format!("{:.0}", kib / 1024.0)))
}

/// The server's counters: statements that renew, and written rows.
#[derive(Debug)]
enum Counters {
    Postgres(PgConnection),
    MySql(MySqlConnection),
    None,
}

impl Counters {
    async fn connect(server: &Server) -> Result<Self, Failure> {
        Ok(match server.engine {
            Engine::Postgres => Self::Postgres(PgConnection::connect(&server.url).await?),
            Engine::MySql | Engine::MariaDb => {
                Self::MySql(MySqlConnection::connect(&server.url).await?)
            }
            _ => Self::None,
        })
    }

    async fn read(&mut self) -> Result<(f64, f64), Failure> {
        match self {
            // Commits: each statement outside of a transaction is one.
            Self::Postgres(conn) => Ok(sqlx::query_as(
                "SELECT (SELECT xact_commit::float8 FROM pg_stat_database WHERE datname = current_database()), \
                        (SELECT n_tup_upd::float8 FROM pg_stat_user_tables WHERE relname = 'rowlock_lock')",
            )
            .fetch_one(conn)
            .await?),
            Self::MySql(conn) => {
                let mut read = async |name: &str| -> Result<f64, Failure> {
                    let sql = format!("SHOW GLOBAL STATUS LIKE '{name}'");
                    let row: (String, String) =
                        sqlx::query_as(sqlx::AssertSqlSafe(sql)).fetch_one(&mut *conn).await?;
                    Ok(row.1.parse()?)
                };
                Ok((read("Com_update_multi").await?, read("Handler_update").await?))
            }
            Self::None => Ok((0.0, 0.0)),
        }
    }
}
