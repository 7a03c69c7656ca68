//! A transaction that has its whole database for itself, because the database has one writer at a time (SQLite).
//!
//! The transactions of this process that rowlock begins take [turns](crate::store::writers). Code that runs in such a transaction can ask whether
//! it would wait for that transaction.

use std::sync::Arc;

use sqlx::pool::PoolConnection;
use tokio::time::timeout;

use super::open::Uncommitted;
use crate::model::Error;
use crate::store::Connector;
use crate::store::brands::Supported;
use crate::store::writers::{WriteTurn, Writers};

/// A database that a transaction has for itself.
#[derive(Clone)]
pub(super) struct Alone {
    target: Arc<str>,
    /// The same for all names of a file.
    writers: Option<Arc<Writers>>,
}

tokio::task_local! {
    /// The database that the transaction of this task has for itself.
    static ALONE_IN: Alone;
}

/// Whether this task is in a closure of a transaction that has the whole database for itself: no lane can write before it ends.
pub(crate) fn is_alone_in(target: &str) -> bool {
    ALONE_IN
        .try_with(|alone_in| *alone_in.target == *target)
        .unwrap_or(false)
}

impl Alone {
    /// The database of a pool, if it has one writer at a time.
    pub(super) fn of<B: Supported>(pool: &sqlx::Pool<B>) -> Option<Self> {
        if !B::Connector::CAPABILITIES.one_writer {
            return None;
        }
        let options = pool.connect_options();
        let connector = B::Connector::from_options(options.as_ref().clone()).ok()?;
        Some(Self {
            target: connector.target().into(),
            writers: connector.writers(),
        })
    }

    /// A connection of the pool for a transaction, and its turn, if the writers take turns.
    pub(super) async fn connection<B: Supported>(
        &self,
        pool: &sqlx::Pool<B>,
    ) -> Result<(PoolConnection<B>, Option<WriteTurn>), Uncommitted> {
        let Some(writers) = &self.writers else {
            return Ok((pool.acquire().await?, None));
        };
        let (conn, turn) = in_turn(pool, writers, &self.target).await?;
        Ok((conn, Some(turn)))
    }

    /// Runs `work` in the transaction.
    pub(super) fn during<F: Future>(self, work: F) -> impl Future<Output = F::Output> {
        ALONE_IN.scope(self, work)
    }
}

/// Waits for the turn, and for a connection of the pool, which only the head of the line takes. Both together take no longer than
/// the pool allows for a connection.
async fn in_turn<B: Supported>(
    pool: &sqlx::Pool<B>,
    writers: &Arc<Writers>,
    target: &str,
) -> Result<(PoolConnection<B>, WriteTurn), Uncommitted> {
    let is_own =
        |alone_in: &Alone| matches!(&alone_in.writers, Some(own) if Arc::ptr_eq(own, writers));
    if ALONE_IN.try_with(is_own).unwrap_or(false) {
        return Err(Uncommitted::Ours(Error::InvalidSetting {
            setting: "work",
            reason: "the closure begins a second transaction in its own file, which would wait for the first: use the closure's \
                     transaction, or begin the second after the first has ended",
        }));
    }
    let limit = pool.options().get_acquire_timeout();
    let turn = async {
        let head = writers.line_up().await;
        let conn = pool.acquire().await?;
        Ok((conn, head.turn().await))
    };
    timeout(limit, turn).await.unwrap_or_else(|_| {
        Err(Uncommitted::Ours(Error::Unreachable {
            target: target.to_owned(),
            detail: format!(
                "no turn to write to the file, or no connection of the pool, within {limit:?} (the pool's acquire_timeout): shorten the \
                 transactions of this process, or raise that time"
            ),
        }))
    })
}

#[cfg(all(test, feature = "sqlite"))]
#[path = "alone_tests.rs"]
mod tests;
