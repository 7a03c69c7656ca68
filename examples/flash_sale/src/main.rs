//! The flash sale: 100 items, 500 buyers, 4 processes, one database.
//!
//! Every buyer reads the stock, thinks for a moment, and writes the stock back. This is correct only if a guard keeps
//! two buyers from writing the same number: without a guard, the shop sells more than it has.
//!
//! ```text
//! cargo run -p flash_sale
//! cargo run --release -p flash_sale --features postgres -- --url postgres://… --buyers 1000
//! ```

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use clap::Parser;
use rowlock::Rowlock;
use serde::{Deserialize, Serialize};

mod arguments;
mod report;
mod shop;
mod striped;
use arguments::{Arguments, Mode};
use report::{Report, Run, percentile, round};
use shop::Shop;
use striped::Striped;

/// The name that the buyers lock.
const NAME: &str = "flash-sale";

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What a serving process reports: how many items it sold, and how many milliseconds each buyer waited.
#[derive(Debug, Serialize, Deserialize)]
struct Served {
    sold: u32,
    waited_ms: Vec<f64>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let result = runtime.map_err(Failure::from).and_then(|runtime| {
        runtime.block_on(async {
            match arguments.serve {
                Some(buyers) => serve(&arguments, buyers).await,
                None => sell(&arguments).await,
            }
        })
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("flash_sale: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Sells once in each mode, then reports.
async fn sell(arguments: &Arguments) -> Result<(), Failure> {
    let dir = tempfile::tempdir()?;
    let url = arguments
        .url
        .clone()
        .unwrap_or_else(|| format!("sqlite:{}", dir.path().join("flash_sale.db").display()));
    let rowlock = Rowlock::connect(&url).await?;
    let shop = Shop::open(&url).await?;
    if !arguments.json {
        println!(
            "{} items, {} buyers, {} processes, {}, {}\n",
            arguments.stock,
            arguments.buyers,
            arguments.processes,
            rowlock.admin().server_version(),
            rowlock.target()
        );
    }
    let mut runs = Vec::new();
    let mut wrong = Vec::new();
    for mode in &arguments.modes {
        if *mode == Mode::Striped {
            let striped = Striped::new(&rowlock, NAME, arguments.stripes)?;
            shop.restock_striped(&striped, arguments.stock).await?;
        } else {
            shop.restock(arguments.stock, *mode == Mode::Unique).await?;
        }
        let run = one_run(arguments, *mode, &url)?;
        let orders = shop.orders().await?;
        if orders != run.sold {
            return Err(format!(
                "{} buyers were told «sold», {orders} orders are stored",
                run.sold
            )
            .into());
        }
        if mode.is_guarded() && run.sold != arguments.stock.min(arguments.buyers) {
            wrong.push(format!(
                "{} sold {} of {}",
                run.mode, run.sold, arguments.stock
            ));
        }
        runs.push(run);
    }
    shop.close().await?;
    let report = Report {
        engine: rowlock.engine().name(),
        runs,
    };
    if arguments.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{}", report.table());
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("; ").into())
    }
}

/// Starts the processes, lets them begin together, and adds up their reports.
fn one_run(arguments: &Arguments, mode: Mode, url: &str) -> Result<Run, Failure> {
    let program = std::env::current_exe()?;
    let mut children = Vec::new();
    for process in 0..arguments.processes {
        // The processes share the buyers evenly. The first processes get one more when there is a remainder.
        let share = arguments.buyers / arguments.processes
            + u32::from(process < arguments.buyers % arguments.processes);
        let child = Command::new(&program)
            .args(["--modes", &mode.name(), "--serve", &share.to_string()])
            .args(["--stripes", &arguments.stripes.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        children.push(child);
    }
    // As input: every user of the host can read the arguments, and the URL may contain a password.
    for child in &mut children {
        writeln!(
            child.stdin.as_mut().ok_or("no input of a process")?,
            "{url}"
        )?;
    }
    let mut outputs = Vec::new();
    for child in &mut children {
        let output = child.stdout.take().ok_or("no output of a process")?;
        let mut lines = BufReader::new(output).lines();
        if lines.next().transpose()?.as_deref() != Some("ready") {
            return Err("a serving process could not start".into());
        }
        outputs.push(lines);
    }
    let started = Instant::now();
    for child in &mut children {
        writeln!(child.stdin.take().ok_or("no input of a process")?, "go")?;
    }
    let (mut sold, mut waited) = (0, Vec::new());
    for lines in &mut outputs {
        let line = lines.next().ok_or("a serving process failed")??;
        let served: Served = serde_json::from_str(&line)?;
        sold += served.sold;
        waited.extend(served.waited_ms);
    }
    let seconds = started.elapsed().as_secs_f64();
    for mut child in children {
        child.wait()?;
    }
    waited.sort_by(f64::total_cmp);
    Ok(Run {
        mode: mode.name(),
        stock: arguments.stock,
        buyers: arguments.buyers,
        sold,
        oversold: sold.saturating_sub(arguments.stock),
        orders_per_s: round(f64::from(sold) / seconds),
        p50_ms: round(percentile(&waited, 50)),
        p99_ms: round(percentile(&waited, 99)),
    })
}

/// Serves the buyers of one process, all at the same time.
async fn serve(arguments: &Arguments, buyers: u32) -> Result<(), Failure> {
    let mode = *arguments.modes.first().ok_or("no mode")?;
    let mut lines = std::io::stdin().lines();
    let url = lines.next().ok_or("no URL")??;
    let url = url.as_str();
    let rowlock = Rowlock::connect(url).await?;
    let shop = Shop::open(url).await?;
    let striped = Striped::new(&rowlock, NAME, arguments.stripes)?;
    shop.open_all().await?;
    println!("ready");
    lines.next().transpose()?;

    let started = Instant::now();
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..buyers {
        let (rowlock, shop, striped) = (rowlock.clone(), shop.clone(), striped.clone());
        running.spawn(async move {
            let sold = match mode {
                Mode::None => shop.buy().await?,
                Mode::Lease => {
                    let held = rowlock.lock(NAME).acquire().await?;
                    let sold = held.with(async || shop.buy().await).await??;
                    held.release().await?;
                    sold
                }
                Mode::Pinned => {
                    let held = rowlock.lock(NAME).acquire().await?;
                    let sold = shop.buy_pinned(&held).await?;
                    held.release().await?;
                    sold
                }
                Mode::Pessimistic => shop.buy_pessimistic(&rowlock, NAME).await?,
                Mode::Optimistic => shop.buy_optimistic(&rowlock, NAME).await?,
                Mode::Unique => shop.buy_unique().await?,
                Mode::Striped => shop.buy_striped(&striped).await?,
            };
            Ok::<_, Failure>((sold, started.elapsed()))
        });
    }
    let mut served = Served {
        sold: 0,
        waited_ms: Vec::new(),
    };
    while let Some(buyer) = running.join_next().await {
        let (sold, waited) = buyer??;
        served.sold += u32::from(sold);
        served.waited_ms.push(waited.as_secs_f64() * 1e3);
    }
    rowlock.flush().await;
    println!("{}", serde_json::to_string(&served)?);
    Ok(())
}
