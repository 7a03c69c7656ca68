//! Reaching an engine's database: what every engine does in a way of its own.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use super::capabilities::Capabilities;
use super::origin::{Current, Password};
use super::request::RequestLimit;
use super::write_turn::Writers;
use crate::model::{Error, InvalidError};
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::queue::Listener;
use crate::store::verbs::schema::{MigrateFault, MigrateUntil};

/// How to reach an engine's database: what a lane needs to connect, again and again.
pub(crate) trait Connector: fmt::Debug + Clone + Send + Sync + 'static {
    type Connection: Connection;

    /// sqlx's options for a connection to such a database.
    type Options;

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
        Err(Error::Invalid(InvalidError::Setting {
            setting: "password",
            reason: "a SQLite file has no password: leave the setting out",
        }))
    }

    /// The same connector, for tables in this schema of the database.
    fn with_schema(self, schema: &str) -> Result<Self, Error> {
        let _ = schema;
        Err(Error::Invalid(InvalidError::Setting {
            setting: "schema",
            reason: "only PostgreSQL has schemas: name another database in the URL",
        }))
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

    /// A new connection to the server of this number that hears the news of a session. `None`: no news reach this
    /// client (SQLite, a pooler in between, MariaDB with a pool of threads), so it looks often.
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
    async fn run(&mut self, call: &mut dyn VerbCall, bound: Duration) -> Result<(), Fault>;

    /// The largest outcome that a statement can carry to this server, in bytes. Asked on every new connection: the
    /// server may be another one, or its setting may have changed.
    async fn largest_outcome(&mut self) -> Result<usize, Fault> {
        Ok(usize::MAX)
    }

    /// [`SchemaStore::migrate`](crate::store::verbs::schema::SchemaStore::migrate). It is not a single verb, because
    /// it begins transactions of its own.
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

impl<V, T> VerbCall for Once<V, T>
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
pub(crate) trait VerbCall {
    fn on<'a>(
        &'a mut self,
        store: &'a mut dyn Store,
    ) -> Pin<Box<dyn Future<Output = Result<(), Fault>> + 'a>>;

    /// Whether its commit must wait for the disk although it releases locks: it also grants some.
    fn must_last(&self) -> bool {
        false
    }
}
