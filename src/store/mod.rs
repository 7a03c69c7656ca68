//! The verbs that the rest of the crate speaks to a database, and nothing of how a brand says them.
//!
//! One trait per concern, in a file of its own. A method of one is **one atomic decision**, documented there once:
//! precondition, outcome, isolation, clock. Each brand (`postgres/`, `mysql/`, `sqlite/`) implements a trait in its file of
//! the same name, and uses its best native form; the contract tests hold all of them to the same promises.
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

pub(crate) mod brands;
mod capabilities;
pub(crate) mod classify;
pub(crate) mod clean;
pub(crate) mod fault;
pub(crate) mod fault_error;
pub(crate) mod form_token;
mod grants;
pub(crate) mod in_tx;
mod json;
pub(crate) mod lease;
pub(crate) mod migrate;
pub(crate) mod migration_sql;
#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
pub(crate) mod record;
pub(crate) mod record_admin;
pub(crate) mod record_in_tx;
pub(crate) mod record_state;
mod request;
pub(crate) mod row;
pub(crate) mod schema;
mod servers;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
pub(crate) mod step;
mod url;

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;

use brands::Brand;
pub(crate) use capabilities::Capabilities;
use clean::CleanStore;
use fault::Fault;
use form_token::FormTokenStore;
use in_tx::InTxStore;
use lease::LeaseStore;
use migrate::MigrateFault;
use record::RecordStore;
use record_admin::RecordAdminStore;
use record_in_tx::RecordInTxStore;
pub(crate) use request::RequestLimit;
use schema::SchemaStore;
use step::StepStore;

use crate::model::Error;

/// How a brand is reached: what a lane needs to open its connection, again and again.
pub(crate) trait Connector: fmt::Debug + Clone + Send + Sync + 'static {
    type Connection: Session;

    /// How sqlx reaches such a database.
    type Options;

    const BRAND: Brand;

    const CAPABILITIES: Capabilities;

    /// How a transaction of the application's that may write is begun; `None`: by plain BEGIN.
    const BEGIN: Option<&'static str> = None;

    /// How many lanes make sense: more only where the server works on several at once.
    const LANES: usize;

    /// How large the batches of operations on locks may be.
    const REQUEST: RequestLimit;

    /// The same for renewals of leases.
    const RENEWALS: RequestLimit = Self::REQUEST;

    /// For the database of a pool of the application's.
    fn from_options(options: Self::Options) -> Result<Self, Error>;

    /// The database, for messages: never with its password.
    fn target(&self) -> String;

    /// How many servers there are to choose from.
    fn servers(&self) -> usize {
        1
    }

    /// A new connection with the session settings that the verbs rely on, to the server of this number.
    /// No statement on it is waited for longer than `operation_timeout`. Of several servers, one that is not the primary is
    /// [`ReadOnly`](crate::model::FaultKind::ReadOnly).
    fn connect(
        &self,
        server: usize,
        operation_timeout: Duration,
    ) -> impl Future<Output = Result<Self::Connection, Fault>> + Send;
}

/// A connection of rowlock's own: verbs run on it one after the other.
#[async_trait(?Send)]
pub(crate) trait Session: fmt::Debug + Send + 'static {
    /// Runs one verb, with what this brand's sessions need before and after it.
    async fn run(&mut self, call: &mut dyn Call) -> Result<(), Fault>;

    /// The largest outcome that a statement can carry to this server, in bytes. Asked on every new connection: it may
    /// be another server, or set otherwise by now.
    async fn largest_outcome(&mut self) -> Result<usize, Fault> {
        Ok(usize::MAX)
    }

    /// [`SchemaStore::migrate`], which is no single verb: it begins transactions of its own.
    async fn migrate(&mut self) -> Result<Vec<String>, MigrateFault>;
}

impl dyn Session {
    /// Runs one verb, and returns what it found.
    pub(crate) async fn call<T>(
        &mut self,
        verb: impl AsyncFnOnce(&mut dyn Store) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut once = Once::Called(verb);
        self.run(&mut once).await?;
        match once {
            Once::Found(found) => Ok(found),
            // A session that does not run what it is given is a broken one.
            _ => Err(Fault::timed_out()),
        }
    }
}

/// A verb that is called once, then what it found.
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

/// One call of a verb. It keeps what the verb returns.
pub(crate) trait Call {
    fn on<'a>(
        &'a mut self,
        store: &'a mut dyn Store,
    ) -> Pin<Box<dyn Future<Output = Result<(), Fault>> + 'a>>;
}

/// The verbs that rowlock sends on connections of its own.
pub(crate) trait Store:
    LeaseStore
    + RecordStore
    + RecordAdminStore
    + StepStore
    + FormTokenStore
    + CleanStore
    + SchemaStore
    + Send
{
}

impl<T> Store for T where
    T: LeaseStore
        + RecordStore
        + RecordAdminStore
        + StepStore
        + FormTokenStore
        + CleanStore
        + SchemaStore
        + Send
{
}

/// The verbs in a caller's transaction.
pub(crate) trait TxStore: InTxStore + RecordInTxStore + FormTokenStore + Send {}

impl<T: InTxStore + RecordInTxStore + FormTokenStore + Send> TxStore for T {}

/// Microseconds from the database; a negative number is zero.
pub(crate) fn micros(us: i64) -> Duration {
    Duration::from_micros(u64::try_from(us).unwrap_or(0))
}

/// A duration for the database. Durations are bounded long before this could saturate.
pub(crate) fn to_micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
