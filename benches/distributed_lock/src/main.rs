//! A contender of the race (`../src/race`) in a program of its own. The race starts it with the same orders as its own
//! processes.

mod client;
#[path = "../../src/race/locking.rs"]
mod locking;
#[path = "../../src/race/referee.rs"]
mod referee;
#[path = "../../src/race/runner.rs"]
mod runner;
#[path = "../../src/race/workload.rs"]
#[allow(dead_code, reason = "the race also asks for the names' database")]
mod workload;

use std::sync::Arc;

use locking::Contender;
use runner::Orders;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let (Some("--child"), Some(orders)) = (arguments.next().as_deref(), arguments.next()) else {
        return Err(
            "the benchmark race starts this program: give it the path in --distributed-lock".into(),
        );
    };
    runner::child(&orders, connect).await
}

async fn connect(orders: &Orders) -> Result<Arc<dyn Contender>, Failure> {
    Ok(Arc::new(
        client::Client::connect(&orders.url, orders.connections()).await?,
    ))
}
