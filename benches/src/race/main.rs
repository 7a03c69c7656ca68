//! rowlock's locks in a race with other locks: bare SQL, PostgreSQL's advisory locks, Redis, etcd, ZooKeeper.
//! `docs/RACE.md` has the rules.

mod contender;
#[path = "../figures.rs"]
#[allow(dead_code, reason = "it also serves the other benchmarks")]
mod figures;
mod floor;
mod locking;
#[path = "../network.rs"]
mod network;
mod plan;
#[path = "../plot.rs"]
mod plot;
mod plots;
mod processes;
mod referee;
mod report;
mod rows;
mod runner;
mod servers;
mod workload;

use clap::Parser;

use contender::{ENTRIES, Means};
use plan::{Arguments, Start};
use processes::Run;
use report::Score;
use runner::Orders;
use servers::{Place, Servers};
use workload::Workload;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse().shortened();
    if let Some(orders) = &arguments.child {
        return runner::child(orders, contender::connect).await;
    }
    if arguments.list {
        let mut table = figures::table(&["contender", "durability of a granted lock"]);
        for entry in ENTRIES {
            table.add_row([entry.name, entry.durability]);
        }
        println!("{table}");
        return Ok(());
    }
    race(&arguments).await
}

async fn race(arguments: &Arguments) -> Result<(), Failure> {
    let entries = arguments.entries()?;
    let mut servers = Servers::start(entries.iter().map(|entry| entry.place), !arguments.short)?;
    if !arguments.round_trips.is_empty() {
        servers.connect_through_networks()?;
        print_achieved(arguments)?;
    }
    if arguments.short {
        println!("The short mode measures nothing: its servers do not wait for the disk.");
    }
    let mut all = Vec::new();
    for group in arguments.groups() {
        let takes_part = |entry: &contender::Entry| {
            group.iter().all(|heat| {
                entry.runs(heat.workload)
                    && entry.can_have(heat.tasks, heat.processes)
                    && (heat.round_trip.is_none() || entry.place != Place::Sqlite)
            })
        };
        let mut scores = Vec::new();
        for heat in &group {
            let entries = entries.iter().filter(|entry| takes_part(entry));
            let starts = entries.map(|entry| Start { entry, heat: *heat });
            scores.extend(starts.map(Score::new));
        }
        if scores.is_empty() {
            continue;
        }
        for score in &scores {
            prepare(arguments, &mut servers, score.start).await?;
        }
        for round in 0..arguments.rounds {
            // In turns, and each time another one is the first.
            let count = scores.len();
            for turn in 0..count {
                let score = &mut scores[(turn + round) % count];
                let run = run(
                    arguments,
                    &mut servers,
                    score.start,
                    arguments.seconds_of(&group),
                )
                .await;
                score.add(run);
            }
        }
        report::print(&arguments.base, &group, &scores);
        all.extend(scores);
    }
    if let Some(folder) = &arguments.out {
        std::fs::create_dir_all(folder)?;
        report::write(folder, &arguments.base, &all)?;
        // The plots have no place for several networks.
        if arguments.round_trips.is_empty() {
            plots::write(folder, &all)?;
        }
    }
    let failed: usize = all.iter().map(|score| score.failures.len()).sum();
    if failed > 0 {
        return Err(format!("{failed} runs failed; the reasons are above").into());
    }
    Ok(())
}

/// Prints how long a byte takes through the networks.
fn print_achieved(arguments: &Arguments) -> Result<(), Failure> {
    let mut table = figures::table(&["round trip ms", "a byte and its echo, ms"]);
    for round_trip in arguments.round_trips() {
        let achieved = network::achieved(round_trip)?.as_secs_f64() * 1e3;
        table.add_row([
            format!("{}", round_trip.as_secs_f64() * 1e3),
            format!("{achieved:.3}"),
        ]);
    }
    println!("{table}");
    Ok(())
}

/// Makes the tables and the names, once for all rounds.
async fn prepare(
    arguments: &Arguments,
    servers: &mut Servers,
    start: Start,
) -> Result<(), Failure> {
    let Start { entry, heat } = start;
    let url = servers
        .url(entry.place, entry.database(heat.workload).as_deref())
        .await?;
    entry.prepare(&url).await?;
    if entry.means == Means::Before {
        // Only the earlier program knows its tables. It makes them in a run that does not count.
        let orders = Orders {
            processes: 1,
            tasks: 1,
            seconds: 0.1,
            ..orders(arguments, start, &url)
        };
        processes::run(&orders, &arguments.program(entry)?).await?;
    }
    if let Some(table) = entry.table() {
        rows::fill(entry.place, &url, table, heat.workload, heat.tasks).await?;
    }
    Ok(())
}

/// The orders for a run, without a referee.
fn orders(arguments: &Arguments, start: Start, url: &str) -> Orders {
    let Start { entry, heat } = start;
    Orders {
        contender: entry.name_in_program().to_owned(),
        url: url.to_owned(),
        workload: heat.workload,
        process: 0,
        processes: heat.processes,
        tasks: heat.tasks / heat.processes,
        warm_up: arguments.warm_up,
        seconds: arguments.seconds,
        referee: None,
    }
}

/// One run of one contender.
async fn run(
    arguments: &Arguments,
    servers: &mut Servers,
    start: Start,
    seconds: f64,
) -> Result<Run, Failure> {
    let Start { entry, heat } = start;
    let url = servers
        .url(entry.place, entry.database(heat.workload).as_deref())
        .await?;
    servers.set_round_trip(heat.round_trip.unwrap_or_default());
    let mut snapshot = None;
    if let Some(table) = entry.table() {
        rows::tidy(entry.place, &url, table).await?;
        if heat.workload == Workload::Snapshot {
            snapshot = Some(rows::snapshot(&url, table).await?);
        }
    }
    let referee = (heat.processes > 1)
        .then(|| servers.referee())
        .transpose()?;
    let orders = Orders {
        seconds,
        referee,
        ..orders(arguments, start, &url)
    };
    let run = if entry.means == Means::Floor {
        floor::run(servers, &orders).await
    } else {
        processes::run(&orders, &arguments.program(entry)?).await
    };
    // Until here, the transaction was open.
    drop(snapshot);
    run
}
