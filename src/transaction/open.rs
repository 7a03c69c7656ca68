//! A transaction that rowlock begins, lends to a closure, takes back, and ends.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::Mutex;
use sqlx::{Connection as _, Database, SqlSafeStr};

use super::commit_failure::CommitFailure;
use super::sealed::{self, AtEnd};
use super::sole_writer::SoleWriter;
use super::{Pool, Transaction};
use crate::model::{Error, InvalidError, Name};
use crate::runtime::Core;
use crate::runtime::base::tasks::{Completion, Tasks};
use crate::runtime::upkeep::known_rows::KnownRows;
use crate::store::driver::connector::Connector;
use crate::store::driver::engines::{Driver, SupportedDatabase};
use crate::store::driver::fault_error::commit_unknown;
use crate::store::driver::write_turn::WriteTurn;
use crate::store::verbs::TxStore;
use crate::store::verbs::in_tx::InTxStore as _;

/// The state that all transactions of one [`Retry::run`](super::Retry::run) share.
#[derive(Debug)]
pub(crate) struct Run {
    /// The tasks that finish a statement whose future was dropped.
    pub(crate) tasks: Tasks,
    /// The missing rows, to be made when no transaction of this run keeps a connection.
    pub(crate) missing: Mutex<Vec<(Arc<KnownRows>, Name)>>,
}

impl Run {
    pub(crate) fn new(tasks: Tasks) -> Arc<Self> {
        let missing = Mutex::default();
        Arc::new(Self { tasks, missing })
    }
}

const BEGIN: &str = "the begin of a transaction";
const COMMIT: &str = "the commit of a transaction";
const ROLLBACK: &str = "the rollback of a transaction";

/// The transaction of one attempt of [`Retry::run`](super::Retry::run). It dereferences to sqlx's connection:
/// statements run on `&mut *tx`. (A function that takes sqlx's transaction gets `tx.as_mut()`.) Dropping it gives it
/// back to rowlock, which commits it or rolls it back.
pub struct RetryTx<B: Database> {
    open: Option<Open<B>>,
    slot: Arc<Mutex<Option<Open<B>>>>,
}

/// An open transaction, and the actions to run after its end.
pub(crate) struct Open<B: Database> {
    pub(crate) tx: sqlx::Transaction<'static, B>,
    /// Until the transaction has ended. (Dropped after it.)
    turn: Option<WriteTurn>,
    at_end: Vec<AtEnd>,
    run: Arc<Run>,
    alone_in: Option<SoleWriter>,
}

/// The receiver of a lent transaction. When the caller drops the work, and this receiver with it, a task of the
/// caller's runtime rolls the transaction back. Without the rollback, the next user of the connection would get the
/// error of the statement that was cut off, and sqlx's pool of MySQL over TLS would lose the connection.
pub(crate) struct Lent<B: Database> {
    slot: Arc<Mutex<Option<Open<B>>>>,
    abandon: fn(Open<B>),
}

impl<B: SupportedDatabase> Open<B> {
    /// Rolls back. If the future is dropped, a task goes on with it.
    pub(crate) fn undo(self) -> Completion<()> {
        let tasks = self.run.tasks.clone();
        tasks.finish(ROLLBACK, self.roll_back())
    }

    /// Begins a transaction that may write. Dropping the future leaves no open transaction in the pool.
    ///
    /// Where the database has one writer at a time, the task first waits for those before it, without a connection.
    pub(crate) async fn begin<P: Pool<Database = B>>(
        pool: &P,
        run: &Arc<Run>,
    ) -> Result<Self, CommitFailure> {
        let pool = pool.pool();
        let alone_in = SoleWriter::of(pool);
        let (conn, turn) = loop {
            let (conn, turn) = match &alone_in {
                Some(alone_in) => alone_in.connection(pool).await?,
                None => (pool.acquire().await?, None),
            };
            if !conn.is_in_transaction() {
                break (conn, turn);
            }
            // A transaction on it could not be rolled back, for example on a full disk: it can begin no other one.
            conn.close().await?;
        };
        let run_of_it = Arc::clone(run);
        let begin = async move {
            let statement = <B::Connector as Connector>::BEGIN.map(SqlSafeStr::into_sql_str);
            let tx = sqlx::Transaction::begin(conn, statement).await?;
            if let Some(turn) = &turn {
                turn.has_file();
            }
            Ok(Self {
                tx,
                turn,
                at_end: Vec::new(),
                run: run_of_it,
                alone_in,
            })
        };
        run.tasks.finish(BEGIN, begin).await
    }

    /// Commits. If the future is dropped, a task goes on with it.
    pub(crate) fn done(self) -> Completion<Result<(), CommitFailure>> {
        let tasks = self.run.tasks.clone();
        tasks.finish(COMMIT, self.commit())
    }

    pub(crate) async fn commit(self) -> Result<(), CommitFailure> {
        let committed = commit(self.tx).await;
        drop(self.turn);
        for then in self.at_end {
            then();
        }
        outcome_of(committed)
    }

    /// Lends the transaction to `work`, which gives it back by dropping it.
    pub(crate) async fn lend<F: Future>(
        self,
        work: impl FnOnce(RetryTx<B>) -> F,
    ) -> (F::Output, Lent<B>) {
        let (slot, alone_in) = (Arc::new(Mutex::new(None)), self.alone_in.clone());
        let tx = RetryTx {
            open: Some(self),
            slot: Arc::clone(&slot),
        };
        let abandon = |open: Self| drop(open.undo());
        let lent = Lent { slot, abandon };
        let done = match alone_in {
            Some(alone_in) => alone_in.during(work(tx)).await,
            None => work(tx).await,
        };
        (done, lent)
    }

    pub(crate) async fn roll_back(self) {
        // A rollback fails when the connection is broken, and the server then ends the transaction. A node of a
        // cluster refuses it when it has rolled the transaction back by itself.
        let _ = self.tx.rollback().await;
        drop(self.turn);
        for then in self.at_end {
            then();
        }
    }
}

/// Commits a transaction that rowlock has begun, and fails if nothing was committed: PostgreSQL answers the `COMMIT`
/// of a transaction in which a statement has failed with success, and rolls back. (Not for a transaction in another
/// one: this would commit the outer one.)
async fn commit<B: SupportedDatabase>(mut tx: sqlx::Transaction<'_, B>) -> Result<(), sqlx::Error> {
    if tx.tx_commit().await? {
        return Ok(());
    }
    tx.commit().await
}

/// The result of a commit. It is unknown when the connection broke before the answer.
fn outcome_of(committed: Result<(), sqlx::Error>) -> Result<(), CommitFailure> {
    committed.map_err(|error| match commit_unknown(&error) {
        Some(unknown) => CommitFailure::Ours(unknown),
        None => CommitFailure::Driver(error),
    })
}

impl<B: Database> Lent<B> {
    fn take(&self) -> Option<Open<B>> {
        self.slot.lock().take()
    }

    pub(crate) fn back(self) -> Result<Open<B>, Error> {
        self.take().ok_or(Error::Invalid(InvalidError::Setting {
            setting: "work",
            reason: "the closure kept the transaction: drop the transaction before the closure returns",
        }))
    }
}

impl<B: Database> Drop for Lent<B> {
    fn drop(&mut self) {
        if let Some(open) = self.take() {
            (self.abandon)(open);
        }
    }
}

impl<B: Database> RetryTx<B> {
    /// Keeps a guard until the transaction has ended: it is dropped after the commit, or after the rollback.
    ///
    /// A guard that stays in the closure is dropped when the closure returns, which is *before* the commit. Then the
    /// next holder may not see what this transaction has written.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/shop.db?mode=rwc", dir.path().display());
    /// # let pool = sqlx::SqlitePool::connect(&url).await?;
    /// # let rowlock = rowlock::Rowlock::from_pool(&pool).await?;
    /// let held = &std::sync::Mutex::new(Some(rowlock.lock("stock:42").acquire().await?));
    /// let once = rowlock.retry().attempts(1);
    /// let done = once.run(&pool, async |mut tx| {
    ///     if let Some(held) = held.lock().unwrap().take() {
    ///         tx.keep(held); // until the commit
    ///     }
    ///     // … statements
    ///     Ok::<_, rowlock::Error>("done")
    /// });
    /// assert_eq!(done.await?, "done");
    /// # Ok(())
    /// # }
    /// ```
    pub fn keep(&mut self, guard: impl Send + Sync + 'static) {
        self.open().at_end.push(Box::new(move || drop(guard)));
    }

    fn open(&mut self) -> &mut Open<B> {
        self.open.as_mut().expect("it is there until it is dropped")
    }
}

impl<B: Database> fmt::Debug for RetryTx<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryTx").finish_non_exhaustive()
    }
}

impl<B: Database> Deref for RetryTx<B> {
    type Target = B::Connection;

    fn deref(&self) -> &B::Connection {
        let open = self.open.as_ref();
        &open.expect("it is there until it is dropped").tx
    }
}

impl<B: Database> DerefMut for RetryTx<B> {
    fn deref_mut(&mut self) -> &mut B::Connection {
        &mut self.open().tx
    }
}

/// For functions that take sqlx's transaction: `helper(tx.as_mut())`.
impl<B: Database> AsMut<sqlx::Transaction<'static, B>> for RetryTx<B> {
    fn as_mut(&mut self) -> &mut sqlx::Transaction<'static, B> {
        &mut self.open().tx
    }
}

impl<B: Database> Drop for RetryTx<B> {
    fn drop(&mut self) {
        *self.slot.lock() = self.open.take();
    }
}

#[allow(private_bounds, private_interfaces, reason = "sealed")]
impl<B: SupportedDatabase> sealed::Sealed for RetryTx<B> {
    const DRIVER: Driver = B::DRIVER;

    fn connection(&mut self) -> &mut dyn TxStore {
        &mut **self
    }

    fn is_begun(&self) -> bool {
        true
    }

    fn at_end(&mut self, then: AtEnd) {
        self.open().at_end.push(then);
    }

    fn make_row_first(&mut self, core: &Arc<Core>, name: &Name) {
        self.open()
            .run
            .missing
            .lock()
            .push((Arc::clone(&core.rows), name.clone()));
    }
}

#[allow(private_bounds, reason = "sealed")]
impl<B: SupportedDatabase> Transaction for RetryTx<B> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_without_an_answer_is_unknown_and_a_refused_one_is_not() {
        let broken = std::io::Error::new(std::io::ErrorKind::BrokenPipe, "cut");
        let told = outcome_of(Err(broken.into()));
        assert!(matches!(
            told,
            Err(CommitFailure::Ours(Error::CommitUnknown { .. }))
        ));
        let told = outcome_of(Err(sqlx::Error::RowNotFound));
        assert!(matches!(
            told,
            Err(CommitFailure::Driver(sqlx::Error::RowNotFound))
        ));
        assert!(outcome_of(Ok(())).is_ok());
    }
}
