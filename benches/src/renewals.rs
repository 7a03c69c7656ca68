//! How many leases a client can hold: many leases of one TTL (or as many locks in one session), and a few urgent
//! leases of a short TTL. Prints how many leases were lost, the cost of the renewals, and the client's warnings.

mod memory;
mod servers;

use std::time::{Duration, Instant};

use clap::Parser;
use comfy_table::{Table, presets};
use rowlock::{Engine, Held, Lock, Rowlock};
use sqlx::{Connection, MySqlConnection, PgConnection};
use tokio::task::JoinSet;

use memory::resident;
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
    /// Take them in the session of the client, whose TTL is then the long one.
    #[arg(long)]
    in_session: bool,
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
        "statements",
        "rows written/s",
        "client MiB",
        "MiB for the leases",
    ]);
    for engine in &arguments.engines {
        let server = Server::start(*engine)?;
        results.add_row(hold(&arguments, &server).await?);
    }
    let what = if arguments.in_session {
        "Locks in a session"
    } else {
        "Leases"
    };
    println!(
        "\n{what} of {} s beside urgent ones of {} s, held for {} s:\n\n{results}",
        arguments.ttl, arguments.urgent_ttl, arguments.seconds
    );
    Ok(())
}

async fn hold(arguments: &Arguments, server: &Server) -> Result<Vec<String>, Failure> {
    let ttl = Duration::from_secs_f64(arguments.ttl);
    let builder = Rowlock::builder().session_ttl(ttl.max(Duration::from_millis(100)));
    let rowlock = builder.connect(&server.url).await?;
    let memory_before = resident()? / 1024.0;
    let started = Instant::now();
    let lock = |lock: Lock| {
        if arguments.in_session {
            lock.in_session()
        } else {
            lock.ttl(ttl)
        }
    };
    let crowd = acquire(&rowlock, "crowd", arguments.leases, lock).await?;
    let took = started.elapsed();
    let ttl = Duration::from_secs_f64(arguments.urgent_ttl);
    let urgent = acquire(&rowlock, "urgent", arguments.urgent, |lock| lock.ttl(ttl)).await?;

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
        format!("{statements:.0}"),
        format!("{:.1}", rows / seconds),
        format!("{:.0}", resident()? / 1024.0),
        format!("{:.0}", resident()? / 1024.0 - memory_before),
    ])
}

async fn acquire(
    rowlock: &Rowlock,
    prefix: &str,
    count: usize,
    settings: impl Fn(Lock) -> Lock,
) -> Result<Vec<Held>, Failure> {
    // Each task acquires its share, one after the other. (A task for each lease would leave its own memory in the
    // figures.)
    let mut tasks = JoinSet::new();
    for first in 0..AT_ONCE {
        let numbers = (first..count).step_by(AT_ONCE);
        let lock = |number| settings(rowlock.lock(format!("{prefix}-{number}")));
        let locks: Vec<Lock> = numbers.map(lock).collect();
        tasks.spawn(async move {
            let mut held = Vec::with_capacity(locks.len());
            for lock in locks {
                held.push(lock.acquire().await?);
            }
            Ok::<_, rowlock::Error>(held)
        });
    }
    let mut all = Vec::with_capacity(count);
    while let Some(held) = tasks.join_next().await {
        all.extend(held??);
    }
    Ok(all)
}

/// The server's counters: statements that write, and the rows of locks and sessions that they wrote.
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
                        (SELECT sum(n_tup_upd)::float8 FROM pg_stat_user_tables WHERE relname IN ('rowlock_lock', 'rowlock_session'))",
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
                let statements = read("Com_update_multi").await? + read("Com_update").await?;
                Ok((statements, read("Handler_update").await?))
            }
            Self::None => Ok((0.0, 0.0)),
        }
    }
}
