//! Leader election: of many candidates, one leads.
//!
//! # Overview
//!
//! An election is a [lock](rowlock::Lock) with a name. The candidate that holds the lease leads. The others wait in
//! the queue of the name, in the order in which they joined. The fence of the lease is the *term*: every leader has a
//! greater term than every leader before.
//!
//! - [`Election::campaign`] waits until this candidate leads, and returns the [`Leadership`].
//! - [`Election::lead`] campaigns again and again, and runs a piece of work in each term.
//! - [`Election::observe`] and [`Election::observer`] tell who leads. They need no lease, and may run in any process.
//!
//! | here | etcd | ZooKeeper | river |
//! | --- | --- | --- | --- |
//! | election | election, a prefix of keys | election, a folder of nodes | leader, one for a database |
//! | candidate | candidate, with its value | node, ephemeral and sequential | client |
//! | term | revision that created the leader's key | sequence number of the node | term, from `elected_at` |
//! | campaign, resign, observe | `Campaign`, `Resign`, `Observe` | create the node, delete it, watch it | elect, resign, listen |
//!
//! # State model
//!
//! ```text
//!                 the first of the queue,
//!                 and the lease is free
//!   candidate ──────────────────────────► leading ──────────────────────────► ended
//!       ▲                                  term n    resigned, dropped, or lost  │
//!       │                                                                        │
//!       └────────────────────── campaigns again: a later term ◄──────────────────┘
//! ```
//!
//! A term that has ended stays ended. A candidate that leads again has a new term. After a
//! [resignation](Leadership::resign) the first waiting candidate leads at once: the statement that frees the lease
//! grants it to that candidate.
//!
//! # Trust window
//!
//! That of a lease: [`Leadership::is_leading`] is true until a deadline on the local boot-time clock, which comes
//! before the expiry by the database's clock. Between the deadline and the expiry, no process believes that it leads.
//! So at most one process at a time believes that it leads, unless a virtual machine was paused, or a clock has
//! jumped. **A belief does not fence a write.** The process may be paused between the check and the write. So
//!
//! - for writes to the same database, [pin](Leadership::pin) the leadership in the transaction that writes: it commits
//!   only in its term;
//! - for writes to another system, send the [term](Leadership::term) with every write, and have that system refuse a
//!   smaller term than it has seen.
//!
//! # Failure
//!
//! - *The leader is killed*: its lease runs out after its TTL, and the first waiting candidate leads.
//! - *The leader is paused* (SIGSTOP, a suspended laptop): the same. When the process wakes up,
//!   [`Leadership::is_leading`] is false, and [`Leadership::lost`] resolves. A write that is already in flight is
//!   stopped by the pin or by the term, and by nothing else.
//! - *The leader is paused in a transaction that has pinned the leadership*: it keeps the name until the transaction
//!   ends, and nobody else leads. Limit that in the server: `idle_in_transaction_session_timeout` (PostgreSQL),
//!   `wait_timeout` (MySQL, MariaDB). SQLite has no such limit: there, such a process has the whole file until it
//!   wakes up.
//! - *The leader is cut off from the database*: its renewals fail, and its term ends at the deadline. Another
//!   candidate leads after the expiry.
//! - *The database is out of reach for all*: the leader leads until its deadline. Then there is no leader, and
//!   candidates try again until the database answers.
//! - *A waiting candidate is killed or paused*: if it is first in the queue, the lease is granted to it. When it does
//!   not confirm within 2 s, the lease goes to the next candidate. After the
//!   [`session_ttl`](rowlock::Builder::session_ttl) the queue skips a killed candidate.
//! - *An administrator releases the lease by force*: the leader's term ends. If another client released it, the leader
//!   learns of the loss at its next renewal, within a third of the TTL. Until then two processes may believe that they
//!   lead. The pin and the term hold.
//!
//! On a Galera cluster there is no queue: candidates ask again and again, and any of them may lead next.

mod lead;
mod leadership;
mod observer;

use std::sync::Arc;
use std::time::Duration;

pub use leadership::Leadership;
pub use observer::{Change, Leader, Observer};

use crate::meter;
use rowlock::Lock;
use rowlock::Rowlock;
use rowlock::{Error, InvalidError, Name};

/// An election: made with [`Election::new`], then given its settings. Every candidate makes one of the same name.
///
/// The name is that of a [lock](rowlock::Rowlock::lock). An election and a lock of the same name exclude each other,
/// and an observer takes the holder of the lock for the leader.
///
/// Cloning is cheap. Settings that are out of bounds are refused when the election is used, before the database is
/// asked.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/locks.db", dir.path().display());
/// use std::time::Duration;
/// use rowlock_recipes::leader::Election;
///
/// let rowlock = rowlock::Rowlock::connect(&url).await?;
/// let election = Election::new(&rowlock, "scheduler").ttl(Duration::from_secs(10)).candidate("host-7");
/// let leadership = election.campaign().await?; // waits until this candidate leads
/// println!("leading in term {}", leadership.term());
/// let leader = election.observe().await?.expect("we lead"); // any process may ask this
/// assert_eq!((leader.candidate.as_str(), leader.term), ("host-7", leadership.term()));
/// leadership.resign().await?; // the next candidate leads at once
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "an election does nothing until somebody campaigns in it or observes it"]
pub struct Election {
    rowlock: Rowlock,
    name: Result<Name, Error>,
    candidate: Option<Arc<str>>,
    ttl: Option<Duration>,
    max_term: Option<Duration>,
    wait: Option<Duration>,
}

impl Election {
    /// The election called `name`: 1 to 255 bytes of UTF-8 without NUL, compared byte by byte.
    pub fn new<N>(rowlock: &Rowlock, name: N) -> Self
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        let name = name.try_into().map_err(Into::into);
        meter::election(&name);
        Self {
            rowlock: rowlock.clone(),
            name,
            candidate: None,
            ttl: None,
            max_term: None,
            wait: None,
        }
    }

    /// Who this candidate is, for people and programs that read who leads, such as the address of its service: 1 to
    /// 200 bytes without NUL. The client's [`holder`](rowlock::Builder::holder) when not set. Several candidates may
    /// have the same text. Nothing is decided by it. (A PostgreSQL database in another encoding than UTF-8 may have
    /// escapes in it.)
    pub fn candidate(mut self, candidate: impl Into<Arc<str>>) -> Self {
        self.candidate = Some(candidate.into());
        self
    }

    /// How long nobody else can lead after the leader was killed or paused, as [`Lock::ttl`](rowlock::Lock::ttl): 100
    /// ms to 24 h, and more than twice the client's [`clock_error`](rowlock::Builder::clock_error); 30 s when not set.
    /// A short TTL means a quick failover, and more renewals: one in about a quarter of the TTL. A pause of the leader
    /// of more than half the TTL may end its term, and one of more than five sixths of the TTL always does.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// The longest time that one leader leads, as [`Lock::max_hold`](rowlock::Lock::max_hold): 100 ms to 366 days, and
    /// more than twice the client's `clock_error`; no limit when not set. At the limit the term is lost, after a
    /// [warning](Leadership::at_risk).
    pub fn max_term(mut self, max_term: Duration) -> Self {
        self.max_term = Some(max_term);
        self
    }

    /// The longest time that [`campaign`](Self::campaign) waits: at most 366 days; for ever when not set.
    /// [`lead`](Self::lead) always waits for ever.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Waits in the queue of the election until this candidate leads, for at most [`wait`](Self::wait). If the
    /// database is out of reach, it tries again in that time.
    ///
    /// Candidates of all processes lead in the order in which they joined the queue. Every call is a candidate of its
    /// own, also when several tasks of one client campaign at the same time, and each has a term of its own.
    ///
    /// # Errors
    ///
    /// [`Error::WaitTimeout`] when the others did not stop leading in time; [`Error::QueueFull`] when 10,000
    /// candidates wait; and the errors of [`try_campaign`](Self::try_campaign).
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: in the background the candidate leaves the queue, and a leadership
    /// that it won is resigned.
    pub async fn campaign(&self) -> Result<Leadership, Error> {
        let lock = self.lock()?;
        let lock = match self.wait {
            Some(wait) => lock.wait(wait),
            None => lock,
        };
        let won = lock.acquire().await.map_err(in_words_of_elections)?;
        Ok(Leadership::new(won))
    }

    /// Asks once to lead. While another candidate leads or waits, the answer is `None`.
    ///
    /// # Errors
    ///
    /// Invalid settings; [`Error::WrongKind`], if the name is that of a semaphore or a read/write lock; a database
    /// that is out of reach or gives no answer within the client's
    /// [`operation_timeout`](rowlock::Builder::operation_timeout); a damaged row.
    ///
    /// # Panics
    ///
    /// As [`campaign`](Self::campaign) does.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: a leadership that it won is resigned in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/locks.db", dir.path().display());
    /// use rowlock_recipes::leader::Election;
    ///
    /// # let rowlock = rowlock::Rowlock::connect(&url).await?;
    /// if let Some(leadership) = Election::new(&rowlock, "scheduler").try_campaign().await? {
    ///     println!("leading in term {}", leadership.term());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_campaign(&self) -> Result<Option<Leadership>, Error> {
        let won = self.lock()?.try_acquire().await;
        Ok(won.map_err(in_words_of_elections)?.map(Leadership::new))
    }

    /// Who leads now, by the database. `None`: nobody leads. (A semaphore or a read/write lock of this name has no
    /// leader.)
    ///
    /// The answer may be old when it arrives. It fences nothing: use it to find the leader, and let the leader check
    /// that it leads. A leader that was killed is shown until its lease runs out.
    ///
    /// # Errors
    ///
    /// An invalid name, a database out of reach, or a damaged row.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn observe(&self) -> Result<Option<Leader>, Error> {
        let name = self.name.clone()?;
        observer::leader_of(&self.rowlock, name).await
    }

    /// An observer, which yields each change of the leader that it sees; see [`Observer`].
    pub fn observer(&self) -> Observer {
        Observer::new(self.rowlock.clone(), self.name.clone())
    }

    /// The lock, for one candidate.
    fn lock(&self) -> Result<Lock, Error> {
        // An owner of its own: tasks without one hand a lease on in memory, and the row of the database, which
        // observers read, shows neither when nor under which fence.
        let owner = self.rowlock.owner();
        let mut lock = self.rowlock.lock(self.name.clone()?).owner(&owner);
        if let Some(candidate) = &self.candidate {
            lock = lock.holder(Arc::clone(candidate));
        }
        if let Some(ttl) = self.ttl {
            lock = lock.ttl(ttl);
        }
        if let Some(max_term) = self.max_term {
            lock = lock.max_hold(max_term);
        }
        Ok(lock)
    }
}

/// The error, with the names that the settings have here.
fn in_words_of_elections(mut error: Error) -> Error {
    if let Error::Invalid(
        InvalidError::Duration { setting, .. } | InvalidError::Setting { setting, .. },
    ) = &mut error
    {
        *setting = match *setting {
            "max_hold" => "max_term",
            "holder" => "candidate",
            other => other,
        };
    }
    error
}
