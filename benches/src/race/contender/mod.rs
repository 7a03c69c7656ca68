//! The contenders: each says how it acquires and releases a lock.

mod advisory;
mod bare;
mod broken;
mod etcd;
mod etcd_api;
mod patience;
mod redis;
mod redisson;
mod rowlock;
mod zookeeper;

use std::sync::Arc;
use std::time::Duration;

use crate::Failure;
use crate::locking::Contender;
use crate::runner::Orders;
use crate::servers::Place;
use crate::workload::Workload;

/// The time after which a lock ends, for contenders that do not renew it. It is longer than a run.
const TTL: Duration = Duration::from_mins(5);

/// How long a lease lingers, where it does.
const LINGER: Duration = Duration::from_secs(1);

/// How a contender locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Means {
    Rowlock,
    /// rowlock with leases that linger.
    Linger,
    /// An earlier rowlock, in a program whose path is given.
    Before,
    /// rowlock's statements through pgbench.
    Floor,
    Bare,
    Advisory,
    Redis,
    Rslock,
    Redisson,
    Etcd,
    ZooKeeper,
    /// In a program of its own, whose path is given.
    DistributedLock,
    /// Does not lock at all: the referee must find it out.
    Broken,
}

/// A contender, on one server.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) means: Means,
    pub(crate) place: Place,
    /// What of a granted lock is left after a crash of the machine.
    pub(crate) durability: &'static str,
}

const fn entry(name: &'static str, means: Means, place: Place, durability: &'static str) -> Entry {
    Entry {
        name,
        means,
        place,
        durability,
    }
}

const GRANT: &str = "fsync per commit of a grant; releases follow";
const COMMIT: &str = "fsync per commit";
const WAL: &str = "WAL, no fsync per commit";
const SESSION: &str = "memory only, ends with its connection";
const MEMORY: &str = "memory only, lost at a crash";
const ALWAYS: &str = "appendfsync always";

/// All contenders.
pub(crate) const ENTRIES: &[Entry] = &[
    entry("rowlock-postgres", Means::Rowlock, Place::Postgres, GRANT),
    entry("rowlock-linger", Means::Linger, Place::Postgres, GRANT),
    entry("floor", Means::Floor, Place::Postgres, GRANT),
    entry("rowlock-before", Means::Before, Place::Postgres, GRANT),
    entry("rowlock-mariadb", Means::Rowlock, Place::MariaDb, COMMIT),
    entry("rowlock-mysql", Means::Rowlock, Place::MySql, COMMIT),
    entry("rowlock-sqlite", Means::Rowlock, Place::Sqlite, WAL),
    entry("bare-postgres", Means::Bare, Place::Postgres, COMMIT),
    entry("bare-mariadb", Means::Bare, Place::MariaDb, COMMIT),
    entry("bare-mysql", Means::Bare, Place::MySql, COMMIT),
    entry("bare-sqlite", Means::Bare, Place::Sqlite, WAL),
    entry("advisory", Means::Advisory, Place::Postgres, SESSION),
    entry(
        "distributed-lock",
        Means::DistributedLock,
        Place::Postgres,
        SESSION,
    ),
    entry("redis", Means::Redis, Place::Redis, MEMORY),
    entry("redis-always", Means::Redis, Place::RedisAlways, ALWAYS),
    entry("rslock", Means::Rslock, Place::Redis, MEMORY),
    entry("rslock-always", Means::Rslock, Place::RedisAlways, ALWAYS),
    entry("redisson", Means::Redisson, Place::Redis, MEMORY),
    entry(
        "redisson-always",
        Means::Redisson,
        Place::RedisAlways,
        ALWAYS,
    ),
    entry(
        "etcd",
        Means::Etcd,
        Place::Etcd,
        "fsync per group of Raft entries, one member",
    ),
    entry(
        "zookeeper",
        Means::ZooKeeper,
        Place::ZooKeeper,
        "fsync per group of requests, one server",
    ),
];

/// Takes part only by its name.
const BROKEN: Entry = entry("broken", Means::Broken, Place::Sqlite, "none");

impl Entry {
    pub(crate) fn find(name: &str) -> Result<&'static Self, Failure> {
        let found = ENTRIES
            .iter()
            .chain([&BROKEN])
            .find(|entry| entry.name == name);
        found.ok_or_else(|| {
            let known: Vec<_> = ENTRIES.iter().map(|entry| entry.name).collect();
            format!("{name} is no contender; these are: {}", known.join(", ")).into()
        })
    }

    /// The database with its locks on the server; none for the server's usual one.
    pub(crate) fn database(&self, workload: Workload) -> Option<String> {
        // An earlier rowlock may have other tables.
        let before = (self.means == Means::Before).then(|| "race_before".to_owned());
        // The floor switches the log of its database on.
        let floor = (self.means == Means::Floor).then(|| "race_floor".to_owned());
        before.or(floor).or_else(|| workload.database())
    }

    /// What the program that runs the contender calls it.
    pub(crate) fn name_in_program(&self) -> &'static str {
        if self.means == Means::Before {
            "rowlock-postgres"
        } else {
            self.name
        }
    }

    /// Whether the contender runs `workload`. Growth and the snapshot matter only where released locks leave rows.
    pub(crate) fn runs(&self, workload: Workload) -> bool {
        let has_rows = matches!(self.means, Means::Rowlock | Means::Bare);
        match workload {
            Workload::Spread => self.means != Means::Linger,
            Workload::Own => matches!(
                self.means,
                Means::Rowlock | Means::Linger | Means::Redis | Means::Broken
            ),
            Workload::Hot | Workload::Mixed => !matches!(self.means, Means::Floor | Means::Linger),
            Workload::Growth(_) => has_rows,
            Workload::Snapshot => has_rows && self.place == Place::Postgres,
        }
    }

    /// Whether the contender runs with so many tasks. The floor is one process, and few tasks send no batches.
    pub(crate) fn can_have(&self, tasks: u32, processes: u32) -> bool {
        self.means != Means::Floor || (processes == 1 && tasks >= 64)
    }

    /// The table with its locks, if they are rows.
    pub(crate) fn table(&self) -> Option<&'static str> {
        match self.means {
            Means::Rowlock | Means::Linger | Means::Floor | Means::Before => Some("rowlock_lock"),
            Means::Bare => Some(bare::TABLE),
            _ => None,
        }
    }

    /// Makes the tables, but those of an earlier rowlock.
    pub(crate) async fn prepare(&self, url: &str) -> Result<(), Failure> {
        match self.means {
            Means::Rowlock | Means::Linger | Means::Floor => rowlock::prepare(url).await,
            Means::Bare => bare::prepare(self.place, url).await,
            _ => Ok(()),
        }
    }
}

/// A client for one process.
pub(crate) async fn connect(orders: &Orders) -> Result<Arc<dyn Contender>, Failure> {
    let entry = Entry::find(&orders.contender)?;
    let url = &*orders.url;
    Ok(match entry.means {
        Means::Rowlock => Arc::new(rowlock::Client::connect(url, None).await?),
        Means::Linger => Arc::new(rowlock::Client::connect(url, Some(LINGER)).await?),
        Means::Bare => bare::connect(entry.place, url, orders.connections()).await?,
        Means::Advisory => Arc::new(advisory::Client::connect(url, orders.connections()).await?),
        Means::Redis => Arc::new(redis::Client::connect(url).await?),
        Means::Rslock => Arc::new(redis::Rslock::connect(url)?),
        Means::Redisson => Arc::new(redisson::Client::connect(url).await?),
        Means::Etcd => Arc::new(etcd::Client::connect(url, orders.process).await?),
        Means::ZooKeeper => Arc::new(zookeeper::Client::connect(url).await?),
        Means::Before | Means::Floor | Means::DistributedLock => {
            return Err(format!("{} is another program", entry.name).into());
        }
        Means::Broken => Arc::new(broken::Client),
    })
}
