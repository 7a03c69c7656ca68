//! A lock over several independent databases: a process holds the lock while a majority of the databases has granted
//! it.
//!
//! # Overview
//!
//! A [`Quorum`] has an odd number of databases, of any engines. An acquire asks all of them at the same time. If a
//! majority grants the lease, and at least a third of the TTL is left, the lock is held. Otherwise the acquire
//! releases all leases, and asks again after a random pause. Any two majorities share a database, and each database
//! has one holder. So the lock has one holder. It can be acquired while a minority of the databases is dead, slow,
//! paused or cut off.
//!
//! (The idea is Redlock's, <https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>. There the lock
//! has no fence, and a server that has forgotten a lease after a restart breaks the exclusion.)
//!
//! # Fence
//!
//! The clocks of several databases are not ordered. So there is a second round: the highest fence that was granted is
//! proposed to the others ([`raise_fence`](rowlock::extend::raise_fence)). The lock is held when a majority has
//! that fence. Every later majority includes one of these databases, and that database grants a greater fence. So
//! [`QuorumHeld::fence`] is greater than that of every earlier holder, whatever the clocks say.
//!
//! # State model
//!
//! ```text
//!              round 1: granted by a majority      round 2: a majority has the highest fence
//!   (nothing) ───────────────────────────────► … ───────────────────────────────────────────► held ──► released
//!       ▲                                      │                                              │ │ ▲
//!       └──── a random pause ◄─────────────────┘ no majority, or too late: all are released   │ └─┘ a member that was lost is taken again
//!                                                                                             ▼
//!                                                                                             lost: fewer than a majority hold it
//! ```
//!
//! # Trust window
//!
//! Each member's lease has a deadline of its own, as every lease has ([`Held`](rowlock::Held)). The process trusts the
//! lock while it trusts the leases of a majority: after the acquire for the TTL, less the time that the acquire took,
//! less the clock error (as in Redlock). While the lock is held, each lease is renewed by itself, and a lease that was
//! lost or refused is taken again. Once fewer than a majority of the leases are held, the lock is lost for good.
//!
//! # Failure
//!
//! - *A minority of the databases is dead, paused or cut off*: the lock stays held. When a database is back, the lock
//!   is taken there again within two thirds of the TTL.
//! - *A majority is out of reach*: no lock is granted. Held ones are lost at their deadline.
//! - *A database forgets its last commits, or all its data*: put it in [quarantine](rowlock::Admin::quarantine)
//!   before clients reach it, for at least the TTL. Otherwise it may grant a name whose lease it has forgotten, and
//!   then two processes may each have a majority. A database that comes back empty gets its tables in quarantine
//!   ([`Builder::quarantine`]); [`Quorum::connect`] does not make them there, and leaves it out until it has them. It
//!   has a new id: in processes that run on, [`QuorumHeld::pin_on`] fails there, until the process connects anew.
//! - *A majority forgets its data*: the quorum has lost its memory of leases and fences, whatever the quarantine of
//!   each.
//! - *A clock is set back*: a database that has forgotten commits goes on from the last fence that it remembers, or
//!   from its clock if that is ahead. Its clock must not be behind the clocks of the others by more than the
//!   quarantine. The clocks of databases that have forgotten nothing do not matter.
//! - *The process is paused*: as for a single lease. [`QuorumHeld::is_held`] is false when it wakes.
//! - *The process crashes*: the lock is free within the TTL.
//!
//! # When it is the wrong tool
//!
//! In most cases. If the data that the lock protects is in one database, lock there, and [pin](rowlock::Held::pin) the
//! lease in the transaction that writes: this is safe even when the process is paused, and one highly available
//! database (a standby with synchronous replication, Galera) survives what a quorum survives. A quorum is for work
//! whose effect is in none of the databases, when no single one of them may stop it. Then send the fence with the
//! effect.
//!
//! A pin of one member's lease ([`QuorumHeld::pin_on`]) proves only that this one database has granted the name to
//! no other holder. Another holder may have a majority of the other databases. If every holder pins in the same
//! database, that database alone is the lock, and the others add nothing.
//!
//! Waiting is not fair: there is no queue over several databases.

mod ask;
mod held;
mod lock;
mod members;
mod repair;
mod round;

use std::sync::Arc;

use uuid::Uuid;

pub use held::QuorumHeld;
pub use lock::QuorumLock;
use members::Members;

use rowlock::{Builder, Rowlock};
use rowlock::{Error, Name};

/// Why these databases cannot be a quorum.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum QuorumError {
    /// The number of databases is even, or smaller than three.
    #[error("a quorum needs an odd number of databases, and at least 3: {0} given. {advice}", advice = advice(*.0))]
    Count(usize),
    /// Two of the clients or URLs lead to the same database.
    #[error("{}", same(first, second, *id))]
    SameDatabase {
        /// One of them, without its password.
        first: String,
        /// The other one.
        second: String,
        /// Their id.
        id: Uuid,
    },
    /// Fewer than a majority could be reached.
    #[error("{reached} of {members} databases could be reached, and {needed} are needed: {detail}")]
    NoMajority {
        /// How many could be reached.
        reached: usize,
        /// How many are needed.
        needed: usize,
        /// How many there are.
        members: usize,
        /// The errors of the others.
        detail: String,
    },
    /// One of them cannot be used as it is: its URL is invalid, its tables do not fit this library, or the login is
    /// refused.
    #[error(transparent)]
    Member(#[from] Error),
}

fn advice(count: usize) -> &'static str {
    if count < 3 {
        "Give at least 3"
    } else {
        "Add one or remove one (an even number needs a larger majority, and tolerates no more failures)"
    }
}

fn same(first: &str, second: &str, id: Uuid) -> String {
    if first == second {
        return format!("{first} was given twice: give another database");
    }
    format!(
        "{first} and {second} are one database: both have the id {id} in rowlock_database. Give another one. If one is a copy of the other, give the copy an id of its own while nobody \
         uses it: `UPDATE rowlock_database SET id = …`, with gen_random_uuid() on PostgreSQL, UNHEX(REPLACE(UUID(), '-', '')) on MySQL and MariaDB, randomblob(16) on SQLite"
    )
}

/// Several independent databases, in which a majority decides who has a lock; see the [module](self). Cloning is
/// cheap.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = |n: u32| format!("sqlite:{}/{n}.db", dir.path().display());
/// # let urls = [url(1), url(2), url(3)];
/// use rowlock_recipes::Quorum;
///
/// // postgres://…, mysql://…, mariadb://…: independent servers
/// let quorum = Quorum::connect(urls).await?;
/// let held = quorum.lock("nightly-export").acquire().await?;
/// held.with(async || {
///     // send `held.fence()` with every write
/// })
/// .await?;
/// held.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Quorum {
    members: Arc<Members>,
}

impl Quorum {
    /// A quorum of clients that are connected already.
    ///
    /// # Errors
    ///
    /// An even number of databases, or fewer than three; the same database twice. (A database with tables of another
    /// version was refused when its client connected.)
    pub fn new(members: impl IntoIterator<Item = Rowlock>) -> Result<Self, QuorumError> {
        let members = Members::of(members.into_iter().collect())?;
        Ok(Self {
            members: Arc::new(members),
        })
    }

    /// Connects to these databases, as [`Rowlock::connect`] does. A minority of them may be out of reach. The quorum
    /// tries again to connect to these when it asks them for a lock, a second after the last try at the earliest.
    ///
    /// It makes rowlock's tables in a new quorum: when so many databases are reached without tables that the others
    /// are no majority. Otherwise a database without tables may have lost its data. It is left out until it has
    /// tables: make these in quarantine ([`Builder::quarantine`], or `rowlock quarantine`), or, in a database that is
    /// new, with `rowlock migrate`.
    ///
    /// # Errors
    ///
    /// Those of [`new`](Self::new); fewer than a majority can be reached; one of them cannot be used as it is, such as
    /// one with tables of another version.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no client behind.
    pub async fn connect<U: Into<String>>(
        urls: impl IntoIterator<Item = U>,
    ) -> Result<Self, QuorumError> {
        Self::connect_with(Rowlock::builder(), urls).await
    }

    /// [`connect`](Self::connect) with these settings for each client.
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// As for [`connect`](Self::connect).
    pub async fn connect_with<U: Into<String>>(
        builder: Builder,
        urls: impl IntoIterator<Item = U>,
    ) -> Result<Self, QuorumError> {
        let urls = urls.into_iter().map(Into::into).collect();
        let members = Members::connect(builder, urls).await?;
        Ok(Self {
            members: Arc::new(members),
        })
    }

    /// The lock called `name`, in all databases.
    pub fn lock<N>(&self, name: N) -> QuorumLock
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        let name = name.try_into().map_err(Into::into);
        QuorumLock::new(Arc::clone(&self.members), name)
    }

    /// The clients of the databases, in the order in which they were given. `None`: this database could not be reached
    /// yet.
    #[must_use]
    pub fn members(&self) -> Vec<Option<Rowlock>> {
        self.members.clients()
    }

    /// How many databases a majority is.
    #[must_use]
    pub fn majority(&self) -> usize {
        self.members.majority()
    }
}
