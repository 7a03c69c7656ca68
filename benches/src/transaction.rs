//! The cost of a lock in a business transaction of one update: a pin, a pessimistic lock, and an optimistic lock with
//! one conflict in a hundred transactions. The results are medians of several rounds. The server waits for the disk at
//! each commit.

mod common;
mod figures;
mod servers;
mod shop;

use std::time::{Duration, Instant};

use clap::Parser;
use comfy_table::Table;
use common::Common;
use figures::{median, micros, table};
use rowlock::{Engine, Error, Held, Retry, Rowlock};
use servers::Server;
use shop::{Shop, on_shop};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Transactions of each kind per round.
    #[arg(long, default_value_t = 500)]
    transactions: usize,
}

/// One in this many optimistic transactions meets a conflict.
const CONFLICT: usize = 100;

const RETRY: Retry = Retry::new()
    .attempts(u32::MAX)
    .backoff(Duration::from_millis(1), Duration::from_millis(100));

const UPDATE: &str = "UPDATE bench_stock SET items = items - 1 WHERE id = 1";

const SETUP: [&str; 2] = [
    "CREATE TABLE bench_stock (id BIGINT NOT NULL PRIMARY KEY, items BIGINT NOT NULL)",
    "INSERT INTO bench_stock (id, items) VALUES (1, 0)",
];

impl Shop {
    /// Begins, updates, commits.
    async fn bare(&self) -> Result<(), Error> {
        match self {
            Self::Postgres(pool) => {
                let mut tx = pool.begin().await?;
                sqlx::query(UPDATE).execute(&mut *tx).await?;
                Ok(tx.commit().await?)
            }
            Self::MySql(pool) => {
                let mut tx = pool.begin().await?;
                sqlx::query(UPDATE).execute(&mut *tx).await?;
                Ok(tx.commit().await?)
            }
            Self::Sqlite(pool) => {
                let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
                sqlx::query(UPDATE).execute(&mut *tx).await?;
                Ok(tx.commit().await?)
            }
        }
    }

    async fn pinned(&self, held: &Held) -> Result<(), Error> {
        on_shop!(self, pool => RETRY.run(pool, |mut tx| async move {
            sqlx::query(UPDATE).execute(&mut *tx).await?;
            held.pin(&mut tx).await
        }).await)
    }

    async fn pessimistic(&self, rowlock: &Rowlock, name: &str) -> Result<(), Error> {
        on_shop!(self, pool => RETRY.run(pool, |mut tx| async move {
            rowlock.in_tx(&mut tx).lock(name).acquire().await?;
            sqlx::query(UPDATE).execute(&mut *tx).await?;
            Ok::<_, Error>(())
        }).await)
    }

    /// Runs one optimistic transaction. With `conflict`, another transaction is granted the name between this
    /// transaction's read and its commit. Returns the time of that other transaction, which does not count.
    async fn optimistic(&self, rowlock: &Rowlock, conflict: bool) -> Result<Duration, Error> {
        let others = std::sync::Mutex::new((conflict, Duration::ZERO));
        let them = &others;
        on_shop!(self, pool => RETRY.run(pool, |mut tx| async move {
            // SQLite: this transaction locks the file, so the other transaction must run before it.
            let mut seen = rowlock.in_tx(&mut tx).version("optimistic").await?;
            if std::mem::take(&mut them.lock().unwrap_or_else(std::sync::PoisonError::into_inner).0) {
                let started = Instant::now();
                if rowlock.engine() == Engine::Sqlite {
                    drop(tx);
                    return Err(rowlock::one_changed(0).unwrap_err());
                }
                let held = rowlock.lock("optimistic").acquire().await?;
                held.release().await?;
                them.lock().unwrap_or_else(std::sync::PoisonError::into_inner).1 = started.elapsed();
                seen = seen.clone();
            }
            sqlx::query(UPDATE).execute(&mut *tx).await?;
            rowlock.in_tx(&mut tx).advance(&seen).await?.or_conflict(&seen).map(drop)
        }).await)?;
        Ok(others
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .1)
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let mut costs = table(&[
        "engine",
        "bare µs",
        "pinned",
        "ratio",
        "pessimistic",
        "ratio",
        "optimistic",
        "ratio",
    ]);
    for engine in &arguments.common.engines {
        let server = Server::start(*engine)?;
        cost(&arguments, &server, &mut costs).await?;
    }
    println!(
        "\nA transaction of one update, one task (median of {} rounds of {}), 1 % of the optimistic ones in conflict:\n\n{costs}",
        arguments.common.rounds, arguments.transactions
    );
    Ok(())
}

async fn cost(arguments: &Arguments, server: &Server, table: &mut Table) -> Result<(), Failure> {
    let rowlock = Rowlock::connect(&server.url).await?;
    let shop = Shop::open(server, 10, &SETUP).await?;
    let held = rowlock
        .lock("pinned")
        .ttl(Duration::from_mins(10))
        .acquire()
        .await?;
    let mut figures: [Vec<f64>; 4] = Default::default();
    // One more round: the first round warms up, and does not count.
    for round in 0..=arguments.common.rounds {
        let mut spent = [Duration::ZERO; 4];
        // In turns, so that other load on the machine affects all kinds.
        for number in 0..arguments.transactions {
            let mut started = Instant::now();
            let mut lap = |slot: usize, others: Duration| {
                let now = Instant::now();
                spent[slot] += (now - std::mem::replace(&mut started, now)).saturating_sub(others);
            };
            shop.bare().await?;
            lap(0, Duration::ZERO);
            shop.pinned(&held).await?;
            lap(1, Duration::ZERO);
            shop.pessimistic(&rowlock, "pessimistic").await?;
            lap(2, Duration::ZERO);
            let others = shop.optimistic(&rowlock, number % CONFLICT == 0).await?;
            lap(3, others);
        }
        if round > 0 {
            for (figure, spent) in figures.iter_mut().zip(spent) {
                figure.push(micros(spent, arguments.transactions));
            }
        }
    }
    held.release().await?;
    let [bare, pinned, pessimistic, optimistic] = figures.map(median);
    let mut row = vec![server.engine.name().to_owned(), format!("{bare:.0}")];
    for ours in [pinned, pessimistic, optimistic] {
        row.push(format!("{ours:.0}"));
        row.push(format!("{:.2}", ours / bare));
    }
    table.add_row(row);
    Ok(())
}
