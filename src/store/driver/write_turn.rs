//! The writers of a database that has one writer at a time. Those of this process wait for each other in memory, in
//! order; those of other processes wait in the database.
//!
//! # Overview
//!
//! There are two kinds of writers: transactions of the application that rowlock begins, which may be many, and
//! rowlock's own connections, which are few and write for a moment. The transactions stand in a *line*. The first one
//! waits for the *turn*, and so do the own connections that want to write. An own connection waits for one transaction
//! at most, because the first in the line lets it go ahead once. A second own connection then waits for that
//! transaction.
//!
//! # Failure
//!
//! A turn keeps no writer of another process out, and no transaction that the application begins by itself. It is not
//! needed for correctness: the database has its own lock. Dropping a waiting future leaves the line; dropping a
//! [`WriteTurn`] ends it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::model::Moment;

/// How long an own connection waits for its turn while the holder of the turn does not have the file: that one may
/// itself be waiting, for a writer of another process. Then the own connection goes without a turn, and waits in the
/// database too.
const OWN_WAIT: Duration = Duration::from_millis(20);

/// How long an own connection waits at most for a transaction that has the file. Without a turn it would get the file
/// only if it asked in the moment between two transactions.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The writers of one database in this process.
#[derive(Debug)]
pub(crate) struct Writers {
    line: Arc<Semaphore>,
    turn: Arc<Semaphore>,
    /// How many own connections wait for the turn.
    own: AtomicUsize,
    /// The holder of the turn is a transaction that has begun: it has the file.
    is_file_taken: AtomicBool,
}

/// The head of the line, until it is dropped.
#[derive(Debug)]
pub(crate) struct LineHead {
    writers: Arc<Writers>,
    _permit: OwnedSemaphorePermit,
}

/// The turn of a writer, until it is dropped.
#[derive(Debug)]
pub(crate) struct WriteTurn {
    /// Keeps the file's entry in the list of files, when no one else does.
    writers: Arc<Writers>,
    _permit: OwnedSemaphorePermit,
}

impl WriteTurn {
    /// The transaction with this turn has the file until the turn is dropped.
    pub(crate) fn has_file(&self) {
        self.writers.is_file_taken.store(true, Ordering::SeqCst);
    }
}

impl Drop for WriteTurn {
    fn drop(&mut self) {
        self.writers.is_file_taken.store(false, Ordering::SeqCst);
    }
}

tokio::task_local! {
    /// The writers of the database to which the running verb of an own connection goes, and how long it waits at most.
    static WRITERS: (Arc<Writers>, Duration);
}

/// Takes a turn for a statement or a transaction of an own connection. `None`: it was waited for in vain, or this is
/// no verb of [`Writers::in_turns`].
pub(crate) async fn turn() -> Option<WriteTurn> {
    let (writers, longest) = WRITERS.try_with(Clone::clone).ok()?;
    let _waiting = LineWaiter::of(&writers);
    let mut turn = pin!(writers.take_turn());
    let until = Moment::now() + longest;
    loop {
        if let Ok(turn) = timeout(OWN_WAIT, &mut turn).await {
            return Some(turn);
        }
        if !writers.is_file_taken.load(Ordering::SeqCst) || until.has_passed() {
            return None;
        }
    }
}

impl Writers {
    fn new() -> Self {
        Self {
            line: Arc::new(Semaphore::new(1)),
            turn: Arc::new(Semaphore::new(1)),
            own: AtomicUsize::new(0),
            is_file_taken: AtomicBool::new(false),
        }
    }

    /// The writers of the file at this path, which is an absolute one.
    pub(crate) fn of_file(path: &Path) -> Arc<Self> {
        static FILES: Mutex<Option<HashMap<PathBuf, Weak<Writers>>>> = Mutex::new(None);
        let mut files = FILES.lock();
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

    /// Runs a verb of an own connection, which takes its turns by [`turn`]. It has so much time for all that it does,
    /// and waits for no more than half of it.
    pub(crate) async fn in_turns<F: Future>(
        self: &Arc<Self>,
        bound: Duration,
        verb: F,
    ) -> F::Output {
        let longest = LONGEST_WAIT.min(bound / 2);
        WRITERS.scope((Arc::clone(self), longest), verb).await
    }

    /// Waits in the line, until all transactions before have had their turns or have left.
    pub(crate) async fn line_up(self: &Arc<Self>) -> LineHead {
        let permit = Arc::clone(&self.line).acquire_owned().await;
        LineHead {
            writers: Arc::clone(self),
            _permit: permit.expect("the line is never closed"),
        }
    }

    async fn take_turn(self: &Arc<Self>) -> WriteTurn {
        let permit = Arc::clone(&self.turn).acquire_owned().await;
        WriteTurn {
            writers: Arc::clone(self),
            _permit: permit.expect("the turns never end"),
        }
    }
}

impl LineHead {
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
struct LineWaiter<'a>(&'a Writers);

impl<'a> LineWaiter<'a> {
    fn of(writers: &'a Writers) -> Self {
        writers.own.fetch_add(1, Ordering::SeqCst);
        Self(writers)
    }
}

impl Drop for LineWaiter<'_> {
    fn drop(&mut self) {
        self.0.own.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
#[path = "write_turn_tests.rs"]
mod tests;
