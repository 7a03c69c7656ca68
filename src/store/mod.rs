//! The verbs that the rest of the crate speaks to a database, and nothing of how a brand says them.
//!
//! A method of [`Store`] is **one atomic decision**, documented here once: precondition, outcome,
//! isolation, clock. Each brand uses its best native form (`postgres/`, `mysql/`, `sqlite/`, with
//! the same file names in each); the contract tests hold all of them to the same promises.
//!
//! For every verb:
//!
//! - *isolation*: READ COMMITTED (SQLite: the one writer). A row that somebody else has locked is
//!   passed over, never waited for, so that one long transaction cannot hold up a batch.
//! - *clock*: the database's, read when the row is ours, never when the statement began.
//! - *batches*: the asks of one call have different names and come sorted by name. Each ask is
//!   atomic; a call that fails may have done some of its asks.
//! - *repeating*: every verb but `lease_force_release` may be sent again after a broken connection. A grant is named by its
//!   own id, so that the second sending finds what the first one did.

pub(crate) mod fault;
mod grants;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
mod json;
pub(crate) mod migrate;
#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
pub(crate) mod record;
mod request;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod servers;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
mod url;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::model::{Engine, Error, LockInfo, Mode, Name};
use fault::Fault;
use record::Records;
pub(crate) use request::RequestLimit;

/// How a brand is reached: what a lane needs to open its connection, again and again.
pub(crate) trait Connector: std::fmt::Debug + Clone + Send + Sync + 'static {
    type Connection: Store;

    /// How many lanes make sense: more only where the server works on several at once.
    const LANES: usize;

    /// How large the batches of operations on locks may be.
    const REQUEST: RequestLimit;

    /// The same for renewals of leases.
    const RENEWALS: RequestLimit = Self::REQUEST;

    /// Whether a caller's open transaction may keep every lane from writing. A lane would then wait for it, and it must
    /// not wait long for the lane.
    const TRANSACTION_BLOCKS_LANES: bool;

    /// The database, for messages: never with its password.
    fn target(&self) -> String;

    /// How many servers there are to choose from.
    fn servers(&self) -> usize {
        1
    }

    /// A new connection with the session settings that the verbs rely on, to the server of this number.
    /// No statement on it is waited for longer than `patience`. Of several servers, one that is not the primary is
    /// [`ReadOnly`](fault::FaultKind::ReadOnly).
    fn connect(
        &self,
        server: usize,
        patience: Duration,
    ) -> impl Future<Output = Result<Self::Connection, Fault>> + Send;
}

/// The atomic decisions, on a connection.
pub(crate) trait Store: Records + std::fmt::Debug + Send + Sized + 'static {
    /// Which server this is, and its version. Asked once, when the client starts.
    fn server(&mut self) -> impl Future<Output = Result<Server, Fault>> + Send;

    /// The largest outcome that a statement can carry to this server, in bytes. Asked on every new connection: it may
    /// be another server, or set otherwise by now.
    fn largest_outcome(&mut self) -> impl Future<Output = Result<usize, Fault>> + Send {
        std::future::ready(Ok(usize::MAX))
    }

    /// The applied migrations, oldest first; `None` when there is no history table.
    fn schema_history(
        &mut self,
    ) -> impl Future<Output = Result<Option<Vec<Applied>>, Fault>> + Send;

    /// Applies the migrations that are missing, under a lock in the database, and names them.
    fn migrate(
        &mut self,
    ) -> impl Future<Output = Result<Vec<String>, crate::store::migrate::MigrateFault>> + Send;

    /// The database's own id, which tells it from every other one.
    fn database_id(&mut self) -> impl Future<Output = Result<Uuid, Fault>> + Send;

    /// Grants a lease where the name has none that is live, under the next fence:
    /// `max(previous + 1, microseconds of the clock)`.
    ///
    /// One outcome per ask, in the order of the asks. A name that is held, or whose row somebody has
    /// locked, is `Busy`; when the holder that is reported is the ask's own grant, an earlier
    /// sending of this ask was what took it.
    fn lease_take(
        &mut self,
        asks: &[TakeAsk],
    ) -> impl Future<Output = Result<Vec<Taken>, Fault>> + Send;

    /// Extends leases that are live and still the asked grants'. An
    /// expiry never moves back. A lease that has run out is not revived, even if nobody took it.
    ///
    /// One outcome per ask, in the order of the asks.
    fn lease_renew(
        &mut self,
        asks: &[RenewAsk],
    ) -> impl Future<Output = Result<Vec<Renewed>, Fault>> + Send;

    /// Frees leases that are live and still the asked grants'. Need not survive a crash of the
    /// server: a lost release only leaves a row that expires.
    ///
    /// One outcome per ask, in the order of the asks.
    fn lease_release(
        &mut self,
        asks: &[ReleaseAsk],
    ) -> impl Future<Output = Result<Vec<Freed>, Fault>> + Send;

    /// Frees a name, whoever holds it, and tells who did. A row that is locked is waited for, for less
    /// than `patience`, also when nobody waits for the answer any more; a row that cannot be read is
    /// freed too.
    fn lease_force_release(
        &mut self,
        name: &Name,
        patience: Duration,
    ) -> impl Future<Output = Result<Option<LockRow>, Fault>> + Send;

    /// The live holder of one name.
    fn lock_inspect(
        &mut self,
        name: &Name,
    ) -> impl Future<Output = Result<Option<LockRow>, Fault>> + Send;

    /// The live holders of all names, by name.
    fn lock_list(&mut self) -> impl Future<Output = Result<Vec<LockRow>, Fault>> + Send;

    /// Looks at the next `limit` lock rows after the name `after` (empty: from the first one), and removes those
    /// that nobody has used for [`IDLE`]: free ones whose last grant is older, and leases that ran out before.
    /// A row that is locked is passed over: its transaction may have it pinned.
    ///
    /// The fence of a row is a time of the clock or later. A row is removed only when the clock is past its
    /// fence, so the row that is made after it begins with a greater one.
    fn lock_clean(
        &mut self,
        after: &[u8],
        limit: u32,
    ) -> impl Future<Output = Result<CleanedLocks, Fault>> + Send;

    /// The row of a name. When there is none and `make` says so, it is made: free, with the clock as its
    /// fence. `make` also frees one whose lease has run out, unless somebody has it locked: he may have it
    /// pinned.
    fn lock_row(
        &mut self,
        name: &Name,
        make: bool,
    ) -> impl Future<Output = Result<Option<LockRow>, Fault>> + Send;

    /// In the caller's transaction: keeps the row of a lease, if it is live and still the asked grant's,
    /// from being taken over until that transaction ends. Several transactions may pin one lease. (Where the ask says
    /// that it is to be written: of a takeover through another server and this transaction, only one commits.)
    ///
    /// Waits for nobody. A transaction that is over is a fault, on every brand.
    fn tx_pin(&mut self, ask: &PinAsk) -> impl Future<Output = Result<Told<Pinned>, Fault>> + Send;

    /// In the caller's transaction: grants all of the names, or none, where they have no live lease
    /// (and, where a version is asked for, no newer one), under the next fence, and keeps their rows until
    /// that transaction ends.
    ///
    /// Waits for nobody, and locks in the order of the names. Where the transaction's reads are of one
    /// snapshot, that is not taken before the rows are locked.
    fn tx_take(
        &mut self,
        asks: &[TxAsk],
    ) -> impl Future<Output = Result<Told<TxTaken>, Fault>> + Send;

    /// In the caller's transaction: waits until no other transaction has the rows locked, and locks them.
    /// `None` waits for as long as the server's own limit allows. A lease that is granted while it waits stays its
    /// holder's: what was locked is given back. (MySQL and MariaDB cannot; [`tx_take`](Self::tx_take) tells there.)
    fn tx_wait(
        &mut self,
        names: &[Name],
        limit: Option<Duration>,
    ) -> impl Future<Output = Result<TxWaited, Fault>> + Send;

    /// In the caller's transaction: the row of a name, as the transaction sees it. (SQLite makes it and frees it as
    /// [`lock_row`](Self::lock_row) does: nobody else could.)
    fn tx_row(
        &mut self,
        name: &Name,
    ) -> impl Future<Output = Result<Told<Option<LockRow>>, Fault>> + Send;
}

/// What the server said of itself.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) engine: Engine,
    pub(crate) version: String,
    /// The oldest supported version, when this one is older.
    pub(crate) too_old: Option<&'static str>,
    /// It is one of several that take writes: what is locked on one is not locked on the others, and of two
    /// transactions that write the same row through two of them, the second one to commit fails.
    pub(crate) multi_writer: bool,
}

/// A row of the history table.
#[derive(Debug, Clone)]
pub(crate) struct Applied {
    pub(crate) version: i32,
    pub(crate) name: String,
    pub(crate) checksum: String,
}

impl From<(i32, String, String)> for Applied {
    fn from((version, name, checksum): (i32, String, String)) -> Self {
        Self {
            version,
            name,
            checksum,
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct TakeAsk {
    pub(crate) name: Name,
    /// The id of the grant-to-be: fresh for every acquire.
    pub(crate) owner: Uuid,
    pub(crate) ttl: Duration,
    /// For people to read.
    pub(crate) holder: Arc<str>,
}

#[derive(Debug, Clone)]
pub(crate) enum Taken {
    Granted {
        fence: i64,
    },
    /// `None`: the row is locked by somebody, or is changing hands right now.
    Busy(Option<LockRow>),
}

#[derive(Debug, Clone)]
pub(crate) struct RenewAsk {
    pub(crate) name: Name,
    pub(crate) owner: Uuid,
    /// From now on, by the database's clock.
    pub(crate) ttl: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Renewed {
    /// The grant is live, with this much time. When its row was locked, it is what was left before.
    Live { remaining: Duration },
    /// The name is not this grant's any more, or its lease has run out.
    Gone,
}

#[derive(Debug, Clone)]
pub(crate) struct ReleaseAsk {
    pub(crate) name: Name,
    pub(crate) owner: Uuid,
    pub(crate) fence: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freed {
    /// It was held until now, and is free.
    Released,
    /// The row is free and bears this grant's fence: it was released before, by whatever sending.
    WasFree,
    /// Its time had run out; nobody has taken the name since.
    Expired,
    /// The name is somebody else's by now, or was.
    Superseded,
    /// The row is locked by somebody: not released yet.
    Locked,
}

#[derive(Debug, Clone)]
pub(crate) struct PinAsk {
    pub(crate) name: Name,
    pub(crate) owner: Uuid,
    /// Write the row as well: other servers take writes, too, and do not see its lock.
    pub(crate) write: bool,
}

/// What a caller's transaction found, and in which database.
#[derive(Debug)]
pub(crate) struct Told<T> {
    pub(crate) database: Option<Uuid>,
    pub(crate) found: T,
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

impl ReleaseAsk {
    /// What a row that was not freed says about this ask. `None`: there is no row.
    #[cfg(any(feature = "mysql", feature = "sqlite"))]
    fn freed(&self, row: Option<&LockRow>) -> Freed {
        match row {
            Some(row) if row.owner == Some(self.owner) && row.is_live() => Freed::Locked,
            Some(row) if row.owner == Some(self.owner) => Freed::Expired,
            Some(row) if row.owner.is_none() && row.fence == self.fence => Freed::WasFree,
            _ => Freed::Superseded,
        }
    }
}

/// How long a lock row is kept after its last use. Not a whole number of weeks: a weekly job would find its row being
/// removed in the very moment in which it asks for it.
pub(crate) const IDLE: Duration = Duration::from_hours(10 * 24);

/// What one look for idle lock rows came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CleanedLocks {
    pub(crate) removed: u64,
    /// The last name that was looked at; `None` when there are no more.
    pub(crate) last: Option<Vec<u8>>,
}

/// What a row says, before it is known to make sense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LockRow {
    pub(crate) name: Vec<u8>,
    pub(crate) owner: Option<Uuid>,
    pub(crate) fence: i64,
    pub(crate) holder: Option<String>,
    /// Microseconds since 1970-01-01 UTC.
    pub(crate) acquired_at: Option<i64>,
    /// Microseconds since 1970-01-01 UTC.
    pub(crate) expires_at: Option<i64>,
    /// Microseconds, by the database's clock when the row was read.
    pub(crate) remaining: Option<i64>,
}

/// The columns of a lock row, in the order in which every brand selects them.
pub(crate) type LockColumns = (
    Vec<u8>,
    Option<Uuid>,
    i64,
    Option<String>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
);

impl From<LockColumns> for LockRow {
    fn from(columns: LockColumns) -> Self {
        let (name, owner, fence, holder, acquired_at, expires_at, remaining) = columns;
        Self {
            name,
            owner,
            fence,
            holder,
            acquired_at,
            expires_at,
            remaining,
        }
    }
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
        let Some((id, name, owner, fence, holder, acquired_at, expires_at, remaining)) = columns
        else {
            return Self {
                database: None,
                found: None,
            };
        };
        let found = name.map(|name| LockRow {
            name,
            owner,
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

impl LockRow {
    pub(crate) fn is_live(&self) -> bool {
        self.remaining.is_some_and(|left| left > 0)
    }

    /// Whether somebody has it whose time has run out.
    pub(crate) fn has_lapsed(&self) -> bool {
        self.owner.is_some() && !self.is_live()
    }

    /// Who has the row, whether his time has run out or not.
    pub(crate) fn owned(self) -> Result<Option<LockInfo>, Error> {
        let is_owned = self.owner.is_some() || self.expires_at.is_some();
        is_owned.then(|| self.info()).transpose()
    }

    /// The row as callers see it.
    pub(crate) fn info(self) -> Result<LockInfo, Error> {
        let Some(name) = Name::from_bytes(&self.name) else {
            return Err(self.damaged("its name is not 1 to 255 bytes of UTF-8 without NUL"));
        };
        let Some(owner) = self.owner else {
            return Err(self.damaged("it has an expiry but no owner"));
        };
        let (Some(acquired_at), Some(expires_at)) = (time(self.acquired_at), time(self.expires_at))
        else {
            return Err(self.damaged("a time in it is missing or out of range"));
        };
        Ok(LockInfo {
            name,
            mode: Mode::Lease,
            owner,
            fence: self.fence,
            holder: self.holder.unwrap_or_default(),
            acquired_at,
            expires_at,
            remaining: micros(self.remaining.unwrap_or(0)),
        })
    }

    fn damaged(&self, what: &'static str) -> Error {
        Error::CorruptRow {
            name: String::from_utf8_lossy(&self.name).into_owned(),
            what,
        }
    }
}

fn time(at: Option<i64>) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_micros(at?)
}

/// Microseconds from the database; a negative number is zero.
pub(crate) fn micros(us: i64) -> Duration {
    Duration::from_micros(u64::try_from(us).unwrap_or(0))
}

/// A duration for the database. Durations are bounded long before this could saturate.
pub(crate) fn to_micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> LockRow {
        LockRow {
            name: b"a".to_vec(),
            owner: Some(Uuid::nil()),
            fence: 1,
            holder: Some("me".into()),
            acquired_at: Some(1),
            expires_at: Some(2),
            remaining: Some(-5),
        }
    }

    #[test]
    fn a_row_that_makes_sense_is_shown() {
        let info = row().info().unwrap();
        assert_eq!((info.fence, info.remaining), (1, Duration::ZERO));
    }

    #[test]
    fn a_row_edited_by_hand_is_an_error() {
        let damages: [fn(&mut LockRow); 4] = [
            |r| r.name = vec![0xff],
            |r| r.owner = None,
            |r| r.acquired_at = Some(i64::MAX),
            |r| r.expires_at = None,
        ];
        for damage in damages {
            let mut row = row();
            damage(&mut row);
            assert!(matches!(row.info(), Err(Error::CorruptRow { .. })));
        }
    }
}
