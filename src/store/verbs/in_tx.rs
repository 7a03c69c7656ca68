//! Locks in the caller's transaction.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::{ColumnIndex, Decode, FromRow, Row, Type};
use uuid::Uuid;

use super::fault::Fault;
use super::row::LockRow;
use crate::model::{Moment, Name};

/// The verbs for locks in the caller's transaction.
#[async_trait]
pub(crate) trait InTxStore {
    /// In the caller's transaction: pins a lease, if it is live and still belongs to the asked grant. No other holder
    /// takes the row over until that transaction ends. Several transactions may pin one lease. (With [`PinBy::Write`],
    /// only one of this transaction and a takeover through another server commits.)
    ///
    /// Never waits. A transaction that is over is a fault, on every engine.
    async fn tx_pin(&mut self, params: &PinParams) -> Result<TxReply<PinOutcome>, Fault>;

    /// In the caller's transaction: grants all of the names or none, under the next fence, and keeps their rows until
    /// that transaction ends. It grants names without a live lease or a pause and, where a version is asked for,
    /// without a newer version.
    ///
    /// Never waits, and locks in the order of the names. Where the transaction reads from one snapshot, the snapshot
    /// is not taken before the rows are locked.
    async fn tx_take(&mut self, all: &[TxParams]) -> Result<TxReply<TxTaken>, Fault>;

    /// In the caller's transaction: waits until no other transaction has the rows locked, and locks them. `None` waits
    /// as long as the server's own limit allows. When a lease is granted meanwhile, it stays with its holder: all rows
    /// are unlocked. (MySQL and MariaDB cannot unlock them; there [`tx_take`](Self::tx_take) reports it.)
    async fn tx_wait(&mut self, names: &[Name], limit: Option<Duration>)
    -> Result<TxWaited, Fault>;

    /// In the caller's transaction: the row of a name, as the transaction sees it. (SQLite makes and frees the row as
    /// [`lock_row`](super::lock_row::LockRowStore::lock_row) does: no other connection could.)
    async fn tx_row(&mut self, name: &Name) -> Result<TxReply<Option<LockRow>>, Fault>;

    /// Commits the caller's transaction where COMMIT alone would not tell that nothing was committed. True: it is
    /// committed, and another one, an empty one, is open. False: the caller commits.
    async fn tx_commit(&mut self) -> Result<bool, sqlx::Error> {
        Ok(false)
    }
}

/// The answer of a verb in a caller's transaction, and the id of that transaction's database.
#[derive(Debug, Default)]
pub(crate) struct TxReply<T> {
    pub(crate) database: Option<Uuid>,
    pub(crate) found: T,
}

impl<T> TxReply<T> {
    pub(crate) fn of(database: Option<Uuid>, found: T) -> Self {
        Self { database, found }
    }
}

/// The database's id, and the columns of a lock row if there is one.
impl<'r, R: Row> FromRow<'r, R> for TxReply<Option<LockRow>>
where
    usize: ColumnIndex<R>,
    Vec<u8>: Decode<'r, R::Database> + Type<R::Database>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    Uuid: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    fn from_row(row: &'r R) -> Result<Self, sqlx::Error> {
        Ok(Self {
            database: row.try_get(0)?,
            found: LockRow::read(row, 1)?,
        })
    }
}

#[derive(Debug, Clone)]
pub(crate) struct PinParams {
    pub(crate) name: Name,
    pub(crate) grant_id: Uuid,
    pub(crate) by: PinBy,
}

/// How a pin keeps the row of its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PinBy {
    /// A shared lock: one server takes all writes.
    Lock,
    /// A write of the row, because other servers take writes too and do not see its lock.
    Write,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PinOutcome {
    /// The lease is live. No other holder takes it over before the transaction ends, or the transaction cannot commit.
    Live,
    /// The lease has expired.
    Expired,
    /// The name no longer belongs to this grant.
    Gone,
    /// The lease has expired or is gone, or another transaction has its row locked.
    Missed,
    /// As `Missed`, or the row is newer than the transaction's snapshot.
    Invisible,
}

#[derive(Debug, Clone)]
pub(crate) struct TxParams {
    pub(crate) name: Name,
    /// Grant only if this is still the fence of the last grant.
    pub(crate) version: Option<i64>,
    /// The last fence that a transaction of this process was granted. When the row still has it, this may be the same
    /// transaction, which must not get the name twice.
    pub(crate) before: Option<i64>,
    /// rowlock has begun this transaction. Where there is one writer at a time, it is the writer since then.
    pub(crate) begun: bool,
}

/// How many microseconds the fence of a row may be ahead of the database's clock, because fences were reserved
/// ([`ConfirmParams`](super::queue::ConfirmParams)).
///
/// After a rollback the row has its old fence again. The next transaction must get another one, so it waits until the
/// clock has passed the row's fence, and takes the clock. A fence that is further ahead was not reserved: there is no
/// wait.
pub(crate) const FURTHEST_AHEAD: i64 = 40_000;

#[derive(Debug)]
pub(crate) enum TxTaken {
    Granted {
        /// In the order of the asks.
        fences: Vec<i64>,
        /// The rows of these names had their asks' `before`. If other sessions do not see that fence, this transaction
        /// had been granted them already.
        perhaps_again: Vec<Name>,
    },
    /// This transaction was granted one of the names before.
    Again,
    /// The clock has to advance by this much, so that the fence is never issued again.
    Early(Duration),
    /// The database is in quarantine for so long: nothing was granted.
    Quarantined(Duration),
    /// One of the names is held or paused, or its row is locked; with the row of what is in the way, where the engine
    /// knows it.
    Missed(Option<LockRow>),
    /// One of the names has a live lease or is paused, and this transaction now has its row locked: the lease cannot
    /// be renewed, and the name cannot be resumed, before the transaction ends.
    Blocking,
    /// One of the names has no row, and no other session can make it before the transaction ends.
    NoRow,
}

/// Whether a wait that was interrupted has come to its limit, which servers count in whole milliseconds. If not,
/// somebody has cancelled it.
pub(crate) fn is_over(until: Option<Moment>) -> bool {
    until.is_some_and(|until| Moment::now() + Duration::from_millis(1) >= until)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TxWaited {
    Locked,
    /// A lease of one of the names was granted meanwhile, or a row is missing: nothing is locked.
    Changed,
    TimedOut,
    /// A row is newer than the transaction's snapshot.
    Invisible,
}
