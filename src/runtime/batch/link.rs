//! A connection with a bound on every call. A connection on which a call was cut off is dropped and made anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::select;
use tokio::time::timeout;
use uuid::Uuid;

use super::job::Batch;
use super::slot::{Made, Precedence, Slot};
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
    is_urgent: bool,
    /// Of an urgent link, from the moment that it has something to send.
    precedence: Option<Precedence>,
    /// When the last call was sent; `None`: it was not, because the connection could not be had in time.
    sent: Option<Moment>,
    keeps: bool,
}

/// How long the end of a connection may take.
const CLOSING: Duration = Duration::from_secs(1);

/// A connection that nobody has used for this long is closed, if nobody [keeps](Link::keep) it.
const IDLE: Duration = Duration::from_mins(1);

/// How many connections this process has made.
static MADE: AtomicU64 = AtomicU64::new(0);

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
            precedence: None,
            sent: None,
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
            precedence: None,
            sent: None,
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
        self.slot.try_place().is_none_or(|place| place.is_some())
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
        match self.slot.try_place() {
            Some(place) => Some(place.as_ref()?.used + IDLE),
            // In use.
            None => Some(Moment::now() + IDLE),
        }
    }

    /// Closes the connection when nobody has used it for long, and nobody keeps it.
    pub(crate) async fn close_idle(&mut self) {
        if !self.idle_at().is_some_and(Moment::has_passed) {
            return;
        }
        let mut place = self.slot.place(self.is_urgent).await;
        let is_idle = |made: &Made| (made.used + IDLE).has_passed();
        if place.as_ref().is_some_and(is_idle) {
            end(place.take()).await;
        }
    }

    /// Waits for `news`. Closes the connection when it is idle for long.
    pub(crate) async fn rest(&mut self, news: impl Future<Output = ()>) {
        self.precedence = None;
        let mut news = std::pin::pin!(news);
        while let Some(at) = self.idle_at() {
            select! {
                () = &mut news => return,
                () = sleep_until(at) => self.close_idle().await,
            }
        }
        news.await;
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
    pub(crate) fn dial(&self) -> impl Future<Output = Result<(), Fault>> + 'static {
        self.reach(false)
    }

    /// [`Self::dial`], which also asks for the largest outcome. (It can be asked while other statements fail.) Both
    /// are one attempt, so that a job whose time is over does not wait for a server that accepts connections and stays
    /// silent.
    pub(crate) fn dial_and_ask(&self) -> impl Future<Output = Result<(), Fault>> + 'static {
        self.reach(true)
    }

    fn reach(&self, asks: bool) -> impl Future<Output = Result<(), Fault>> + 'static {
        let link = Self {
            is_urgent: self.is_urgent,
            ..self.beside()
        };
        async move {
            let slot = &*link.slot;
            let _precedes = link.is_urgent.then(|| Precedence::on(&link.slot));
            let mut place = slot.place(link.is_urgent).await;
            let made = place.take();
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
            *place = Some(slot.unless_cut(link.is_urgent, ready).await?);
            Ok(())
        }
    }

    fn precede(&mut self) {
        if self.is_urgent && self.precedence.is_none() {
            self.precedence = Some(Precedence::on(&self.slot));
        }
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
        *self.slot.try_place().unwrap() = Some(Made { connection, used });
    }

    /// A connection to the server that was found last, which hears the news of a session. `None`: this engine sends no
    /// news.
    pub(crate) async fn listen(&self, session: Uuid) -> Result<Option<Box<dyn Listener>>, Fault> {
        let server = self.way.turn.load(Ordering::Relaxed) % self.dialer.servers();
        let dialed = self.way.call(self.dialer.listen(server, session));
        let made = timeout(self.operation_timeout, dialed).await;
        made.unwrap_or_else(|_| Err(Fault::timed_out()))
    }

    /// The number of the connection, or of the last one: every connection of this process has its own.
    pub(crate) fn number(&self) -> u64 {
        self.slot.number.load(Ordering::Relaxed)
    }

    /// Ends the connection in good order. The next call makes another one.
    pub(crate) async fn hang_up(&mut self) {
        let mut place = self.slot.place(self.is_urgent).await;
        end(place.take()).await;
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
        self.dial().await
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
        self.precede();
        let (slot, is_urgent) = (&*self.slot, self.is_urgent);
        let (way, sent) = (&self.way, &mut self.sent);
        *sent = None;
        let lent = async {
            let mut place = slot.place(is_urgent).await;
            // It is put back when the work has come to an end. (If another link was cut off, there is none.)
            let Some(mut made) = place.take() else {
                return Err(Fault::timed_out());
            };
            *sent = Some(Moment::now());
            let working = way.call(work(&mut *made.connection));
            let result = slot.unless_cut(is_urgent, working).await;
            made.used = Moment::now();
            if !matches!(&result, Err(fault) if fault.kind.ends_connection()) {
                *place = Some(made);
            }
            result
        };
        let lent = timeout(bound, lent).await;
        if self.sent.is_some() {
            self.precedence = None;
        }
        lent.unwrap_or_else(|_| Err(Fault::timed_out()))
    }
}

async fn end(made: Option<Made>) {
    if let Some(made) = made {
        let _ = timeout(CLOSING, made.connection.close()).await;
    }
}

#[cfg(all(test, feature = "postgres"))]
#[path = "link_tests.rs"]
mod servers;

#[cfg(all(test, feature = "postgres", feature = "sqlite"))]
#[path = "shared_link_tests.rs"]
mod shared;
