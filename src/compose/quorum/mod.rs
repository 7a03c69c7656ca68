//! A lock over several independent databases: it is held by those who hold it in a majority of them.
//!
//! # Overview
//!
//! A [`Quorum`] has an odd number of databases, of any brands. An acquire asks all of them at the same time. If a majority grants the lease, and enough of its time is left, the lock is held;
//! otherwise everything is released, and asked for again after a random pause. Two majorities have a database in common, and that one has one holder. So the lock has
//! one holder, and it can be acquired while a minority of the databases is dead, slow, paused or cut off.
//!
//! (The idea is Redlock's, <https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>. There the lock has no fence, and a server that has forgotten a lease after a restart
//! breaks the exclusion.)
//!
//! # Fence
//!
//! The clocks of several databases are not ordered. So there is a second round: the highest fence that was granted is proposed to the others
//! ([`Held::raise_fence`](crate::Held::raise_fence)). The lock is held when a majority has it. The next majority has one of these databases in it, which grants a greater one. So
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
//! Each member's lease has a deadline of its own, as every lease has ([`Held`](crate::Held)). The lock is trusted for as long as a majority of them is. So its validity is that of Redlock: the TTL, less the
//! time that the acquire took, less the clock error. While it is held, each lease is renewed by itself, and members that were lost or dead are taken again. Once fewer
//! than a majority are left, the lock is lost for good.
//!
//! # Failure
//!
//! - *A minority of the databases is dead, paused or cut off*: nothing happens. A member that is back is taken again within a third of the TTL.
//! - *A majority is out of reach*: no lock is granted. Held ones are lost at their deadline.
//! - *A database forgets its last commits, or all its data*: put it in [quarantine](crate::Rowlock::quarantine) before clients reach it, for at least the TTL. Otherwise
//!   it may grant a name that it had granted before, and with it two majorities may hold the lock. The clocks of the databases must not differ by more than the
//!   quarantine: fences of a database that has forgotten all its data start at its clock.
//! - *The process is paused*: as for a single lease. [`QuorumHeld::is_held`] is false when it wakes.
//! - *The process crashes*: the lock is free within the TTL.
//!
//! # When it is the wrong tool
//!
//! Mostly. If the data that the lock protects is in one database, lock there, and [pin](crate::Held::pin) the lease in the transaction that writes: this is safe even when the process is paused, and one
//! highly available database (a standby with synchronous replication, Galera) survives what a quorum survives. A quorum is for work whose effect is in none of the databases, when no single one
//! of them may stop it. Then send the fence with the effect.
//!
//! A pin of one member's lease ([`QuorumHeld::pin_on`]) proves only that this one database has granted the name to nobody else. Another holder may have a majority without it. If every holder pins in
//! the same database, that database alone is the lock, and the others add nothing.
//!
//! Waiting is not fair: there is no queue over several databases.

mod held;
mod lock;
mod members;
mod round;

use std::sync::Arc;

pub use held::QuorumHeld;
pub use lock::QuorumLock;
use members::Members;

use crate::client::{Builder, Rowlock};
use crate::model::{Error, Name};

/// Why these databases cannot be a quorum.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum QuorumError {
    /// The number is even, or smaller than three.
    #[error(
        "a quorum needs an odd number of databases, and at least 3: {0} were given. With an even number, one more database would have to be up, and no more could be down"
    )]
    Count(usize),
    /// Two of them are one database.
    #[error(
        "{first} and {second} are one database: both have the id {id} in rowlock_database. Give another one; if one is a copy of the other, run \
         `DELETE FROM rowlock_database` and `rowlock migrate` in the copy while nobody uses it"
    )]
    SameDatabase {
        /// One of them, without its password.
        first: String,
        /// The other one.
        second: String,
        /// Their id.
        id: String,
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
    /// One of them cannot be used as it is: its URL is invalid, its tables do not fit this library, or the login is refused.
    #[error(transparent)]
    Member(#[from] Error),
}

/// Several independent databases, in which a majority decides who has a lock; see the [module](self). Cloning is cheap.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = |n: u32| format!("sqlite:{}/{n}.db", dir.path().display());
/// # let urls = [url(1), url(2), url(3)];
/// use rowlock::compose::Quorum;
///
/// // postgres://…, mysql://…, mariadb://…: independent servers
/// let quorum = Quorum::connect(urls).await?;
/// let held = quorum.lock("nightly-export").acquire().await?;
/// held.with(async || {
///     // send `held.fence()` with every write
/// })
/// .await?;
/// let _ = held.release().await?;
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
    /// An even number of databases, or fewer than three; the same database twice. (A database with tables of another version was refused when its client connected.)
    pub fn new(members: impl IntoIterator<Item = Rowlock>) -> Result<Self, QuorumError> {
        let members = Members::of(members.into_iter().collect())?;
        Ok(Self {
            members: Arc::new(members),
        })
    }

    /// Connects to these databases, as [`Rowlock::connect`] does. A minority of them may be out of reach: the quorum goes on trying to connect to them.
    ///
    /// # Errors
    ///
    /// Those of [`new`](Self::new); fewer than a majority can be reached; one of them cannot be used as it is, such as one with tables of another version.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no client behind.
    pub async fn connect<U: Into<String>>(
        urls: impl IntoIterator<Item = U>,
    ) -> Result<Self, QuorumError> {
        Self::connect_with(Rowlock::builder(), urls).await
    }

    /// [`connect`](Self::connect) with these settings for each client. Use [`migrate(false)`](Builder::migrate) where a database may come back empty: otherwise a client would
    /// make its tables before it is in quarantine.
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

    /// The clients of the databases, in the order in which they were given. `None`: it could not be reached since the start.
    #[must_use]
    pub fn members(&self) -> Vec<Option<Rowlock>> {
        (0..self.members.count())
            .map(|member| self.members.client(member))
            .collect()
    }

    /// How many databases a majority is.
    #[must_use]
    pub fn majority(&self) -> usize {
        self.members.majority()
    }
}
