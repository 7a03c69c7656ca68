//! A payment server that charges once, whatever happens: clients that send twice, hang up and try again, processes that
//! are killed in the middle.
//!
//! ```text
//! cargo run --release --example payments -- serve --listen 127.0.0.1:8080
//! cargo run --release --example payments -- serve --listen 127.0.0.1:8080 --url postgres://… --gateway http://127.0.0.1:8090
//! cargo run --release --example payments -- gateway --listen 127.0.0.1:8090
//! ```
//!
//! `serve` without `--gateway` starts a payment provider of its own. Both keep what they know in `rowlock-payments` in the
//! folder for temporary files, unless they are told where.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tokio::net::TcpListener;

mod service;
use service::{Failure, gateway, server};

/// A payment server that charges once, whatever happens.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve payments and orders.
    Serve {
        /// The address.
        #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
        listen: String,
        /// The database; a SQLite file when not given.
        #[arg(long, env = "ROWLOCK_URL", hide_env_values = true)]
        url: Option<String>,
        /// The payment provider; one of its own when not given.
        #[arg(long, value_name = "URL")]
        gateway: Option<String>,
        /// How long the provider takes for a charge.
        #[arg(long, default_value_t = 0, value_name = "MILLISECONDS")]
        gateway_delay_ms: u64,
    },
    /// Be a payment provider, with idempotency of its own.
    Gateway {
        /// The address.
        #[arg(long, default_value = "127.0.0.1:8090", value_name = "ADDRESS")]
        listen: String,
        /// Its SQLite file.
        #[arg(long, value_name = "PATH")]
        file: Option<PathBuf>,
    },
}

/// A file that outlives the process.
fn kept(name: &str) -> Result<PathBuf, Failure> {
    let folder = std::env::temp_dir().join("rowlock-payments");
    std::fs::create_dir_all(&folder)?;
    Ok(folder.join(name))
}

async fn listen(address: &str) -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|error| format!("cannot listen on {address}: {error}").into())
}

async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Serve {
            listen: address,
            url,
            gateway,
            gateway_delay_ms,
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
                tokio::spawn(gateway::serve(own, kept("gateway.db")?));
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
            axum::serve(listener, app.router)
                .with_graceful_shutdown(async {
                    let _ = tokio::signal::ctrl_c().await;
                })
                .await?;
            app.rowlock.flush().await;
            Ok(())
        }
        Command::Gateway {
            listen: address,
            file,
        } => {
            let listener = listen(&address).await?;
            println!("gateway on http://{}", listener.local_addr()?);
            let file = match file {
                Some(file) => file,
                None => kept("gateway.db")?,
            };
            gateway::serve(listener, file).await
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
