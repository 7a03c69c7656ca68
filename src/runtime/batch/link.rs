//! A connection with a bound on every call. A connection on which a call was cut off is dropped and made anew.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::timeout;
use uuid::Uuid;

use super::job::Batch;
use crate::model::FaultKind;
use crate::runtime::base::meter;
use crate::runtime::base::meter::Since;
use crate::store::driver::connect::{Connection, Connector};
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::queue::Listener;

/// A connection of our own, outside every pool.
///
/// sqlx has no time-outs and its sockets have no keep-alive: a half-open connection hangs for ever. So every await
/// here has a bound, and a connection on which a call was cut off is dropped and never used again.
#[derive(Debug)]
pub(crate) struct Link {
    dialer: Arc<dyn Dialer>,
    operation_timeout: Duration,
    way: Arc<Way>,
    connection: Option<Box<dyn Connection>>,
    /// The number of the connection: every connection of this process has its own.
    number: u64,
}

/// How long the end of a connection may take.
const CLOSING: Duration = Duration::from_secs(1);

/// How many connections this process has made.
static MADE: AtomicU64 = AtomicU64::new(0);

/// A [`Connector`] of any engine.
#[async_trait]
trait Dialer: fmt::Debug + Send + Sync {
    fn servers(&self) -> usize;

    async fn connect(
        &self,
        server: usize,
        operation_timeout: Duration,
    ) -> Result<Box<dyn Connection>, Fault>;

    async fn listen(
        &self,
        server: usize,
        session: Uuid,
    ) -> Result<Option<Box<dyn Listener>>, Fault>;
}

#[async_trait]
impl<C: Connector> Dialer for C {
    fn servers(&self) -> usize {
        Connector::servers(self)
    }

    async fn connect(
        &self,
        server: usize,
        operation_timeout: Duration,
    ) -> Result<Box<dyn Connection>, Fault> {
        Ok(Box::new(
            Connector::connect(self, server, operation_timeout).await?,
        ))
    }

    async fn listen(
        &self,
        server: usize,
        session: Uuid,
    ) -> Result<Option<Box<dyn Listener>>, Fault> {
        Connector::listen(self, server, session).await
    }
}

/// How to reach the servers: shared by all links of a client.
#[derive(Debug, Default)]
pub(crate) struct Way {
    /// The server to try next.
    turn: AtomicUsize,
    /// Why the last attempt to connect was refused, if it was.
    refusal: Mutex<Option<Fault>>,
}

impl Way {
    /// Why the last connection could not be made. (Silence is no refusal, nor is a server that is full or still
    /// starting.)
    pub(crate) fn refusal(&self) -> Option<Fault> {
        self.locked().clone()
    }

    fn dialed<T>(&self, made: &Result<T, Fault>) {
        let is_refusal = |fault: &&Fault| !fault.is_silence() && !fault.is_no_room();
        let refusal = made.as_ref().err().filter(is_refusal);
        *self.locked() = refusal.cloned();
    }

    fn locked(&self) -> MutexGuard<'_, Option<Fault>> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    pub(crate) fn new(
        connector: impl Connector,
        operation_timeout: Duration,
        way: &Arc<Way>,
    ) -> Self {
        Self {
            dialer: Arc::new(connector),
            operation_timeout,
            way: Arc::clone(way),
            connection: None,
            number: 0,
        }
    }

    /// Another link to the same servers.
    pub(crate) fn another(&self) -> Self {
        Self {
            dialer: Arc::clone(&self.dialer),
            operation_timeout: self.operation_timeout,
            way: Arc::clone(&self.way),
            connection: None,
            number: 0,
        }
    }

    pub(crate) fn operation_timeout(&self) -> Duration {
        self.operation_timeout
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// One attempt to connect, bounded by the operation timeout. Tries each server in turn until one is a primary.
    /// Dropping the future drops the half-made connection.
    pub(crate) fn dial(
        &self,
    ) -> impl Future<Output = Result<Box<dyn Connection>, Fault>> + 'static {
        let (dialer, operation_timeout) = (Arc::clone(&self.dialer), self.operation_timeout);
        let way = Arc::clone(&self.way);
        async move {
            let made = timeout(
                operation_timeout,
                dial_each(&*dialer, operation_timeout, &way.turn),
            )
            .await;
            let made = made.unwrap_or_else(|_| Err(Fault::timed_out()));
            way.dialed(&made);
            made
        }
    }

    pub(crate) fn put(&mut self, connection: Box<dyn Connection>) {
        self.connection = Some(connection);
        self.number = MADE.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection to the server that was found last, which hears the news of a session. `None`: this engine sends no
    /// news.
    pub(crate) async fn listen(&self, session: Uuid) -> Result<Option<Box<dyn Listener>>, Fault> {
        let server = self.way.turn.load(Ordering::Relaxed) % self.dialer.servers();
        let made = timeout(self.operation_timeout, self.dialer.listen(server, session)).await;
        made.unwrap_or_else(|_| Err(Fault::timed_out()))
    }

    /// The number of the connection, or of the last one.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Drops the connection.
    pub(crate) fn hang_up(&mut self) {
        self.connection = None;
    }

    /// Ends the connection in good order, before its thread or its process ends.
    pub(crate) async fn close(mut self) {
        if let Some(connection) = self.connection.take() {
            let _ = timeout(CLOSING, connection.close()).await;
        }
    }

    /// Connects, unless there is a connection.
    pub(crate) async fn connect(&mut self) -> Result<(), Fault> {
        if self.connection.is_none() {
            let connection = self.dial().await?;
            self.put(connection);
        }
        Ok(())
    }

    /// Runs one verb, bounded by `bound`; `what` is its name in the metrics. Drops the connection after a failure that
    /// leaves its state unknown. Dropping the future drops the connection too.
    pub(crate) async fn run<T>(
        &mut self,
        what: &'static str,
        bound: Duration,
        verb: impl AsyncFnOnce(&mut dyn Store) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.run_many((what, 1), bound, verb).await
    }

    /// [`Self::run`] for a verb of so many operations.
    pub(crate) async fn run_many<T>(
        &mut self,
        (what, size): (&'static str, usize),
        bound: Duration,
        verb: impl AsyncFnOnce(&mut dyn Store) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let since = Since::now();
        let lent = self.lend(bound, async |connection| connection.call(bound, verb).await);
        let result = lent.await;
        meter::statement(what, size, since.elapsed(), result.is_ok());
        result
    }

    /// [`Self::run`] for a batch, which keeps its outcomes.
    pub(crate) async fn send(
        &mut self,
        bound: Duration,
        batch: &mut dyn Batch,
    ) -> Result<(), Fault> {
        let ((what, size), since) = (batch.told(), Since::now());
        let lent = self.lend(bound, async |connection| connection.run(batch, bound).await);
        let result = lent.await;
        meter::statement(what, size, since.elapsed(), result.is_ok());
        result
    }

    /// [`Self::run`] for work that needs the whole connection.
    pub(crate) async fn lend<T>(
        &mut self,
        bound: Duration,
        work: impl AsyncFnOnce(&mut dyn Connection) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let Some(mut connection) = self.connection.take() else {
            return Err(Fault::timed_out());
        };
        let result = timeout(bound, work(&mut *connection)).await;
        let result = result.unwrap_or_else(|_| Err(Fault::timed_out()));
        if !matches!(&result, Err(fault) if fault.kind.ends_connection()) {
            self.connection = Some(connection);
        }
        result
    }
}

/// Gives each server an equal share of the operation timeout, so that a silent one does not keep us from the next.
async fn dial_each(
    dialer: &dyn Dialer,
    operation_timeout: Duration,
    turn: &AtomicUsize,
) -> Result<Box<dyn Connection>, Fault> {
    let count = dialer.servers();
    let share = operation_timeout / u32::try_from(count).unwrap_or(u32::MAX).max(1);
    let first = turn.load(Ordering::Relaxed);
    let mut faults = Vec::new();
    for server in (0..count).map(|step| (first + step) % count) {
        // A dial that is cut off here continues with the next server.
        turn.store((server + 1) % count, Ordering::Relaxed);
        let made = timeout(share, dialer.connect(server, operation_timeout)).await;
        match made.unwrap_or_else(|_| Err(Fault::timed_out())) {
            Err(fault) if matches!(fault.kind, FaultKind::Disconnected | FaultKind::ReadOnly) => {
                faults.push((server, fault));
            }
            // Another server would not help against a refused login or a missing database.
            made => {
                turn.store(server, Ordering::Relaxed);
                return made;
            }
        }
    }
    Err(none_of(faults))
}

/// The error to return when no server is the primary.
fn none_of(mut faults: Vec<(usize, Fault)>) -> Fault {
    if faults.len() == 1
        && let Some((_, fault)) = faults.pop()
    {
        return fault;
    }
    if faults.iter().all(|(_, fault)| fault.is_silence()) {
        return Fault::timed_out();
    }
    faults.sort_by_key(|(server, _)| *server);
    let is_read_only = |(_, fault): &(usize, Fault)| fault.kind == FaultKind::ReadOnly;
    let kind = if faults.iter().any(is_read_only) {
        FaultKind::ReadOnly
    } else {
        FaultKind::Disconnected
    };
    let said: Vec<String> = faults
        .iter()
        .map(|(server, fault)| format!("server {}: {fault}", server + 1))
        .collect();
    Fault::said(kind, said.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_takes_no_writes_is_told_rather_than_one_that_is_out_of_reach() {
        let read_only = || Fault::said(FaultKind::ReadOnly, "a standby");
        let kind = |faults: Vec<Fault>| none_of(faults.into_iter().enumerate().collect()).kind;
        assert_eq!(kind(vec![read_only()]), FaultKind::ReadOnly);
        let mixed = vec![Fault::timed_out(), read_only()];
        assert_eq!(kind(mixed), FaultKind::ReadOnly);
        let silent = vec![Fault::timed_out(), Fault::timed_out()];
        assert_eq!(kind(silent), FaultKind::Disconnected);
    }

    #[test]
    fn what_the_last_dial_was_refused_for_is_told_and_silence_is_no_refusal() {
        let way = Way::default();
        let refused = || Fault::said(FaultKind::Disconnected, "connection refused");
        way.dialed::<()>(&Err(refused()));
        assert!(way.refusal().is_some());
        let silent = vec![(0, Fault::timed_out()), (1, Fault::timed_out())];
        way.dialed::<()>(&Err(none_of(silent)));
        assert!(way.refusal().is_none());
        way.dialed::<()>(&Err(none_of(vec![(0, refused()), (1, Fault::timed_out())])));
        assert!(way.refusal().is_some());
        way.dialed(&Ok(()));
        assert!(way.refusal().is_none());
    }
}

#[cfg(all(test, feature = "postgres"))]
#[path = "link_tests.rs"]
mod servers;
