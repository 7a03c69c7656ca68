//! A transaction that rowlock has begun: lent to a closure, given back, and ended.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sqlx::SqlSafeStr;

use super::sealed::{self, AtEnd};
use super::{Pool, Transaction};
use crate::model::{Error, Name};
use crate::runtime::Core;
use crate::runtime::tasks::{Finish, Tasks};
use crate::store::brands::{Brand, Supported};
use crate::store::fault_error::commit_unknown;
use crate::store::{Connector, TxStore};

/// What the transactions of one [`Retry::run`](super::Retry::run), one after the other, have in common.
#[derive(Debug)]
pub(crate) struct Run {
    /// Where what is cut off comes to its end.
    pub(crate) tasks: Tasks,
    /// The rows that a transaction could not have made while it kept its connection.
    pub(crate) missing: Mutex<Vec<(Arc<Core>, Name)>>,
}

impl Run {
    pub(crate) fn new(tasks: Tasks) -> Arc<Self> {
        let missing = Mutex::default();
        Arc::new(Self { tasks, missing })
    }
}

const BEGIN: &str = "the begin of a transaction";
const ROLLBACK: &str = "the rollback of a transaction";

/// The transaction of one attempt of [`Retry::run`](super::Retry::run): dereferences to sqlx's. Dropping it hands it back, to be
/// committed or rolled back.
pub struct RetryTx<T> {
    open: Option<Open<T>>,
    slot: Arc<Mutex<Option<Open<T>>>>,
}

/// A transaction, and what is to be done when it has ended.
pub(crate) struct Open<T> {
    pub(crate) tx: T,
    at_end: Vec<AtEnd>,
    run: Arc<Run>,
}

/// The way back of a transaction that was handed out. When it is dropped instead, because the work was cut off, a task of
/// the caller's runtime rolls the transaction back: the statement that was cut off may have failed, and whoever uses its
/// connection next is told that error. For sqlx's pool of MySQL over TLS that would cost the connection.
pub(crate) struct Lent<T> {
    slot: Arc<Mutex<Option<Open<T>>>>,
    abandon: fn(Open<T>),
}

impl<B: Supported> Open<sqlx::Transaction<'static, B>> {
    /// Rolls back, also when the future is dropped: then as a task.
    pub(crate) fn undo(self) -> Finish<()> {
        let tasks = self.run.tasks.clone();
        tasks.finish(ROLLBACK, self.roll_back())
    }

    /// Begins a transaction that may write. Dropping the future leaves no open one in the pool.
    pub(crate) async fn begin<P: Pool<Brand = B>>(
        pool: &P,
        run: &Arc<Run>,
    ) -> Result<Self, sqlx::Error> {
        let conn = pool.pool().acquire().await?;
        let statement = <B::Connector as Connector>::BEGIN.map(SqlSafeStr::into_sql_str);
        let begin = sqlx::Transaction::begin(conn, statement);
        let tx = run.tasks.finish(BEGIN, begin).await?;
        Ok(Self {
            tx,
            at_end: Vec::new(),
            run: Arc::clone(run),
        })
    }

    pub(crate) async fn commit<E: From<sqlx::Error> + From<Error>>(self) -> Result<(), E> {
        let committed = self.tx.commit().await;
        for then in self.at_end {
            then();
        }
        outcome_of(committed)
    }

    /// Hands it to a closure, which gives it back by dropping it.
    pub(crate) fn lend(
        self,
    ) -> (
        RetryTx<sqlx::Transaction<'static, B>>,
        Lent<sqlx::Transaction<'static, B>>,
    ) {
        let slot = Arc::new(Mutex::new(None));
        let tx = RetryTx {
            open: Some(self),
            slot: Arc::clone(&slot),
        };
        let abandon = |open: Self| drop(open.undo());
        (tx, Lent { slot, abandon })
    }

    pub(crate) async fn roll_back(self) {
        // What cannot be rolled back is a connection that is gone, and its transaction with it.
        let _ = self.tx.rollback().await;
        for then in self.at_end {
            then();
        }
    }
}

/// What is known after a commit: nothing, when the connection broke before the answer.
fn outcome_of<E: From<sqlx::Error> + From<Error>>(
    committed: Result<(), sqlx::Error>,
) -> Result<(), E> {
    match committed {
        Ok(()) => Ok(()),
        Err(error) => Err(commit_unknown(&error).map_or_else(|| error.into(), E::from)),
    }
}

impl<T> Lent<T> {
    fn take(&self) -> Option<Open<T>> {
        lock(&self.slot).take()
    }

    pub(crate) fn back(self) -> Result<Open<T>, Error> {
        self.take().ok_or(Error::InvalidSetting {
            setting: "work",
            reason: "the closure has kept the transaction: it must be dropped before it returns",
        })
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        if let Some(open) = self.take() {
            (self.abandon)(open);
        }
    }
}

impl<T> RetryTx<T> {
    fn open(&mut self) -> &mut Open<T> {
        self.open.as_mut().expect("it is there until it is dropped")
    }
}

impl<T> fmt::Debug for RetryTx<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryTx").finish_non_exhaustive()
    }
}

impl<T> Deref for RetryTx<T> {
    type Target = T;

    fn deref(&self) -> &T {
        let open = self.open.as_ref();
        &open.expect("it is there until it is dropped").tx
    }
}

impl<T> DerefMut for RetryTx<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.open().tx
    }
}

impl<T> Drop for RetryTx<T> {
    fn drop(&mut self) {
        *lock(&self.slot) = self.open.take();
    }
}

impl<T: Transaction> sealed::Sealed for RetryTx<T> {
    #[allow(private_interfaces, reason = "sealed")]
    const BRAND: Brand = T::BRAND;

    #[allow(private_interfaces, reason = "sealed")]
    fn connection(&mut self) -> &mut dyn TxStore {
        T::connection(self)
    }

    fn at_end(&mut self, then: AtEnd) {
        self.open().at_end.push(then);
    }

    #[allow(private_interfaces, reason = "sealed")]
    fn make_row_first(&mut self, core: &Arc<Core>, name: &Name) {
        lock(&self.open().run.missing).push((Arc::clone(core), name.clone()));
    }
}

impl<T: Transaction> Transaction for RetryTx<T> {}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_without_an_answer_is_unknown_and_a_refused_one_is_not() {
        let broken = std::io::Error::new(std::io::ErrorKind::BrokenPipe, "cut");
        let told = outcome_of::<Failed>(Err(broken.into()));
        assert!(matches!(
            told,
            Err(Failed::Lock(Error::CommitUnknown { .. }))
        ));
        let told = outcome_of::<Failed>(Err(sqlx::Error::RowNotFound));
        assert!(matches!(told, Err(Failed::Sql(sqlx::Error::RowNotFound))));
        assert!(outcome_of::<Failed>(Ok(())).is_ok());
    }

    #[derive(Debug)]
    enum Failed {
        Lock(Error),
        Sql(sqlx::Error),
    }

    impl From<Error> for Failed {
        fn from(error: Error) -> Self {
            Self::Lock(error)
        }
    }

    impl From<sqlx::Error> for Failed {
        fn from(error: sqlx::Error) -> Self {
            Self::Sql(error)
        }
    }
}
