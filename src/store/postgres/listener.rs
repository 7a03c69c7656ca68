//! Hearing at once that a name was passed on: LISTEN, on a connection of its own.
//!
//! A waiter's session has a channel. Passing a name on to the waiter sends a notification with its grant id there
//! (`functions/pass.sql`). Nothing is sent for a name without waiters: NOTIFY takes a lock of the whole database at
//! commit (manual, NOTIFY).

use std::time::Duration;

use async_trait::async_trait;
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::time::timeout;
use uuid::Uuid;

use crate::store::verbs::fault::Fault;
use crate::store::verbs::queue::{Listener, News};

/// The channel of a session; `rowlock_pass` sends to it.
pub(super) fn channel(session: Uuid) -> String {
    format!("rowlock_{}", session.simple())
}

/// How long the end of the connection may take.
const CLOSING: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Channel {
    listener: PgListener,
    pool: PgPool,
}

/// Listens to the channel of a session. sqlx listens over pools only, so this makes a pool of one connection.
pub(super) async fn listen(
    options: &PgConnectOptions,
    session: Uuid,
) -> Result<Box<dyn Listener>, Fault> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .test_before_acquire(false)
        .connect_with(options.clone())
        .await?;
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.eager_reconnect(false);
    listener.listen(&channel(session)).await?;
    Ok(Box::new(Channel { listener, pool }))
}

#[async_trait]
impl Listener for Channel {
    async fn next(&mut self) -> Result<News, Fault> {
        match self.listener.try_recv().await? {
            Some(heard) => Ok(news(heard.payload())),
            None => Err(Fault::said(
                crate::model::FaultKind::Disconnected,
                "the connection that listens was lost",
            )),
        }
    }

    async fn close(self: Box<Self>) {
        drop(self.listener);
        let _ = timeout(CLOSING, self.pool.close()).await;
    }
}

/// What the [functions](super::functions) and
/// [`QueueStore::queue_test`](crate::store::verbs::queue::QueueStore::queue_test) send.
fn news(payload: &str) -> News {
    match payload {
        "look" => News::Look,
        _ => payload.parse().map_or(News::Test, |to| News::Passed {
            to,
            by_another: true,
        }),
    }
}
