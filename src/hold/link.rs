//! A connection that is bounded, thrown away when in doubt, and made anew.

use std::time::Duration;

use tokio::time::timeout;

use crate::store::Connector;
use crate::store::fault::Fault;

/// A connection of our own, outside every pool.
///
/// sqlx has no time-outs and its sockets no keep-alive: a half-open connection hangs for ever. So
/// every await here has a bound, and a connection on which something was cut off is dropped, never
/// used again.
#[derive(Debug)]
pub(crate) struct Link<C: Connector> {
    connector: C,
    patience: Duration,
    conn: Option<C::Connection>,
}

impl<C: Connector> Link<C> {
    pub(crate) fn new(connector: C, patience: Duration) -> Self {
        Self {
            connector,
            patience,
            conn: None,
        }
    }

    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.conn.is_some()
    }

    /// One attempt to make a connection, bounded by the patience. Dropping the future drops the
    /// half-made connection.
    pub(crate) fn dial(&self) -> impl Future<Output = Result<C::Connection, Fault>> + 'static {
        let (connector, patience) = (self.connector.clone(), self.patience);
        async move {
            let made = timeout(patience, connector.connect(patience)).await;
            made.unwrap_or_else(|_| Err(Fault::timed_out()))
        }
    }

    pub(crate) fn put(&mut self, conn: C::Connection) {
        self.conn = Some(conn);
    }

    /// Lets the connection go.
    pub(crate) fn hang_up(&mut self) {
        self.conn = None;
    }

    /// Dials, unless there is a connection.
    pub(crate) async fn connect(&mut self) -> Result<(), Fault> {
        if self.conn.is_none() {
            self.conn = Some(self.dial().await?);
        }
        Ok(())
    }

    /// Runs one verb, bounded by `bound`. After a failure that leaves the connection in doubt it is
    /// gone. Dropping the future drops the connection.
    pub(crate) async fn run<T>(
        &mut self,
        bound: Duration,
        verb: impl AsyncFnOnce(&mut C::Connection) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let Some(mut conn) = self.conn.take() else {
            return Err(Fault::timed_out());
        };
        let result = timeout(bound, verb(&mut conn)).await;
        let result = result.unwrap_or_else(|_| Err(Fault::timed_out()));
        if !matches!(&result, Err(fault) if fault.kind.ends_connection()) {
            self.conn = Some(conn);
        }
        result
    }
}
