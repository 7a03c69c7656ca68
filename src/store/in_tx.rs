//! Locks in the caller's transaction.

use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use super::fault::Fault;
use super::row::LockRow;
use crate::model::Name;

/// The verbs for locks in the caller's transaction.
#[async_trait]
pub(crate) trait InTxStore {
    /// In the caller's transaction: keeps the row of a lease, if it is live and still the asked grant's,
    /// from being taken over until that transaction ends. Several transactions may pin one lease. (With
    /// [`PinBy::Write`], of a takeover through another server and this transaction only one commits.)
    ///
    /// Waits for nobody. A transaction that is over is a fault, on every brand.
    async fn tx_pin(&mut self, ask: &PinAsk) -> Result<Told<Pinned>, Fault>;

    /// In the caller's transaction: grants all of the names, or none, where they have no live lease
    /// (and, where a version is asked for, no newer one), under the next fence, and keeps their rows until
    /// that transaction ends.
    ///
    /// Waits for nobody, and locks in the order of the names. Where the transaction's reads are of one
    /// snapshot, that is not taken before the rows are locked.
    async fn tx_take(&mut self, asks: &[TxAsk]) -> Result<Told<TxTaken>, Fault>;

    /// In the caller's transaction: waits until no other transaction has the rows locked, and locks them.
    /// `None` waits for as long as the server's own limit allows. A lease that is granted while it waits stays its
    /// holder's: what was locked is given back. (MySQL and MariaDB cannot; [`tx_take`](Self::tx_take) tells there.)
    async fn tx_wait(&mut self, names: &[Name], limit: Option<Duration>)
    -> Result<TxWaited, Fault>;

    /// In the caller's transaction: the row of a name, as the transaction sees it. (SQLite makes it and frees it as
    /// [`lock_row`](super::lease::LeaseStore::lock_row) does: nobody else could.)
    async fn tx_row(&mut self, name: &Name) -> Result<Told<Option<LockRow>>, Fault>;
}

/// What a caller's transaction found, and in which database.
#[derive(Debug)]
pub(crate) struct Told<T> {
    pub(crate) database: Option<Uuid>,
    pub(crate) found: T,
}

/// The database's id, and the columns of a lock row where there is one.
pub(crate) type ToldColumns = (
    Uuid,
    Option<Vec<u8>>,
    Option<Uuid>,
    Option<i64>,
    Option<String>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
);

impl From<Option<ToldColumns>> for Told<Option<LockRow>> {
    fn from(columns: Option<ToldColumns>) -> Self {
        let Some((id, name, grant_id, fence, holder, acquired_at, expires_at, remaining)) = columns
        else {
            return Self {
                database: None,
                found: None,
            };
        };
        let found = name.map(|name| LockRow {
            name,
            grant_id,
            fence: fence.unwrap_or_default(),
            holder,
            acquired_at,
            expires_at,
            remaining,
        });
        Self {
            database: Some(id),
            found,
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct PinAsk {
    pub(crate) name: Name,
    pub(crate) grant_id: Uuid,
    pub(crate) by: PinBy,
}

/// What keeps the row of a pinned lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PinBy {
    /// A shared lock: one server takes all writes.
    Lock,
    /// A write of the row: other servers take writes, too, and do not see its lock.
    Write,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pinned {
    /// And it is not taken over before the transaction ends, or the transaction cannot commit.
    Live,
    /// Its time has run out.
    Expired,
    /// The name is not this grant's any more.
    Gone,
    /// It is not, or somebody has its row locked just now.
    Missed,
    /// It is not, or somebody has its row locked, or the row is newer than what the transaction can see.
    Invisible,
}

#[derive(Debug, Clone)]
pub(crate) struct TxAsk {
    pub(crate) name: Name,
    /// Only if this is still the fence of the last grant.
    pub(crate) version: Option<i64>,
    /// The last fence that a transaction of this process was granted: when the row still has it, this may be
    /// the same transaction, which may not be granted it twice.
    pub(crate) before: Option<i64>,
}

#[derive(Debug)]
pub(crate) enum TxTaken {
    Granted {
        /// In the order of the asks.
        fences: Vec<i64>,
        /// These names bore their asks' `before`. Unless others saw that too, this transaction had been
        /// granted them already.
        perhaps_again: Vec<Name>,
    },
    /// This transaction has been granted one of the names before.
    Again,
    /// The clock has to go on for so long before a fence can be told that will never be told again.
    Early(Duration),
    /// One of the names is held, or locked; with the holder, where the brand knows it.
    Missed(Option<LockRow>),
    /// One of the names has a live lease, and its row is locked now: it cannot be renewed before the
    /// transaction ends.
    Blocking,
    /// One of the names has no row, and nobody can make it before the transaction ends.
    NoRow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TxWaited {
    Locked,
    /// A lease of one of the names was granted meanwhile, or it has no row: nothing is locked.
    Changed,
    TimedOut,
    /// A row is newer than what the transaction can see.
    Invisible,
}
