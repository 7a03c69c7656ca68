//! Credits the events that a provider sends to a webhook.

use std::error::Error;
use std::io::IsTerminal;
use std::net::SocketAddr;

use clap::Parser;
use inbox::webhook::{Webhook, routes};
use rowlock::Rowlock;
use rowlock_recipes::inbox::Inbox;
use sqlx::PgPool;
use tokio::net::TcpListener;

/// Credits the events that a provider sends to POST /webhooks, each once
#[derive(Debug, Parser)]
struct Args {
    /// The database's URL
    #[arg(long, value_name = "postgres://USER:PASSWORD@HOST/DATABASE")]
    database: String,
    /// What the provider signs with
    #[arg(long, env = "WEBHOOK_SECRET", hide_env_values = true)]
    secret: String,
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let has_colours = std::io::stdout().is_terminal();
    tracing_subscriber::fmt().with_ansi(has_colours).init();
    let args = Args::parse();
    if args.secret.is_empty() {
        return Err("the secret is empty: anybody could sign".into());
    }
    let pool = PgPool::connect(&args.database).await?;
    inbox::prepare(&pool).await?;
    let rowlock = Rowlock::from_pool(&pool).await?;
    let webhook = Webhook {
        inbox: Inbox::new(rowlock.idempotency(), &pool, inbox::CONSUMER),
        secret: args.secret,
    };
    let listener = TcpListener::bind(args.listen).await?;
    tracing::info!(address = %listener.local_addr()?, "listening");
    axum::serve(listener, routes(webhook)).await?;
    Ok(())
}
