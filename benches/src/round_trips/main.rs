//! The round trips of each operation: how many the network counts, and for how many the caller waits.
//!
//! One task, and no other clients but the two of a hand-over.

mod bench;
#[path = "../figures.rs"]
#[allow(dead_code, reason = "what one benchmark never needs, another one does")]
mod figures;
#[path = "../network.rs"]
mod network;
mod operations;
#[path = "../servers.rs"]
mod servers;
#[path = "../shop.rs"]
#[allow(dead_code, reason = "the same")]
mod shop;

use std::time::Duration;

use bench::Bench;
use clap::Parser;
use figures::{median, table};
use rowlock::Engine;
use servers::Server;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Parser)]
struct Arguments {
    /// Engines to measure, each on a separate durable server.
    #[arg(long, value_delimiter = ',', default_value = "postgres,mariadb,mysql")]
    engines: Vec<Engine>,
    /// How often each operation runs. The result is the median.
    #[arg(long, default_value_t = 15)]
    rounds: u32,
    /// The time of a round trip, in milliseconds. It must be long beside the work of the server.
    #[arg(long, default_value_t = 10.0)]
    round_trip: f64,
    /// Only what one client does: no hand-overs and no renewals.
    #[arg(long)]
    short: bool,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let round_trip = Duration::from_secs_f64(arguments.round_trip / 1e3);
    let mut header = vec!["operation".to_owned()];
    let mut rows: Vec<(&'static str, Vec<String>)> = Vec::new();
    for engine in &arguments.engines {
        header.extend([format!("{engine}: sent"), "waited".into()]);
        let server = Server::start(*engine)?;
        let bench = Bench::open(&server, round_trip).await?;
        let counts = bench.run(arguments.rounds, arguments.short).await?;
        for (number, (operation, counts)) in counts.into_iter().enumerate() {
            if rows.len() <= number {
                rows.push((operation, Vec::new()));
            }
            rows[number].1.extend([
                format!("{:.0}", median(counts.sent)),
                counts
                    .waited
                    .map_or_else(String::new, |waited| format!("{:.1}", median(waited))),
            ]);
        }
    }
    let header: Vec<_> = header.iter().map(String::as_str).collect();
    let mut results = table(&header);
    for (operation, cells) in rows {
        results.add_row([vec![operation.to_owned()], cells].concat());
    }
    println!(
        "\nRound trips of {} ms (median of {}; a byte and its echo take {:.2} ms):\n\n{results}",
        arguments.round_trip,
        arguments.rounds,
        network::achieved(round_trip)?.as_secs_f64() * 1e3
    );
    Ok(())
}
