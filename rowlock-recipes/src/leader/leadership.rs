//! The leadership of one candidate in one term.

use std::sync::Arc;
use std::time::Duration;

use crate::meter::TermMeter;
use rowlock::Held;
use rowlock::Transaction;
use rowlock::{Error, Loss, Name};

/// A leadership: one candidate leads in one term, until the leadership is resigned, dropped or lost.
///
/// # Promise
///
/// At most one leadership of an election is live at any instant of the database's clock.
/// [`is_leading`](Self::is_leading) is true only while this one is live. It is renewed in the background.
///
/// # Drop
///
/// Dropping returns at once and resigns in the background. The next candidate leads as soon as the resignation reaches
/// the database, or else within the TTL. Call [`Rowlock::flush`](rowlock::Rowlock::flush) before the process exits: it
/// waits for the resignation.
#[derive(Debug)]
#[must_use = "a leadership that is dropped is resigned"]
pub struct Leadership {
    term: Arc<Term>,
}

/// A term, for all that have its leadership.
#[derive(Debug)]
struct Term {
    held: Held,
    meter: TermMeter,
}

impl Term {
    /// For the metrics: this candidate leads no longer.
    fn end(&self) {
        self.meter.end(self.held.name(), self.held.loss());
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        self.end();
    }
}

impl Leadership {
    pub(super) fn new(held: Held) -> Self {
        let meter = TermMeter::begin(held.name());
        Self {
            term: Arc::new(Term { held, meter }),
        }
    }

    /// The same leadership once more, for the work that [`Election::lead`](super::Election::lead) runs in it. It is
    /// resigned when both are dropped.
    pub(super) fn shared(&self) -> Self {
        Self {
            term: Arc::clone(&self.term),
        }
    }

    /// The election.
    #[must_use]
    pub fn name(&self) -> &Name {
        self.term.held.name()
    }

    /// The term: greater than the term of every earlier leader of this election, for ever. It is the
    /// [fence](Held::fence) of the lease, and terms have gaps.
    ///
    /// Send it with every write to another system, and have that system refuse a smaller term than it has seen: then a
    /// leader that was paused cannot write over the work of its successor. For writes to the same database, see
    /// [`pin`](Self::pin).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/locks.db", dir.path().display());
    /// # let rowlock = rowlock::Rowlock::connect(&url).await?;
    /// use rowlock_recipes::leader::Election;
    ///
    /// /// A system elsewhere, which remembers the greatest term that it has seen.
    /// #[derive(Default)]
    /// struct Valve { term: i64, is_open: bool }
    ///
    /// impl Valve {
    ///     fn set(&mut self, term: i64, is_open: bool) -> bool {
    ///         if term < self.term {
    ///             return false; // an earlier leader, which has woken up late
    ///         }
    ///         (self.term, self.is_open) = (term, is_open);
    ///         true
    ///     }
    /// }
    ///
    /// let (election, mut valve) = (Election::new(&rowlock, "valve"), Valve::default());
    /// let earlier = election.campaign().await?;
    /// assert!(valve.set(earlier.term(), true));
    /// earlier.resign().await?;
    /// let later = election.campaign().await?;
    /// assert!(valve.set(later.term(), false));
    /// assert!(!valve.set(earlier.term(), true), "its term has ended");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn term(&self) -> i64 {
        self.term.held.fence()
    }

    /// Whether this candidate leads now, as [`Held::is_held`]: never true after the deadline, even if the process was
    /// paused, and never after a resignation. It asks no database. It does not stop a write that is in flight: for
    /// that, see [`pin`](Self::pin) and [`term`](Self::term).
    #[must_use]
    pub fn is_leading(&self) -> bool {
        self.term.held.is_held()
    }

    /// How long this process trusts its leadership without another renewal; zero after the end of the term. Renewals
    /// move it.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.term.held.remaining()
    }

    /// How the leadership was lost, if it was lost before it was resigned.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.term.held.loss()
    }

    /// Resolves when the leadership is lost: at its deadline at the latest, even if the database does not answer.
    /// Never resolves if it is resigned instead.
    ///
    /// Cancel safe.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`).
    pub async fn lost(&self) -> Loss {
        let loss = self.term.held.lost().await;
        self.term.end();
        loss
    }

    /// Resolves when the leadership is at risk, with a third of its trusted time left: a renewal is overdue, or the
    /// [`max_term`](super::Election::max_term) is near. Also resolves when it is lost. The risk may pass: call it
    /// again to wait for the next warning.
    ///
    /// Cancel safe.
    ///
    /// # Panics
    ///
    /// As [`lost`](Self::lost) does.
    pub async fn at_risk(&self) {
        self.term.held.at_risk().await;
    }

    /// Proves in `tx`, a transaction of the application's own pool, that this candidate leads, by the database's
    /// clock. Nobody else leads before `tx` ends. (On a Galera cluster another candidate may lead earlier, and then
    /// the commit fails.) So a leader whose term has ended cannot commit, even if its process was paused.
    ///
    /// Pin right before the commit. A pin at the start protects what the transaction reads, too, but the leadership is
    /// not renewed while the transaction runs. [`Held::pin`] has the details.
    ///
    /// # Errors
    ///
    /// After any error, roll `tx` back. [`Error::Lost`]: the term has ended. [`Error::Released`]: it was resigned. The
    /// others are those of [`Held::pin`].
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`), when it must wait.
    ///
    /// # Cancel safety
    ///
    /// After dropping the future, roll `tx` back.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/shop.db?mode=rwc", dir.path().display());
    /// # let pool = sqlx::SqlitePool::connect(&url).await?;
    /// # sqlx::raw_sql("CREATE TABLE plan (term BIGINT)").execute(&pool).await?;
    /// # let rowlock = rowlock::Rowlock::from_pool(&pool).await?;
    /// use rowlock_recipes::leader::Election;
    ///
    /// let leadership = Election::new(&rowlock, "planner").campaign().await?;
    /// let mut tx = pool.begin().await?;
    /// sqlx::query("INSERT INTO plan VALUES (?)").bind(leadership.term()).execute(&mut *tx).await?;
    /// leadership.pin(&mut tx).await?; // an error here drops `tx`, which rolls it back
    /// tx.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn pin<T: Transaction>(&self, tx: &mut T) -> Result<(), Error> {
        self.term.held.pin(tx).await
    }

    /// Runs `work` while this candidate leads. When the term ends, drops `work` at its next await point. `Ok` means
    /// that the work is done, not that this candidate still leads. The leadership is not resigned afterwards. The same
    /// as [`Held::with`].
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]: the term ended before `work` was done. [`Error::CutOff`]: the same, after a pin; the
    /// transaction may have committed. [`Error::Released`]: it was resigned before.
    ///
    /// # Panics
    ///
    /// As [`lost`](Self::lost) does.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`; the leadership stays.
    pub async fn with<T>(&self, work: impl AsyncFnOnce() -> T) -> Result<T, Error> {
        let done = self.term.held.with(work).await;
        if self.loss().is_some() {
            self.term.end();
        }
        done
    }

    /// Resigns. The first waiting candidate leads at once.
    ///
    /// Resign after the commit of a transaction that has pinned the leadership, not before: a resignation waits for
    /// its end. What a second call returns is as for [`Held::release`].
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]: this candidate did not lead until now. The database is out of reach, or the outcome is
    /// unknown. Renewals have stopped, so that another candidate leads within the TTL. Call it again to resign
    /// earlier.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop the resignation.
    pub async fn resign(&self) -> Result<(), Error> {
        self.term.end();
        self.term.held.release().await
    }

    /// The lease, for functions that take one. To release it is to resign.
    pub fn lease(&self) -> &Held {
        &self.term.held
    }
}
