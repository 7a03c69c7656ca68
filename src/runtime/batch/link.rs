//! A connection with a bound on every call. A connection on which a call was cut off is dropped and made anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::select;
use tokio::sync::{MutexGuard, Notify};
use tokio::time::timeout;
use uuid::Uuid;

use super::job::Batch;
use super::way::{Dialer, Way, dial_each};
use crate::model::Moment;
use crate::runtime::base::meter;
use crate::runtime::base::meter::Since;
use crate::runtime::base::timer::sleep_until;
use crate::store::driver::connect::{Connection, Connector};
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
    way: Arc<Way>,
    slot: Arc<Slot>,
    /// It does not wait for long while another link has the connection; see [`Slot::urgent`].
    is_urgent: bool,
    keeps: bool,
}

/// How long the end of a connection may take.
const CLOSING: Duration = Duration::from_secs(1);

/// A connection that nobody has used for this long is closed, if nobody [keeps](Link::keep) it.
const IDLE: Duration = Duration::from_mins(1);

/// How many connections this process has made.
static MADE: AtomicU64 = AtomicU64::new(0);

/// Where one connection is, or will be.
#[derive(Debug, Default)]
struct Slot {
    /// Locked during a call, and while the connection is made.
    connection: tokio::sync::Mutex<Option<Made>>,
    /// The number of the connection, or of the last one.
    number: AtomicU64,
    /// How many links [keep](Link::keep) it.
    keepers: AtomicUsize,
    /// Cuts off the call of a link that is not urgent.
    cut: Notify,
}

#[derive(Debug)]
struct Made {
    connection: Box<dyn Connection>,
    /// The largest outcome that its server accepts, in bytes.
    largest: usize,
    used: Moment,
}

impl Slot {
    /// The connection, for an urgent link: renewals must not wait while a look, or a login of another link, gets no
    /// answer. After each `patience` the call that has the connection is cut off.
    async fn urgent(&self, patience: Duration) -> MutexGuard<'_, Option<Made>> {
        let mut lock = std::pin::pin!(self.connection.lock());
        loop {
            match timeout(patience, &mut lock).await {
                Ok(locked) => return locked,
                Err(_) => self.cut.notify_waiters(),
            }
        }
    }

    /// Ends early when an urgent link needs the connection.
    async fn unless_cut<T>(
        &self,
        is_urgent: bool,
        work: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let cut = self.cut.notified();
        select! {
            biased;
            done = work => done,
            () = cut, if !is_urgent => Err(Fault::timed_out()),
        }
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
            slot: Arc::default(),
            is_urgent: false,
            keeps: false,
        }
    }

    /// Another link to the same servers.
    pub(crate) fn another(&self) -> Self {
        Self {
            slot: Arc::default(),
            ..self.beside()
        }
    }

    /// Another link that shares the connection.
    pub(crate) fn beside(&self) -> Self {
        Self {
            dialer: Arc::clone(&self.dialer),
            operation_timeout: self.operation_timeout,
            way: Arc::clone(&self.way),
            slot: Arc::clone(&self.slot),
            is_urgent: false,
            keeps: false,
        }
    }

    /// The same link, which others that share its connection must not keep waiting.
    pub(crate) fn urgent(self) -> Self {
        Self {
            is_urgent: true,
            ..self
        }
    }

    pub(crate) fn operation_timeout(&self) -> Duration {
        self.operation_timeout
    }

    /// Whether there is a connection. (While another link uses it, or makes it, there is one.)
    pub(crate) fn is_connected(&self) -> bool {
        let connection = self.slot.connection.try_lock();
        connection.map_or(true, |made| made.is_some())
    }

    /// Whether the connection stays when nobody uses it.
    pub(crate) fn keep(&mut self, keeps: bool) {
        if keeps && !self.keeps {
            self.slot.keepers.fetch_add(1, Ordering::Relaxed);
        } else if self.keeps && !keeps {
            self.slot.keepers.fetch_sub(1, Ordering::Relaxed);
        }
        self.keeps = keeps;
    }

    /// When [`Self::close_idle`] has to close the connection; `None`: there is none, or somebody keeps it.
    pub(crate) fn idle_at(&self) -> Option<Moment> {
        if self.slot.keepers.load(Ordering::Relaxed) > 0 {
            return None;
        }
        match self.slot.connection.try_lock() {
            Ok(made) => Some(made.as_ref()?.used + IDLE),
            // In use.
            Err(_) => Some(Moment::now() + IDLE),
        }
    }

    /// Closes the connection when nobody has used it for long, and nobody keeps it.
    pub(crate) async fn close_idle(&mut self) {
        if self.idle_at().is_some_and(Moment::has_passed) {
            self.hang_up().await;
        }
    }

    /// Waits for `news`. Closes the connection when it is idle for long.
    pub(crate) async fn rest(&mut self, news: impl Future<Output = ()>) {
        let mut news = std::pin::pin!(news);
        while let Some(at) = self.idle_at() {
            select! {
                () = &mut news => return,
                () = sleep_until(at) => self.close_idle().await,
            }
        }
        news.await;
    }

    /// One attempt to connect, bounded by the operation timeout, unless there is a connection. Tries each server in
    /// turn until one is a primary. Returns the largest outcome that the server accepts. (It can be asked while other
    /// statements fail. It is part of the attempt, so that a job whose time is over does not wait for a server that
    /// accepts connections and stays silent.) Dropping the future drops the half-made connection.
    pub(crate) fn dial(&self) -> impl Future<Output = Result<usize, Fault>> + 'static {
        self.beside().reach(Duration::MAX)
    }

    async fn reach(self, patience: Duration) -> Result<usize, Fault> {
        let slot = &*self.slot;
        let mut place = if self.is_urgent {
            slot.urgent(patience).await
        } else {
            slot.connection.lock().await
        };
        if let Some(made) = &*place {
            return Ok(made.largest);
        }
        let made = slot.unless_cut(self.is_urgent, self.make()).await?;
        let largest = made.largest;
        *place = Some(made);
        Ok(largest)
    }

    async fn make(&self) -> Result<Made, Fault> {
        let dialed = timeout(
            self.operation_timeout,
            self.way.call(dial_each(
                &*self.dialer,
                self.operation_timeout,
                &self.way.turn,
            )),
        )
        .await;
        let dialed = dialed.unwrap_or_else(|_| Err(Fault::timed_out()));
        self.way.dialed(&dialed);
        let mut connection = dialed?;
        let asked = timeout(self.operation_timeout, connection.largest_outcome()).await;
        let largest = asked.unwrap_or_else(|_| Err(Fault::timed_out()))?;
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        self.slot.number.store(number, Ordering::Relaxed);
        Ok(Made {
            connection,
            largest,
            used: Moment::now(),
        })
    }

    #[cfg(test)]
    pub(crate) fn put(&mut self, connection: Box<dyn Connection>) {
        let largest = usize::MAX;
        let mut place = self.slot.connection.try_lock().unwrap();
        *place = Some(Made {
            connection,
            largest,
            used: Moment::now(),
        });
    }

    /// A connection to the server that was found last, which hears the news of a session. `None`: this engine sends no
    /// news.
    pub(crate) async fn listen(&self, session: Uuid) -> Result<Option<Box<dyn Listener>>, Fault> {
        let server = self.way.turn.load(Ordering::Relaxed) % self.dialer.servers();
        let made = timeout(self.operation_timeout, self.dialer.listen(server, session)).await;
        made.unwrap_or_else(|_| Err(Fault::timed_out()))
    }

    /// The number of the connection, or of the last one: every connection of this process has its own.
    pub(crate) fn number(&self) -> u64 {
        self.slot.number.load(Ordering::Relaxed)
    }

    /// Ends the connection in good order. The next call makes another one.
    pub(crate) async fn hang_up(&mut self) {
        let mut place = self.slot.connection.lock().await;
        if let Some(made) = place.take() {
            let _ = timeout(CLOSING, made.connection.close()).await;
        }
    }

    /// Ends the connection in good order, before its thread or its process ends, unless another link shares it.
    pub(crate) async fn close(mut self) {
        if Arc::strong_count(&self.slot) == 1 {
            self.hang_up().await;
        }
    }

    /// Connects, unless there is a connection.
    pub(crate) async fn connect(&mut self) -> Result<(), Fault> {
        self.dial().await.map(drop)
    }

    /// [`Self::connect`] of an urgent link, which waits this long for another link that has the connection.
    pub(crate) async fn connect_soon(&mut self, patience: Duration) -> Result<(), Fault> {
        let urgent = self.beside().urgent();
        urgent.reach(patience).await.map(drop)
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
        let (slot, is_urgent) = (&*self.slot, self.is_urgent);
        let lent = async {
            let mut place = if is_urgent {
                slot.urgent(bound / 2).await
            } else {
                slot.connection.lock().await
            };
            // It is put back when the work has come to an end.
            let mut made = match place.take() {
                Some(made) => made,
                // Another link was cut off.
                None => slot.unless_cut(is_urgent, self.make()).await?,
            };
            let working = self.way.call(work(&mut *made.connection));
            let result = slot.unless_cut(is_urgent, working).await;
            made.used = Moment::now();
            if !matches!(&result, Err(fault) if fault.kind.ends_connection()) {
                *place = Some(made);
            }
            result
        };
        let lent = timeout(bound, lent).await;
        lent.unwrap_or_else(|_| Err(Fault::timed_out()))
    }
}

#[cfg(all(test, feature = "postgres"))]
#[path = "link_tests.rs"]
mod servers;

#[cfg(all(test, feature = "postgres", feature = "sqlite"))]
#[path = "shared_link_tests.rs"]
mod shared;
