//! The verbs that the rest of the crate sends to a database, without any engine's SQL.
//!
//! There is one trait per concern, in a file of its own. Each method is **one atomic decision**, documented there
//! once: precondition, outcome, isolation, clock. Each engine (`postgres/`, `mysql/`, `sqlite/`) implements a trait in
//! its file of the same name, in its best native form. The contract tests hold all engines to the same promises.
//!
//! For every verb:
//!
//! - *isolation*: READ COMMITTED (SQLite: one writer at a time). A row that another transaction has locked is skipped,
//!   never waited for, so that one long transaction cannot hold up a batch.
//! - *clock*: the database's, read after the row is locked, never when the statement began.
//! - *batches*: the asks of one call have different names and come sorted by name. Each ask is
//!   atomic; a call that fails may have done some of its asks.
//! - *repeating*: every verb but `lease_force_release` may be sent again after a broken connection. A grant has its
//!   own id, so the second sending finds the effect of the first.

mod capabilities;
pub(crate) mod classify;
pub(crate) mod clean;
pub(crate) mod deadlock;
pub(crate) mod engines;
pub(crate) mod fault;
pub(crate) mod fault_error;
pub(crate) mod form_token;
mod grants;
pub(crate) mod hold;
pub(crate) mod in_tx;
mod json;
#[cfg(test)]
mod late_tests;
pub(crate) mod lease;
pub(crate) mod lock_row;
pub(crate) mod migrate;
pub(crate) mod migration_sql;
#[cfg(feature = "mysql")]
pub(crate) mod mysql;
pub(crate) mod origin;
pub(crate) mod permit;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
pub(crate) mod quarantine;
pub(crate) mod queue;
#[cfg(test)]
pub(crate) mod queue_cases;
pub(crate) mod record;
pub(crate) mod record_admin;
pub(crate) mod record_in_tx;
pub(crate) mod record_state;
pub(crate) mod release;
mod request;
pub(crate) mod row;
pub(crate) mod run;
pub(crate) mod schema;
mod servers;
pub(crate) mod session;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
pub(crate) mod step;
mod url;
pub(crate) mod writers;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use uuid::Uuid;

pub(crate) use capabilities::Capabilities;
use clean::CleanStore;
use deadlock::DeadlockStore;
use engines::Driver;
use fault::Fault;
use form_token::FormTokenStore;
use hold::HoldStore;
use in_tx::InTxStore;
use lease::LeaseStore;
use lock_row::LockRowStore;
use migrate::{MigrateFault, MigrateUntil};
use origin::{Current, Password};
use permit::PermitStore;
use quarantine::QuarantineStore;
use queue::{Listener, QueueStore};
use record::RecordStore;
use record_admin::RecordAdminStore;
use record_in_tx::RecordInTxStore;
pub(crate) use request::RequestLimit;
use run::RunStore;
use schema::SchemaStore;
use session::SessionStore;
use step::StepStore;
use writers::Writers;

use crate::model::Error;

/// How to reach an engine's database: what a lane needs to connect, again and again.
pub(crate) trait Connector: fmt::Debug + Clone + Send + Sync + 'static {
    type Connection: Connection;

    /// sqlx's options for a connection to such a database.
    type Options;

    const DRIVER: Driver;

    const CAPABILITIES: Capabilities;

    /// How a transaction of the application's that may write begins; `None`: with plain BEGIN.
    const BEGIN: Option<&'static str> = None;

    /// The useful number of lanes: more than one only where the server runs several statements at once.
    const LANES: usize;

    /// From so many operations of a batch on, releases and acquires share a statement.
    const EXCHANGE_FROM: usize = 0;

    /// The limit on a batch of operations on locks.
    const REQUEST: RequestLimit;

    /// The limit on a renewal of leases.
    const RENEWALS: RequestLimit = Self::REQUEST;

    /// A connector to the database of an application's pool. Connections to a server follow the pool's options.
    fn from_options(options: Current<Self::Options>) -> Result<Self, Error>;

    /// The same connector, which asks for the password of each new connection.
    fn with_password(self, ask: Password) -> Result<Self, Error> {
        let _ = ask;
        Err(Error::InvalidSetting {
            setting: "password",
            reason: "a SQLite file has no password: leave the setting out",
        })
    }

    /// The database, for messages: always without its password.
    fn target(&self) -> String;

    /// The writers of this process, where the database has one writer at a time.
    fn writers(&self) -> Option<Arc<Writers>> {
        None
    }

    /// How many servers the connector may dial.
    fn servers(&self) -> usize {
        1
    }

    /// A new connection to the server of this number, with the session settings that the verbs rely on. No statement
    /// on it waits longer than `operation_timeout`. Among several servers, one that is not the primary fails with
    /// [`ReadOnly`](crate::model::FaultKind::ReadOnly).
    fn connect(
        &self,
        server: usize,
        operation_timeout: Duration,
    ) -> impl Future<Output = Result<Self::Connection, Fault>> + Send;

    /// A new connection to the server of this number that hears the news of a session. `None`: this engine sends no
    /// news.
    fn listen(
        &self,
        server: usize,
        session: Uuid,
    ) -> impl Future<Output = Result<Option<Box<dyn Listener>>, Fault>> + Send {
        let _ = (server, session);
        std::future::ready(Ok(None))
    }
}

/// A connection of rowlock's own. It runs verbs one after the other.
#[async_trait(?Send)]
pub(crate) trait Connection: fmt::Debug + Send + 'static {
    /// Runs one verb, with the statements that this engine's sessions need before and after it. After `bound` the
    /// caller drops the future, and the connection with it.
    async fn run(&mut self, call: &mut dyn Call, bound: Duration) -> Result<(), Fault>;

    /// The largest outcome that a statement can carry to this server, in bytes. Asked on every new connection: the
    /// server may be another one, or its setting may have changed.
    async fn largest_outcome(&mut self) -> Result<usize, Fault> {
        Ok(usize::MAX)
    }

    /// [`SchemaStore::migrate`]. It is not a single verb, because it begins transactions of its own.
    async fn migrate(&mut self, until: MigrateUntil) -> Result<Vec<String>, MigrateFault>;

    /// Tells the server that this is the end, or closes the file. (A connection that is dropped is closed some time
    /// later, unless the process ends first.)
    async fn close(self: Box<Self>);
}

impl dyn Connection {
    /// Runs one verb and returns its outcome.
    pub(crate) async fn call<T>(
        &mut self,
        bound: Duration,
        verb: impl AsyncFnOnce(&mut dyn Store) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut once = Once::Called(verb);
        self.run(&mut once, bound).await?;
        match once {
            Once::Found(found) => Ok(found),
            // The session returned without running the call: it is broken.
            _ => Err(Fault::timed_out()),
        }
    }
}

/// A verb before its only call, then its outcome.
enum Once<V, T> {
    Called(V),
    Running,
    Found(T),
}

impl<V, T> Call for Once<V, T>
where
    V: AsyncFnOnce(&mut dyn Store) -> Result<T, Fault>,
{
    fn on<'a>(
        &'a mut self,
        store: &'a mut dyn Store,
    ) -> Pin<Box<dyn Future<Output = Result<(), Fault>> + 'a>> {
        Box::pin(async move {
            if let Self::Called(verb) = std::mem::replace(self, Self::Running) {
                *self = Self::Found(verb(store).await?);
            }
            Ok(())
        })
    }
}

/// One call of a verb. It keeps the verb's outcome.
pub(crate) trait Call {
    fn on<'a>(
        &'a mut self,
        store: &'a mut dyn Store,
    ) -> Pin<Box<dyn Future<Output = Result<(), Fault>> + 'a>>;

    /// Whether its commit must wait for the disk although it releases locks: it also grants some.
    fn must_last(&self) -> bool {
        false
    }
}

/// The verbs that rowlock sends on connections of its own.
pub(crate) trait Store:
    LeaseStore
    + QueueStore
    + PermitStore
    + DeadlockStore
    + LockRowStore
    + RecordStore
    + RecordAdminStore
    + StepStore
    + FormTokenStore
    + CleanStore
    + SchemaStore
    + SessionStore
    + QuarantineStore
    + HoldStore
    + RunStore
    + Send
{
}

impl<T> Store for T where
    T: LeaseStore
        + QueueStore
        + PermitStore
        + DeadlockStore
        + LockRowStore
        + RecordStore
        + RecordAdminStore
        + StepStore
        + FormTokenStore
        + CleanStore
        + SchemaStore
        + SessionStore
        + QuarantineStore
        + HoldStore
        + RunStore
        + Send
{
}

/// The verbs in a caller's transaction.
pub(crate) trait TxStore:
    InTxStore + RecordInTxStore + FormTokenStore + SchemaStore + Send
{
}

impl<T: InTxStore + RecordInTxStore + FormTokenStore + SchemaStore + Send> TxStore for T {}

/// A time from the database: microseconds since 1970-01-01 UTC.
fn time(at: i64) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_micros(at)
}

/// Microseconds from the database as a duration; a negative number becomes zero.
pub(crate) fn micros(us: i64) -> Duration {
    Duration::from_micros(u64::try_from(us).unwrap_or(0))
}

/// A duration in microseconds for the database. Durations are bounded far below saturation.
pub(crate) fn to_micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
