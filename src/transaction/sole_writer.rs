//! A transaction that has its whole database for itself, because the database has one writer at a time (SQLite).
//!
//! The transactions of this process that rowlock begins take [turns](crate::store::driver::write_turn). Code that runs
//! in such a transaction can ask whether it would wait for that transaction.

use std::iter;
use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use tokio::time::timeout;

use super::commit_failure::CommitFailure;
use super::pool::connector;
use crate::model::{Error, InvalidError, Moment};
use crate::store::driver::connector::Connector;
use crate::store::driver::engines::SupportedDatabase;
use crate::store::driver::write_turn::{WriteTurn, Writers};

/// A database that a transaction has for itself.
#[derive(Clone)]
pub(super) struct SoleWriter {
    target: Arc<str>,
    /// The same for all names of a file.
    writers: Option<Arc<Writers>>,
    /// That of the transaction in whose closure this one began.
    outer: Option<Arc<Self>>,
}

tokio::task_local! {
    /// The database that the transaction of this task has for itself.
    static ALONE_IN: SoleWriter;
}

/// Whether this task is in a closure of a transaction that has the whole database for itself: no lane can write before
/// it ends.
pub(crate) fn is_alone_in(target: &str) -> bool {
    is_in_any(|alone_in| *alone_in.target == *target)
}

/// Whether this task runs in the closure of such a transaction: in its own, or in one around it.
fn is_in_any(is_such: impl Fn(&SoleWriter) -> bool) -> bool {
    let of_all = |innermost: &SoleWriter| {
        iter::successors(Some(innermost), |inner| inner.outer.as_deref()).any(is_such)
    };
    ALONE_IN.try_with(of_all).unwrap_or(false)
}

impl SoleWriter {
    /// The database of a pool, if it has one writer at a time.
    pub(super) fn of<B: SupportedDatabase>(pool: &sqlx::Pool<B>) -> Option<Self> {
        if !B::Connector::CAPABILITIES.one_writer {
            return None;
        }
        let connector = connector(pool).ok()?;
        Some(Self {
            target: connector.target().into(),
            writers: connector.writers(),
            outer: ALONE_IN.try_with(|outer| Arc::new(outer.clone())).ok(),
        })
    }

    /// A connection of the pool for a transaction, and its turn, if the writers take turns.
    pub(super) async fn connection<B: SupportedDatabase>(
        &self,
        pool: &sqlx::Pool<B>,
    ) -> Result<(PoolConnection<B>, Option<WriteTurn>), CommitFailure> {
        let Some(writers) = &self.writers else {
            return Ok((pool.acquire().await?, None));
        };
        let is_own =
            |alone_in: &Self| matches!(&alone_in.writers, Some(own) if Arc::ptr_eq(own, writers));
        if is_in_any(is_own) {
            return Err(CommitFailure::Ours(Error::Invalid(InvalidError::Setting {
                setting: "work",
                reason: "the closure begins another transaction in its own file, which would wait for the first: use the closure's \
                         transaction, or begin the other one after the first has ended",
            })));
        }
        let (conn, turn) = in_turn(pool, writers, &self.target).await?;
        Ok((conn, Some(turn)))
    }

    /// Runs `work` in the transaction.
    pub(super) fn during<F: Future>(self, work: F) -> impl Future<Output = F::Output> {
        ALONE_IN.scope(self, work)
    }
}

/// Waits for a connection of the pool and for the turn, each for no longer than the pool allows for a connection.
///
/// Only the first in the line takes a connection. If all connections of its pool are in use, it leaves the line,
/// because transactions of other pools wait in it, too. Then it comes back with a connection.
async fn in_turn<B: SupportedDatabase>(
    pool: &sqlx::Pool<B>,
    writers: &Arc<Writers>,
    target: &str,
) -> Result<(PoolConnection<B>, WriteTurn), CommitFailure> {
    let limit = pool.options().get_acquire_timeout();
    let until = Moment::now() + limit;
    let no_turn = || {
        CommitFailure::Ours(Error::Conflict {
            what: format!(
                "other transactions of this process had the file of {target} for {limit:?}, the acquire_timeout of the pool"
            ),
        })
    };
    let mut first = by(until, writers.line_up()).await.ok_or_else(no_turn)?;
    let at_once = if is_exhausted(pool) {
        None
    } else {
        timeout(AT_ONCE, pool.acquire()).await.ok()
    };
    let conn = if let Some(conn) = at_once {
        conn?
    } else {
        drop(first);
        let conn = pool.acquire().await?;
        first = by(until, writers.line_up()).await.ok_or_else(no_turn)?;
        conn
    };
    let turn = by(until, first.turn()).await.ok_or_else(no_turn)?;
    Ok((conn, turn))
}

/// How long the first in the line waits for a connection that its pool has or makes. Making one takes a fraction of
/// this.
const AT_ONCE: Duration = Duration::from_millis(100);

/// Whether all connections that the pool may have are in use.
fn is_exhausted<B: SupportedDatabase>(pool: &sqlx::Pool<B>) -> bool {
    pool.num_idle() == 0 && pool.size() >= pool.options().get_max_connections()
}

/// `None`: the time was over first.
async fn by<T>(until: Moment, work: impl Future<Output = T>) -> Option<T> {
    timeout(until.remaining(), work).await.ok()
}

#[cfg(all(test, feature = "sqlite"))]
#[path = "sole_writer_tests.rs"]
mod tests;
