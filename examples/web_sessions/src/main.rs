//! Two servers behind one address, and users whose tabs add items to one cart at the same time. See the library's head
//! text.
//!
//! ```text
//! cargo run --release -p web_sessions
//! cargo run --release -p web_sessions -- --kill
//! cargo run --release -p web_sessions --features postgres -- --url postgres://… --users 50
//! ```

use std::process::ExitCode;

use clap::Parser;
use rowlock::Rowlock;
use web_sessions::store::SqlStore;

mod arguments;
mod cluster;
mod meeting;
mod proxy;
mod report;
mod shop;
mod user;
use arguments::Arguments;
use report::Report;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let result = runtime.map_err(Failure::from).and_then(|runtime| {
        runtime.block_on(async {
            if arguments.process.serve {
                shop::serve(&arguments).await
            } else {
                compare(&arguments).await
            }
        })
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("web_sessions: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs once in each mode, then reports.
async fn compare(arguments: &Arguments) -> Result<(), Failure> {
    let dir = tempfile::tempdir()?;
    let own = || format!("sqlite:{}", dir.path().join("web_sessions.db").display());
    let url = arguments.url.clone().unwrap_or_else(own);
    let rowlock = Rowlock::connect(&url).await?;
    let store = SqlStore::open(&url, false).await?;
    if !arguments.json {
        println!(
            "2 servers, {} users with {} tabs, {}, {}\n",
            arguments.users,
            arguments.tabs,
            rowlock.admin().server_version(),
            rowlock.target()
        );
    }
    let mut runs = Vec::new();
    for mode in &arguments.modes {
        store.make_table().await?;
        runs.push(cluster::one_run(arguments, *mode, &url).await?);
    }
    store.remove_table().await?;
    let report = Report {
        engine: rowlock.engine().name(),
        runs,
    };
    if arguments.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{}", report.table());
    }
    report.verdict().map_err(Failure::from)
}
