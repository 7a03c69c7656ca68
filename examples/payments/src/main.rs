//! A payment server that charges each order once. Clients may send a request twice, hang up and try again, or use two
//! keys for one order, and processes may be killed at any moment.
//!
//! ```text
//! cargo run --release -p payments -- serve --listen 127.0.0.1:8080
//! cargo run --release -p payments -- serve --listen 127.0.0.1:8080 --url postgres://… --gateway http://127.0.0.1:8090
//! cargo run --release -p payments -- gateway --listen 127.0.0.1:8090
//! ```
//!
//! `--help` lists the routes and the defaults.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::signal::unix::{SignalKind, signal};

use payments::limits::{self, Limits};
use payments::{Failure, gateway, server};

/// A payment server that charges each order once.
#[derive(Debug, Parser)]
#[command(after_help = server::ROUTES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve payments and orders.
    #[command(after_help = server::ROUTES)]
    Serve {
        /// The address to listen on.
        #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
        listen: String,
        /// The database: postgres://USER:PASSWORD@HOST:PORT/DATABASE, mysql://…, mariadb://… or sqlite:PATH
        /// [default: rowlock-payments/payments.db in the working directory].
        #[arg(long, env = "ROWLOCK_URL", hide_env_values = true)]
        url: Option<String>,
        /// The payment provider [default: a provider in this process, with gateway.db beside payments.db].
        #[arg(long, value_name = "http://HOST:PORT")]
        gateway: Option<String>,
        /// How long the provider waits before each charge.
        #[arg(long, default_value_t = 0, value_name = "MILLISECONDS")]
        gateway_delay_ms: u64,
        /// How long requests that have begun may take after SIGTERM or Ctrl-C. Give the supervisor more time than
        /// this.
        #[arg(long, default_value_t = 60, value_name = "SECONDS")]
        stop_seconds: u64,
    },
    /// Serve a payment provider that knows idempotency keys.
    Gateway {
        /// The address to listen on.
        #[arg(long, default_value = "127.0.0.1:8090", value_name = "ADDRESS")]
        listen: String,
        /// The provider's SQLite file [default: rowlock-payments/gateway.db in the working directory].
        #[arg(long, value_name = "PATH")]
        file: Option<PathBuf>,
    },
}

/// How long the last statements to the database may take, after the last request.
const LAST_STATEMENTS: Duration = Duration::from_secs(5);

/// The path of a file that stays after the process ends. (Not in the folder for temporary files, which all users of a
/// machine share.)
fn kept(name: &str) -> Result<PathBuf, Failure> {
    let folder = std::env::current_dir()?.join("rowlock-payments");
    let made = std::fs::create_dir_all(&folder);
    made.map_err(|error| format!("cannot create the folder {}: {error}", folder.display()))?;
    Ok(folder.join(name))
}

async fn listen(address: &str) -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|error| format!("cannot listen on {address}: {error}").into())
}

/// Waits for Ctrl-C, or for SIGTERM from a service manager.
async fn told_to_stop() {
    let interrupted = tokio::signal::ctrl_c();
    #[cfg(unix)]
    if let Ok(mut terminated) = signal(SignalKind::terminate()) {
        tokio::select! {
            _ = interrupted => {}
            _ = terminated.recv() => {}
        }
        return;
    }
    let _ = interrupted.await;
}

async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Serve {
            listen: address,
            url,
            gateway,
            gateway_delay_ms,
            stop_seconds,
        } => {
            let listener = listen(&address).await?;
            let url = match url {
                Some(url) => url,
                None => format!("sqlite:{}", kept("payments.db")?.display()),
            };
            let gateway = if let Some(gateway) = gateway {
                gateway
            } else {
                let own = listen("127.0.0.1:0").await?;
                let address = own.local_addr()?;
                let provider = gateway::router(kept("gateway.db")?).await?;
                tokio::spawn(gateway::serve(own, provider));
                format!("http://{address}")
            };
            let settings = server::Settings {
                url,
                gateway,
                gateway_delay_ms,
                ..server::Settings::default()
            };
            let app = server::router(&settings).await?;
            println!("payments on http://{}", listener.local_addr()?);
            println!("database {}", app.rowlock.target());
            let limits = Limits {
                stop: Duration::from_secs(stop_seconds),
                ..Limits::default()
            };
            let told = async {
                told_to_stop().await;
                println!(
                    "stopping: waits up to {:?} for requests that have begun",
                    limits.stop
                );
            };
            let finished = limits::serve(listener, app.router, app.payments, limits, told).await;
            for unfinished in app.rowlock.shutdown(LAST_STATEMENTS).await {
                eprintln!("payments: not finished: {unfinished}");
            }
            if !finished {
                return Err(
                    "stopped in the middle of requests: each is finished when its client sends it again"
                        .into(),
                );
            }
            Ok(())
        }
        Command::Gateway {
            listen: address,
            file,
        } => {
            let listener = listen(&address).await?;
            let file = match file {
                Some(file) => file,
                None => kept("gateway.db")?,
            };
            let provider = gateway::router(file).await?;
            println!("gateway on http://{}", listener.local_addr()?);
            gateway::serve(listener, provider).await
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse().command).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("payments: {error}");
            ExitCode::FAILURE
        }
    }
}
