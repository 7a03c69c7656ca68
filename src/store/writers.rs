//! The writers of a database that has one writer at a time. Those of this process wait for each other in memory, in order; those of
//! other processes wait in the database.
//!
//! # Overview
//!
//! There are two kinds of writers: transactions of the application that rowlock begins, which may be many, and rowlock's own
//! connections, which are few and write for a moment. The transactions stand in a *line*. Its head, and the own connections that want
//! to write, wait for the *turn*. So an own connection waits for one transaction, however long the line is: the head lets it go first
//! once. And the next transaction goes before a second own connection's write.
//!
//! # Failure
//!
//! A turn keeps no writer of another process out, and no transaction that the application begins by itself. It is not needed for
//! correctness: the database has its own lock. Dropping a waiting future leaves the line; dropping a [`WriteTurn`] ends it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// How long an own connection waits for its turn. Then it goes without one, and waits in the database: the holder of the turn may be
/// waiting there too, for a writer of another process. It is shorter than any time that a renewal has.
const OWN_WAIT: Duration = Duration::from_millis(20);

/// The writers of one database in this process.
#[derive(Debug)]
pub(crate) struct Writers {
    line: Arc<Semaphore>,
    turn: Arc<Semaphore>,
    /// How many own connections wait for the turn.
    own: AtomicUsize,
}

/// The head of the line, until it is dropped.
#[derive(Debug)]
pub(crate) struct Head {
    writers: Arc<Writers>,
    _permit: OwnedSemaphorePermit,
}

/// The turn of a writer, until it is dropped.
#[derive(Debug)]
pub(crate) struct WriteTurn {
    /// Keeps the file's entry in the list of files, when no one else does.
    _writers: Arc<Writers>,
    _permit: OwnedSemaphorePermit,
}

tokio::task_local! {
    /// The writers of the database to which the running verb of an own connection goes.
    static WRITERS: Arc<Writers>;
}

/// Takes a turn for a statement or a transaction of an own connection. `None`: it was waited for in vain, or this is no verb of
/// [`Writers::lend`].
pub(crate) async fn turn() -> Option<WriteTurn> {
    let writers = WRITERS.try_with(Arc::clone).ok()?;
    let _waiting = Waiting::of(&writers);
    timeout(OWN_WAIT, writers.take_turn()).await.ok()
}

impl Writers {
    fn new() -> Self {
        Self {
            line: Arc::new(Semaphore::new(1)),
            turn: Arc::new(Semaphore::new(1)),
            own: AtomicUsize::new(0),
        }
    }

    /// The writers of the file at this path, which is an absolute one.
    pub(crate) fn of_file(path: &Path) -> Arc<Self> {
        static FILES: Mutex<Option<HashMap<PathBuf, Weak<Writers>>>> = Mutex::new(None);
        let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
        let files = files.get_or_insert_default();
        let known = |files: &HashMap<PathBuf, Weak<Self>>, path: &Path| {
            files.get(path).and_then(Weak::upgrade)
        };
        if let Some(writers) = known(files, path) {
            return writers;
        }
        files.retain(|_, writers| writers.strong_count() > 0);
        // A file that is not there yet has its path only.
        let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let writers = known(files, &real).unwrap_or_else(|| Arc::new(Self::new()));
        for path in [path.to_owned(), real] {
            files.insert(path, Arc::downgrade(&writers));
        }
        writers
    }

    /// Runs a verb of an own connection, which takes its turns by [`turn`].
    pub(crate) async fn lend<F: Future>(self: &Arc<Self>, verb: F) -> F::Output {
        WRITERS.scope(Arc::clone(self), verb).await
    }

    /// Waits in the line, until all transactions before have had their turns or have left.
    pub(crate) async fn line_up(self: &Arc<Self>) -> Head {
        let permit = Arc::clone(&self.line).acquire_owned().await;
        Head {
            writers: Arc::clone(self),
            _permit: permit.expect("the line is never closed"),
        }
    }

    async fn take_turn(self: &Arc<Self>) -> WriteTurn {
        let permit = Arc::clone(&self.turn).acquire_owned().await;
        WriteTurn {
            _writers: Arc::clone(self),
            _permit: permit.expect("the turns never end"),
        }
    }
}

impl Head {
    /// Waits for the turn. Then the next transaction is the head of the line.
    pub(crate) async fn turn(self) -> WriteTurn {
        let turn = self.writers.take_turn().await;
        if self.writers.own.load(Ordering::SeqCst) == 0 {
            return turn;
        }
        // The own connections that wait came after this transaction: this one goes after them.
        drop(turn);
        self.writers.take_turn().await
    }
}

/// An own connection waits for its turn.
struct Waiting<'a>(&'a Writers);

impl<'a> Waiting<'a> {
    fn of(writers: &'a Writers) -> Self {
        writers.own.fetch_add(1, Ordering::SeqCst);
        Self(writers)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.own.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
#[path = "writers_tests.rs"]
mod tests;
