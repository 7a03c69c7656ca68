//! A connection with a bound on every call. A connection on which a call was cut off is dropped and made anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::timeout;
use uuid::Uuid;

use super::endpoints::{Dialer, Endpoints, dial_each};
use super::job::Batch;
use super::slot::{Cuts, Made, Precedence, Slot, TIME_BEFORE_CUT};
use crate::model::Moment;
use crate::runtime::base::meter;
use crate::runtime::base::meter::Since;
use crate::store::driver::connector::{Connection, Connector};
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::queue::Listener;

/// A connection of our own, outside every pool. Several links may share one: then their calls take turns.
///
/// sqlx has no time-outs and its sockets have no keep-alive: a half-open connection hangs for ever. So every await
/// here has a bound, and a connection on which a call was cut off is dropped and never used again.
#[derive(Debug)]
pub(crate) struct Link {
    dialer: Arc<dyn Dialer>,
    operation_timeout: Duration,
    endpoints: Arc<Endpoints>,
    slot: Arc<Slot>,
    is_urgent: bool,
    /// Of an urgent link, from the moment that it has something to send.
    precedence: Option<Precedence>,
    /// When the last call was sent; `None`: it was not, because the connection could not be had in time.
    sent: Option<Moment>,
    cuts: Cuts,
    /// How long an urgent link can wait for a call of another one.
    wait: Duration,
    keeps: bool,
}

/// How long the end of a connection may take.
const CLOSING: Duration = Duration::from_secs(1);

/// How many connections this process has made.
static MADE: AtomicU64 = AtomicU64::new(0);

impl Link {
    pub(crate) fn new(
        connector: impl Connector,
        operation_timeout: Duration,
        endpoints: &Arc<Endpoints>,
    ) -> Self {
        let dialer = Arc::new(connector);
        Self::to(
            dialer,
            operation_timeout,
            Arc::clone(endpoints),
            Arc::default(),
        )
    }

    fn to(
        dialer: Arc<dyn Dialer>,
        operation_timeout: Duration,
        endpoints: Arc<Endpoints>,
        slot: Arc<Slot>,
    ) -> Self {
        Self {
            dialer,
            operation_timeout,
            endpoints,
            slot,
            is_urgent: false,
            precedence: None,
            sent: None,
            cuts: Cuts::default(),
            wait: TIME_BEFORE_CUT,
            keeps: false,
        }
    }

    /// Another link to the same servers.
    pub(crate) fn another(&self) -> Self {
        self.with(Arc::default())
    }

    /// Another link that shares the connection.
    pub(crate) fn beside(&self) -> Self {
        self.with(Arc::clone(&self.slot))
    }

    fn with(&self, slot: Arc<Slot>) -> Self {
        let (dialer, endpoints) = (Arc::clone(&self.dialer), Arc::clone(&self.endpoints));
        Self::to(dialer, self.operation_timeout, endpoints, slot)
    }

    /// The same link, which others that share its connection must not keep waiting.
    pub(crate) fn urgent(self) -> Self {
        Self {
            is_urgent: true,
            ..self
        }
    }

    /// From now on this urgent link can wait for so long for a call of another one.
    pub(crate) fn can_wait(&mut self, wait: Duration) {
        self.wait = wait;
    }

    fn time_before_cut(&self) -> Option<Duration> {
        (!self.is_urgent).then(|| self.cuts.time_before_cut())
    }

    /// Whether the last call was cut off for an urgent one.
    pub(crate) fn was_cut(&self) -> bool {
        self.cuts.0 > 0
    }

    pub(crate) fn operation_timeout(&self) -> Duration {
        self.operation_timeout
    }

    /// Whether there is a connection. (While another link uses it, or makes it, there is one.)
    pub(crate) fn is_connected(&self) -> bool {
        self.slot.try_connection().is_none_or(|made| made.is_some())
    }

    /// The largest outcome that the server accepts, in bytes.
    pub(crate) fn largest(&self) -> usize {
        match self.slot.largest.load(Ordering::Relaxed) {
            0 => usize::MAX,
            largest => largest,
        }
    }

    pub(crate) fn set_largest(&self, bytes: usize) {
        self.slot.largest.store(bytes, Ordering::Relaxed);
    }

    /// Whether there is a connection, of which it is known how large its outcomes may be.
    pub(crate) fn is_known(&self) -> bool {
        self.slot.largest.load(Ordering::Relaxed) > 0 && self.is_connected()
    }

    /// When the last call was sent; `None`: it was not, because another link had the connection, or there was none.
    pub(crate) fn sent(&self) -> Option<Moment> {
        self.sent
    }

    /// One attempt to connect, bounded by the operation timeout, unless there is a connection. Tries each server in
    /// turn until one is a primary. Dropping the future drops the half-made connection.
    ///
    /// `asks`: also for the largest outcome. (It can be asked while other statements fail.) Both are one attempt, so
    /// that a job whose time is over does not wait for a server that accepts connections and stays silent.
    pub(crate) fn dial(&self, asks: bool) -> impl Future<Output = Result<(), Fault>> + 'static {
        let link = Self {
            is_urgent: self.is_urgent,
            cuts: self.cuts,
            wait: self.wait,
            ..self.beside()
        };
        async move {
            let slot = &*link.slot;
            let _precedes = link
                .is_urgent
                .then(|| Precedence::on(&link.slot, link.wait));
            let mut lock = slot.connection(link.is_urgent).await;
            let made = lock.take();
            let ready = async {
                let mut made = match made {
                    Some(made) => made,
                    None => link.make().await?,
                };
                if asks && slot.largest.load(Ordering::Relaxed) == 0 {
                    let asked = made.connection.largest_outcome();
                    let asked = timeout(link.operation_timeout, asked).await;
                    link.set_largest(asked.unwrap_or_else(|_| Err(Fault::timed_out()))?);
                }
                Ok(made)
            };
            let ready = slot.unless_cut(link.time_before_cut(), ready).await;
            *lock = Some(ready.unwrap_or_else(|| Err(Fault::timed_out()))?);
            Ok(())
        }
    }

    fn precede(&mut self) {
        if self.is_urgent && self.precedence.is_none() {
            self.precedence = Some(Precedence::on(&self.slot, self.wait));
        }
    }

    async fn make(&self) -> Result<Made, Fault> {
        let dialed = timeout(
            self.operation_timeout,
            self.endpoints.call(dial_each(
                &*self.dialer,
                self.operation_timeout,
                &self.endpoints.turn,
            )),
        )
        .await;
        let dialed = dialed.unwrap_or_else(|_| Err(Fault::timed_out()));
        self.endpoints.dialed(&dialed);
        let connection = dialed?;
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        self.slot.number.store(number, Ordering::Relaxed);
        self.set_largest(0);
        let used = Moment::now();
        Ok(Made { connection, used })
    }

    #[cfg(test)]
    pub(crate) fn put(&mut self, connection: Box<dyn Connection>) {
        let used = Moment::now();
        *self.slot.try_connection().unwrap() = Some(Made { connection, used });
    }

    /// A connection to the server that was found last, which hears the news of a session. `None`: as in
    /// [`Connector::listen`].
    pub(crate) async fn listen(&self, session: Uuid) -> Result<Option<Box<dyn Listener>>, Fault> {
        let server = self.endpoints.turn.load(Ordering::Relaxed) % self.dialer.servers();
        let dialed = self.endpoints.call(self.dialer.listen(server, session));
        let made = timeout(self.operation_timeout, dialed).await;
        made.unwrap_or_else(|_| Err(Fault::timed_out()))
    }

    /// The number of the connection, or of the last one: every connection of this process has its own.
    pub(crate) fn number(&self) -> u64 {
        self.slot.number.load(Ordering::Relaxed)
    }

    /// Ends the connection in good order. The next call makes another one.
    pub(crate) async fn hang_up(&mut self) {
        let made = self.slot.connection(self.is_urgent).await.take();
        end(made).await;
    }

    /// Ends the connection in good order, before its thread or its process ends, unless another link shares it.
    pub(crate) async fn close(mut self) {
        // It has a share in the connection, too.
        self.precedence = None;
        if Arc::strong_count(&self.slot) == 1 {
            self.hang_up().await;
        }
    }

    /// Connects, unless there is a connection.
    pub(crate) async fn connect(&mut self) -> Result<(), Fault> {
        // (An urgent link that could not send makes sure.)
        if self.precedence.is_none() && self.is_connected() {
            return Ok(());
        }
        self.precede();
        self.dial(false).await
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
        let call = async |connection: &mut dyn Connection| connection.call(bound, verb).await;
        counted((what, size), self.lend(bound, call)).await
    }

    /// [`Self::run`] for a batch, which keeps its outcomes.
    pub(crate) async fn send(
        &mut self,
        bound: Duration,
        batch: &mut dyn Batch,
    ) -> Result<(), Fault> {
        let told = batch.told();
        let call = async |connection: &mut dyn Connection| connection.run(batch, bound).await;
        counted(told, self.lend(bound, call)).await
    }

    /// [`Self::run`] for work that needs the whole connection.
    pub(crate) async fn lend<T>(
        &mut self,
        bound: Duration,
        work: impl AsyncFnOnce(&mut dyn Connection) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.sent = None;
        if self.is_urgent {
            self.wait = bound;
            self.precede();
        }
        let (asked, patience) = (Moment::now(), self.time_before_cut());
        // A wait leaves time for the call. (A call before an urgent one has no more time than that.)
        let longest = if self.is_urgent { bound * 2 } else { bound / 2 };
        let waited = timeout(longest, self.slot.connection(self.is_urgent)).await;
        // It is put back when the work has come to an end. (If another link was cut off, there is none.)
        let lock = waited.ok().and_then(|mut lock| Some((lock.take()?, lock)));
        let Some((mut made, mut lock)) = lock else {
            return Err(Fault::timed_out());
        };
        self.sent = Some(Moment::now());
        let waited = if self.is_urgent {
            Duration::ZERO
        } else {
            asked.elapsed()
        };
        let left = bound.saturating_sub(waited.min(bound / 2));
        let working = timeout(left, self.endpoints.call(work(&mut *made.connection)));
        let lent = self.slot.unless_cut(patience, working).await;
        self.cuts.note(lent.is_none());
        self.precedence = None;
        let lent = lent.and_then(Result::ok);
        let lent = lent.unwrap_or_else(|| Err(Fault::timed_out()));
        made.used = Moment::now();
        if !matches!(&lent, Err(fault) if fault.kind.ends_connection()) {
            *lock = Some(made);
        }
        lent
    }
}

/// A statement of so many operations, in the metrics.
async fn counted<T>(
    (what, size): (&'static str, usize),
    call: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    let since = Since::now();
    let result = call.await;
    meter::statement(what, size, since.elapsed(), result.is_ok());
    result
}

async fn end(made: Option<Made>) {
    if let Some(made) = made {
        let _ = timeout(CLOSING, made.connection.close()).await;
    }
}

#[path = "link_idle.rs"]
mod idle;

#[cfg(all(test, feature = "postgres"))]
#[path = "link_tests.rs"]
mod servers;

#[cfg(all(test, feature = "postgres", feature = "sqlite"))]
#[path = "shared_link_tests.rs"]
mod shared;
