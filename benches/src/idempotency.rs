//! The cost of idempotency: a business transaction of two statements with and without it, and replays, with 32 tasks.
//! Once with 1,000 records in the table, and once with a million, while the cleaner removes a part of them.
//!
//! The server waits for the disk at each commit. The results are medians of several rounds.

mod common;
#[allow(dead_code, reason = "what one benchmark never needs, another one does")]
mod figures;
mod servers;
mod shop;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use common::Common;
use figures::{median, table};
use rowlock::{Begun, Engine, Error, Fingerprint, Idempotency, Outcome, Retry, Rowlock, Scope};
use servers::Server;
use shop::{Shop, on_shop};
use sqlx::AssertSqlSafe;
use tokio::task::JoinSet;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Transactions of each kind, and replays, per round.
    #[arg(long, default_value_t = 4_000)]
    transactions: usize,
    /// Tasks that run at the same time.
    #[arg(long, default_value_t = 32)]
    tasks: usize,
    /// Records in the full table.
    #[arg(long, default_value_t = 1_000_000)]
    records: usize,
}

/// Records that are replayed.
const KNOWN: usize = 1_000;
/// The percentage of expired records in the full table. The cleaner removes them.
const OLD: usize = 40;

const SETUP: [&str; 3] = [
    "CREATE TABLE bench_account (id BIGINT NOT NULL PRIMARY KEY, cents BIGINT NOT NULL)",
    "CREATE TABLE bench_payment (id VARCHAR(40) NOT NULL PRIMARY KEY, account BIGINT NOT NULL)",
    "INSERT INTO bench_account (id, cents)
     SELECT a.n + 10 * b.n + 100 * c.n, 0 FROM
     (SELECT 0 AS n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4
      UNION SELECT 5 UNION SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9) a,
     (SELECT 0 AS n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4
      UNION SELECT 5 UNION SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9) b,
     (SELECT 0 AS n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4
      UNION SELECT 5 UNION SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9) c",
];

const RETRY: Retry = Retry::new().attempts(u32::MAX);

fn outcome() -> Outcome {
    Outcome::json(&"a response of a common length, ".repeat(8)).expect("a string")
}

fn request() -> Fingerprint {
    Fingerprint::of("request")
}

/// The two statements, prepared.
macro_rules! pay {
    ($engine:expr, $tx:expr, $number:expr) => {{
        let (number, account) = ($number, i64::try_from($number % 1_000).unwrap_or(0));
        let [payment, debit] = statements($engine);
        sqlx::query(payment)
            .bind(number.to_string())
            .bind(account)
            .execute(&mut *$tx)
            .await?;
        sqlx::query(debit).bind(account).execute(&mut *$tx).await?;
    }};
}

fn statements(engine: Engine) -> [&'static str; 2] {
    if engine == Engine::Postgres {
        [
            "INSERT INTO bench_payment (id, account) VALUES ($1, $2)",
            "UPDATE bench_account SET cents = cents - 1 WHERE id = $1",
        ]
    } else {
        [
            "INSERT INTO bench_payment (id, account) VALUES (?, ?)",
            "UPDATE bench_account SET cents = cents - 1 WHERE id = ?",
        ]
    }
}

#[derive(Debug, Clone)]
struct Bench {
    shop: Shop,
    idempotency: Idempotency,
    next: Arc<AtomicUsize>,
    tasks: usize,
    engine: Engine,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Bare,
    Guarded,
    Replay,
}

impl Bench {
    async fn one(&self, kind: Kind) -> Result<(), Error> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let engine = self.engine;
        match kind {
            Kind::Bare => on_shop!(&self.shop, pool => RETRY.run(pool, |mut tx| async move {
                pay!(engine, tx, number);
                Ok::<_, Error>(())
            }).await),
            Kind::Guarded => {
                let (key, request) = (number.to_string(), request());
                let begun: Begun<Outcome> = on_shop!(&self.shop, pool => {
                    self.idempotency.run_in_tx(pool, Scope("bench").key(&key), &request, |mut tx| async move {
                        pay!(engine, tx, number);
                        Ok::<_, Error>(outcome())
                    }).await?
                });
                assert!(matches!(begun, Begun::New(_)), "{begun:?}");
                Ok(())
            }
            Kind::Replay => {
                let key = format!("known {}", number % KNOWN);
                let begun = self
                    .idempotency
                    .begin(Scope("bench").key(key), &request())
                    .await?;
                assert!(matches!(begun, Begun::Replay(_)), "{begun:?}");
                Ok(())
            }
        }
    }

    /// Transactions or replays per second.
    async fn rate(&self, kind: Kind, count: usize) -> Result<f64, Failure> {
        let left = Arc::new(AtomicUsize::new(count));
        let started = Instant::now();
        let mut tasks = JoinSet::new();
        for _ in 0..self.tasks {
            let (bench, left) = (self.clone(), Arc::clone(&left));
            tasks.spawn(async move {
                while left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                        left.checked_sub(1)
                    })
                    .is_ok()
                {
                    bench.one(kind).await?;
                }
                Ok::<_, Error>(())
            });
        }
        while let Some(task) = tasks.join_next().await {
            task??;
        }
        #[allow(clippy::cast_precision_loss, reason = "counts are small")]
        let rate = count as f64 / started.elapsed().as_secs_f64();
        Ok(rate)
    }

    /// Medians: bare, guarded, replays.
    async fn rates(&self, arguments: &Arguments) -> Result<[f64; 3], Failure> {
        let mut rates: [Vec<f64>; 3] = Default::default();
        // One more round: the first round warms up, and does not count.
        for round in 0..=arguments.common.rounds {
            for (rates, kind) in rates
                .iter_mut()
                .zip([Kind::Bare, Kind::Guarded, Kind::Replay])
            {
                let rate = self.rate(kind, arguments.transactions).await?;
                if round > 0 {
                    rates.push(rate);
                }
            }
        }
        Ok(rates.map(median))
    }
}

async fn records(shop: &Shop) -> Result<i64, sqlx::Error> {
    on_shop!(shop, pool => {
        sqlx::query_scalar("SELECT COUNT(*) FROM rowlock_idempotency").fetch_one(pool).await
    })
}

/// Doubles the records, under random keys, until there are enough. A part of them is expired.
async fn fill(shop: &Shop, engine: Engine, wanted: usize) -> Result<(), Failure> {
    let (key, old) = match engine {
        Engine::Postgres => (
            "decode(md5(random()::text || r.idempotency_key::text), 'hex')",
            "now() - interval '1 hour'",
        ),
        Engine::Sqlite => ("randomblob(16)", "1"),
        _ => (
            "UNHEX(LEFT(SHA2(CONCAT(UUID(), r.idempotency_key), 256), 32))",
            "UTC_TIMESTAMP(6) - INTERVAL 1 HOUR",
        ),
    };
    let columns = "state, attempt, abandoned, max_attempts, attempt_id, holder, fingerprint, bound, open_step, content_type, outcome, \
                   began_at, attempted_at, lease_until, done_at, retain_until, forget_at, clean_at";
    loop {
        let there = usize::try_from(records(shop).await?)?;
        if there >= wanted {
            break;
        }
        let more = (wanted - there).min(there);
        let sql = format!(
            "INSERT INTO rowlock_idempotency (scope, idempotency_key, {columns})
             SELECT r.scope, {key}, {columns} FROM rowlock_idempotency r LIMIT {more}"
        );
        on_shop!(shop, pool => sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await.map(drop))?;
    }
    let last = match engine {
        Engine::Postgres => "get_byte(idempotency_key, 0)",
        Engine::Sqlite => "abs(random() % 256)",
        _ => "ORD(SUBSTR(idempotency_key, 1, 1))",
    };
    let random_key = if engine == Engine::Sqlite {
        "length(idempotency_key) = 16"
    } else {
        "octet_length(idempotency_key) = 16"
    };
    let age = format!(
        "UPDATE rowlock_idempotency SET retain_until = {old}, forget_at = {old}, clean_at = {old}
         WHERE {random_key} AND {last} < {}",
        256 * OLD / 100
    );
    on_shop!(shop, pool => sqlx::raw_sql(AssertSqlSafe(age)).execute(pool).await.map(drop))?;
    let settle = match engine {
        Engine::Postgres => "VACUUM (ANALYZE) rowlock_idempotency",
        Engine::Sqlite => "PRAGMA wal_checkpoint(TRUNCATE)",
        _ => "ANALYZE TABLE rowlock_idempotency",
    };
    on_shop!(shop, pool => sqlx::raw_sql(settle).execute(pool).await.map(drop))?;
    Ok(())
}

async fn measure(
    arguments: &Arguments,
    engine: Engine,
    table: &mut comfy_table::Table,
) -> Result<(), Failure> {
    let server = Server::start(engine)?;
    let quiet = Rowlock::builder()
        .clean_every(None)
        .connect(&server.url)
        .await?;
    let connections = u32::try_from(arguments.tasks)?;
    let shop = Shop::open(&server, connections, &SETUP).await?;
    let bench = Bench {
        shop: shop.clone(),
        idempotency: quiet.idempotency(),
        next: Arc::default(),
        tasks: arguments.tasks,
        engine,
    };
    for known in 0..KNOWN {
        let (key, request) = (format!("known {known}"), request());
        let Begun::New(guard) = bench
            .idempotency
            .begin(Scope("bench").key(key), &request)
            .await?
        else {
            return Err("not new".into());
        };
        guard.complete(&outcome()).await?;
    }
    let small = bench.rates(arguments).await?;

    fill(&shop, engine, arguments.records).await?;
    let before = records(&shop).await?;
    let cleaning = Rowlock::builder()
        .clean_every(Duration::from_secs(1))
        .connect(&server.url)
        .await?;
    let full = Bench {
        idempotency: cleaning.idempotency(),
        ..bench
    };
    let [bare, guarded, replays] = full.rates(arguments).await?;
    // Each round has added its transactions, the first round too.
    let added = i64::try_from((arguments.common.rounds + 1) * arguments.transactions)?;
    let removed = before + added - records(&shop).await?;
    let mut row = vec![engine.name().to_owned()];
    row.extend(small.map(|rate| format!("{rate:.0}")));
    row.push(format!("{:.2}", small[1] / small[0]));
    row.extend([bare, guarded, replays].map(|rate| format!("{rate:.0}")));
    row.push(format!("{:.2}", guarded / bare));
    row.push(format!("{:.2}", guarded / small[1]));
    row.push(format!("{:.2}", replays / small[2]));
    row.push(removed.to_string());
    table.add_row(row);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let mut rates = table(&[
        "engine",
        "bare",
        "guarded",
        "replays",
        "guarded / bare",
        "bare, full",
        "guarded, full",
        "replays, full",
        "guarded / bare, full",
        "guarded, full / small",
        "replays, full / small",
        "cleaned",
    ]);
    for engine in arguments.common.engines.clone() {
        measure(&arguments, engine, &mut rates).await?;
    }
    println!(
        "\nPer second, {} tasks (median of {} rounds of {}); full: {} records, {OLD} % of them past their time:\n\n{rates}",
        arguments.tasks, arguments.common.rounds, arguments.transactions, arguments.records
    );
    Ok(())
}
