//! Credits the events of a queue, until SIGTERM or Ctrl-C.

use std::error::Error;
use std::io::IsTerminal;
use std::time::Duration;

use clap::Parser;
use lapin::{Connection, ConnectionProperties};
use rowlock::Rowlock;
use rowlock_recipes::inbox::Inbox;
use sqlx::PgPool;
use tokio::signal::unix::{SignalKind, signal};

/// Credits the events of a queue, each once
#[derive(Debug, Parser)]
struct Args {
    /// The broker's URL, which begins with amqp:
    #[arg(long, value_name = "amqp://USER:PASSWORD@HOST:PORT/%2f")]
    amqp: String,
    /// The database's URL
    #[arg(long, value_name = "postgres://USER:PASSWORD@HOST/DATABASE")]
    database: String,
    /// The queue
    #[arg(long, default_value = "events")]
    queue: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let has_colours = std::io::stdout().is_terminal();
    tracing_subscriber::fmt().with_ansi(has_colours).init();
    let args = Args::parse();
    let mut stopped = signal(SignalKind::terminate())?;
    let pool = PgPool::connect(&args.database).await?;
    inbox::prepare(&pool).await?;
    let rowlock = Rowlock::from_pool(&pool).await?;
    let inbox = Inbox::new(rowlock.idempotency(), &pool, inbox::CONSUMER);
    let connection = Connection::connect(&args.amqp, ConnectionProperties::default()).await?;
    let stop = async {
        tokio::select! {
            _ = stopped.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    inbox::consumer::run(&connection, &args.queue, &inbox, stop).await?;
    connection.close(0, "done".into()).await?;
    for unfinished in rowlock.shutdown(Duration::from_secs(10)).await {
        tracing::warn!(%unfinished, "not finished");
    }
    Ok(())
}
