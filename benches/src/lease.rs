//! Leases compared with bare SQL in the same run: the time of one operation, and pairs of acquire and release per
//! second. The results are medians of several rounds. The servers wait for the disk.

mod bare;
mod common;
mod figures;
mod servers;

use std::time::{Duration, Instant};

use clap::Parser;
use comfy_table::Table;
use rowlock::{Engine, Rowlock};
use uuid::Uuid;

use bare::Bare;
use common::Common;
use figures::{median, micros, table};
use servers::Server;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Operations per round, for the time of one operation.
    #[arg(long, default_value_t = 500)]
    operations: usize,
    /// Seconds per round, for the pairs per second.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let mut costs = table(&["engine", "operation", "bare SQL µs", "rowlock µs", "ratio"]);
    let mut pairs = table(&[
        "engine",
        "bare ×1",
        "bare ×16",
        "bare ×32",
        "1 task",
        "16 tasks",
        "256 tasks",
        "256 tasks / best bare",
    ]);
    for engine in &arguments.common.engines {
        let server = Server::start(*engine)?;
        cost(&arguments, &server, &mut costs).await?;
        throughput(&arguments, &server, &mut pairs).await?;
    }
    println!(
        "\nThe cost of one uncontended operation, one task (median of {} rounds):\n",
        arguments.common.rounds
    );
    println!(
        "{costs}\n\nOf these, handing an operation to rowlock's thread and its answer back takes {:.0} µs here.",
        hand_over(&arguments).await?
    );
    println!("\nPairs of acquire and release per second, each task on its own name:\n\n{pairs}");
    Ok(())
}

/// The time to wake a task on another thread and to be woken by it. Every operation pays this, because a lane on
/// another thread sends it.
async fn hand_over(arguments: &Arguments) -> Result<f64, Failure> {
    let (sender, mut queue) =
        tokio::sync::mpsc::unbounded_channel::<tokio::sync::oneshot::Sender<()>>();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            while let Some(reply) = queue.recv().await {
                let _ = reply.send(());
            }
        });
        Ok::<(), std::io::Error>(())
    });
    let mut figures = Vec::new();
    for _ in 0..arguments.common.rounds {
        let mut spent = Duration::ZERO;
        for _ in 0..arguments.operations {
            // As between two operations, both threads have gone to sleep.
            tokio::time::sleep(Duration::from_millis(1)).await;
            let started = Instant::now();
            let (reply, answer) = tokio::sync::oneshot::channel();
            sender.send(reply)?;
            answer.await?;
            spent += started.elapsed();
        }
        figures.push(micros(spent, arguments.operations));
    }
    Ok(median(figures))
}

async fn cost(arguments: &Arguments, server: &Server, table: &mut Table) -> Result<(), Failure> {
    let count = arguments.operations;
    let rowlock = Rowlock::connect(&server.url).await?;
    let mut bare = Bare::connect(server.engine, &server.url).await?;
    let lock = rowlock.lock("cost");
    let mut figures: [Vec<f64>; 5] = Default::default();
    // One more round: the first round warms up, and does not count.
    for round in 0..=arguments.common.rounds {
        let mut spent = [Duration::ZERO; 5];
        // In turns, so that other load on the machine affects both.
        for _ in 0..count {
            let grant_id = Uuid::new_v4();
            let mut started = Instant::now();
            let mut lap = |slot: usize| {
                let now = Instant::now();
                spent[slot] += now - std::mem::replace(&mut started, now);
            };
            bare.acquire(b"cost", grant_id).await?;
            lap(0);
            bare.read_back(b"cost", grant_id).await?;
            lap(1);
            bare.release(b"cost", grant_id).await?;
            lap(2);
            let held = lock.acquire().await?;
            lap(3);
            held.release().await?;
            lap(4);
            drop(held);
        }
        if round > 0 {
            for (figure, spent) in figures.iter_mut().zip(spent) {
                figure.push(micros(spent, count));
            }
        }
    }
    let [upsert, read_back, update, acquire, release] = figures.map(median);
    let engine = server.engine.name();
    let mut row = |operation: &str, bare: f64, ours: f64| {
        table.add_row([
            engine.into(),
            operation.into(),
            format!("{bare:.0}"),
            format!("{ours:.0}"),
            format!("{:.2}", ours / bare),
        ]);
    };
    if matches!(server.engine, Engine::MySql | Engine::MariaDb) {
        row(
            "acquire (bare: upsert + read back)",
            upsert + read_back,
            acquire,
        );
    }
    row("acquire (bare: upsert)", upsert, acquire);
    row("release (bare: update)", update, release);
    Ok(())
}

async fn throughput(
    arguments: &Arguments,
    server: &Server,
    table: &mut Table,
) -> Result<(), Failure> {
    let span = Duration::from_secs_f64(arguments.seconds);
    let mut figures: [Vec<f64>; 6] = Default::default();
    for _ in 0..arguments.common.rounds {
        for (slot, connections) in [1, 16, 32].into_iter().enumerate() {
            figures[slot].push(bare_pairs(server, connections, span).await?);
        }
        for (slot, tasks) in [1, 16, 256].into_iter().enumerate() {
            figures[slot + 3].push(rowlock_pairs(server, tasks, span).await?);
        }
    }
    let figures = figures.map(median);
    let best = figures[..3].iter().copied().fold(0.0, f64::max);
    let mut row = vec![server.engine.name().to_owned()];
    row.extend(figures.iter().map(|pairs| format!("{pairs:.0}")));
    row.push(format!("{:.1}", figures[5] / best));
    table.add_row(row);
    Ok(())
}

async fn bare_pairs(server: &Server, connections: usize, span: Duration) -> Result<f64, Failure> {
    let mut ready = Vec::new();
    for _ in 0..connections {
        ready.push(Bare::connect(server.engine, &server.url).await?);
    }
    let workers = ready.into_iter().enumerate().map(|(worker, mut bare)| {
        let name = format!("bare-{worker}").into_bytes();
        move |until: Instant| async move {
            let mut count = 0_u32;
            while Instant::now() < until {
                let grant_id = Uuid::new_v4();
                bare.acquire(&name, grant_id).await?;
                bare.read_back(&name, grant_id).await?;
                bare.release(&name, grant_id).await?;
                count += 1;
            }
            Ok(count)
        }
    });
    rate(workers.collect(), span).await
}

async fn rowlock_pairs(server: &Server, tasks: usize, span: Duration) -> Result<f64, Failure> {
    let rowlock = Rowlock::connect(&server.url).await?;
    let workers = (0..tasks).map(|task| {
        let lock = rowlock.lock(format!("task-{task}"));
        move |until: Instant| async move {
            let mut count = 0_u32;
            while Instant::now() < until {
                let held = lock.acquire().await?;
                held.release().await?;
                count += 1;
            }
            Ok(count)
        }
    });
    rate(workers.collect(), span).await
}

/// Runs all workers at the same time, and returns their pairs per second.
async fn rate<W, F>(workers: Vec<W>, span: Duration) -> Result<f64, Failure>
where
    W: FnOnce(Instant) -> F,
    F: Future<Output = Result<u32, Failure>> + Send + 'static,
{
    let started = Instant::now();
    let running: Vec<_> = workers
        .into_iter()
        .map(|worker| tokio::spawn(worker(started + span)))
        .collect();
    let mut count = 0;
    for worker in running {
        count += worker.await??;
    }
    Ok(f64::from(count) / started.elapsed().as_secs_f64())
}
