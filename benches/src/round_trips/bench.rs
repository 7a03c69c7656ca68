//! One engine behind a network, and the counts of its operations.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rowlock::{Engine, Error, Idempotency, Rowlock};
use sqlx::Database;
use sqlx::pool::PoolOptions;

use crate::Failure;
use crate::network::Network;
use crate::servers::Server;
use crate::shop::Shop;

/// The round trips of one operation.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) sent: Vec<f64>,
    /// In units of a round trip; none where nobody waits.
    pub(crate) waited: Option<Vec<f64>>,
}

/// The operations on one engine, in the order of the table.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) network: Arc<Network>,
    pub(crate) url: String,
    pub(crate) round_trip: Duration,
    pub(crate) rowlock: Rowlock,
    pub(crate) idempotency: Idempotency,
    pub(crate) shop: Shop,
    pub(crate) counts: Vec<(&'static str, Counts)>,
    /// Whether the rounds count by now.
    pub(crate) warm: bool,
}

/// Pools without pings, whose transactions take no round trip more than BEGIN and COMMIT.
fn pool<DB: Database>() -> PoolOptions<DB> {
    PoolOptions::new()
        .max_connections(1)
        .test_before_acquire(false)
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn to_float(count: u64) -> f64 {
    count as f64
}

/// The round trips of a call, and its time.
pub(crate) async fn counted<T>(
    network: &Network,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<(u64, Duration), Error> {
    let (before, began) = (network.trips(), Instant::now());
    call.await?;
    Ok((network.trips() - before, began.elapsed()))
}

impl Bench {
    pub(crate) async fn open(server: &Server, round_trip: Duration) -> Result<Self, Failure> {
        let (network, url) = Network::before(&server.url)?;
        // Before the client connects: it compares times with those of its first statements.
        network.set(round_trip);
        let rowlock = Rowlock::connect(&url).await?;
        let shop = match server.engine {
            Engine::Postgres => Shop::Postgres(pool().connect(&url).await?),
            _ => Shop::MySql(pool().connect(&url).await?),
        };
        Ok(Self {
            network: Arc::new(network),
            url,
            round_trip,
            idempotency: rowlock.idempotency(),
            rowlock,
            shop,
            counts: Vec::new(),
            warm: false,
        })
    }

    /// Counts the round trips of `call`, and of what it leaves to the background.
    pub(crate) async fn count<T, E: Into<Failure>>(
        &mut self,
        operation: &'static str,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Failure> {
        let (before, began) = (self.network.trips(), Instant::now());
        let result = call.await.map_err(Into::into)?;
        let waited = began.elapsed();
        self.rowlock.flush().await;
        // A pool pings a connection that returns to it.
        tokio::time::sleep(self.round_trip * 2).await;
        let sent = self.network.trips() - before;
        self.add(operation, sent, Some(waited));
        Ok(result)
    }

    pub(crate) fn add(&mut self, operation: &'static str, sent: u64, waited: Option<Duration>) {
        if !self.warm {
            return;
        }
        let place = self.counts.iter().position(|counts| counts.0 == operation);
        let place = place.unwrap_or_else(|| {
            self.counts.push((operation, Counts::default()));
            self.counts.len() - 1
        });
        let counts = &mut self.counts[place].1;
        counts.sent.push(to_float(sent));
        if let Some(waited) = waited {
            let trips = waited.as_secs_f64() / self.round_trip.as_secs_f64();
            counts.waited.get_or_insert_default().push(trips);
        }
    }
}
