//! An inbox: each message of a queue, or of a webhook, takes effect once, however often it is delivered.
//!
//! Brokers and webhooks deliver *at least once*: after a lost acknowledgement they deliver again. A consumer that does
//! its work in a transaction of its own database, and remembers the message's id in that transaction, turns this into
//! *once* ([P. Helland, "Life beyond Distributed Transactions"](https://queue.acm.org/detail.cfm?id=3025012), calls it
//! idempotent processing; others call it the inbox pattern).
//!
//! # Failure
//!
//! - *The consumer dies before the commit*: the database rolls back. The broker delivers again, and the work runs.
//! - *It dies after the commit, and before the acknowledgement*: the broker delivers again, and the inbox says
//!   [`Duplicate`](Delivery::Duplicate).
//! - *It is paused in the middle, and the broker delivers the message to another consumer*: that one waits, or gets
//!   [`InFlight`](Delivery::InFlight), until the first transaction has ended. One of them commits.
//! - *The database is out of reach*: [`Failed`](Delivery::Failed), and the broker delivers again.
//! - *Two messages have one id, and different payloads*: the second is put aside
//!   ([`OtherPayload`](Delivery::OtherPayload)). Two messages with different ids and the same payload are two effects:
//!   take the id from the producer, not from the broker.
//!
//! An id is remembered for [`retention`](rowlock::Idempotency::retention) and
//! [`remember_expired`](rowlock::Idempotency::remember_expired), 7 days when not set. A delivery after that runs the
//! work again: set more than the broker's longest delay.

mod delivery;

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;

pub use self::delivery::{Delivery, Reply};
use rowlock::{Begun, Idempotency, Scope};
use rowlock::{Error, Fingerprint, Outcome};
use rowlock::{Pool, RetryTx, Retryable};

/// How many messages of a batch have a transaction at the same time, when nothing else is set.
const AT_ONCE: usize = 4;

const WAIT: Duration = Duration::from_secs(10);

const LONGEST_ID: usize = 255;

/// The messages of one consumer; see [the module](self). Cloning is cheap.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/shop.db?mode=rwc", dir.path().display());
/// # let pool = sqlx::SqlitePool::connect(&url).await?;
/// # sqlx::raw_sql("CREATE TABLE credit (cents INTEGER)").execute(&pool).await?;
/// # let rowlock = rowlock::Rowlock::from_pool(&pool).await?;
/// use rowlock_recipes::inbox::{Inbox, Reply};
///
/// let inbox = Inbox::new(rowlock.idempotency(), &pool, "billing");
/// for _delivery in 0..3 {
///     let delivery = inbox.receive("evt_17", r#"{"cents":500}"#, async |mut tx| {
///         sqlx::query("INSERT INTO credit VALUES (500)").execute(&mut *tx).await?;
///         Ok::<_, rowlock::Error>(())
///     });
///     assert_eq!(delivery.await.reply(), Reply::Ack);
/// }
/// let cents: i64 = sqlx::query_scalar("SELECT sum(cents) FROM credit").fetch_one(&pool).await?;
/// assert_eq!(cents, 500);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "it does nothing by itself"]
pub struct Inbox<P> {
    idempotency: Idempotency,
    pool: P,
    consumer: Box<str>,
    at_once: usize,
    wait: Duration,
}

/// A message of a batch. Pairs of an id and a payload are messages.
pub trait Message {
    /// What the producer calls this message, 1 to 255 bytes: the same in every delivery.
    fn id(&self) -> &[u8];

    /// What it says.
    fn payload(&self) -> &[u8];
}

impl<I: AsRef<[u8]>, B: AsRef<[u8]>> Message for (I, B) {
    fn id(&self) -> &[u8] {
        self.0.as_ref()
    }

    fn payload(&self) -> &[u8] {
        self.1.as_ref()
    }
}

impl<P: Pool> Inbox<P> {
    /// The inbox of `consumer`, whose work is in transactions of `pool`. Each consumer of a message has an inbox of
    /// its own; processes of one consumer share the name. It is the scope of the records: 1 to 255 bytes that do not
    /// begin with `http:`.
    ///
    /// `idempotency` has the settings: [`retention`](Idempotency::retention), [`retry`](Idempotency::retry) and
    /// others. The waiting is the inbox's own: [`wait`](Self::wait).
    pub fn new(idempotency: Idempotency, pool: &P, consumer: impl Into<String>) -> Self
    where
        P: Clone,
    {
        Self {
            idempotency,
            pool: pool.clone(),
            consumer: consumer.into().into(),
            at_once: AT_ONCE,
            wait: WAIT,
        }
    }

    /// How long a delivery waits for another consumer that works on the same message, before it is
    /// [`InFlight`](Delivery::InFlight): 10 s when not set, at most 366 days. A short wait lets a broker deliver the
    /// message again and again meanwhile, up to its limit.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// How many messages of a [batch](Self::receive_all) have a transaction at the same time: 4 when not set, and 1 at
    /// least. The pool needs as many connections. With 1 the messages are received one after the other, in their
    /// order.
    pub fn at_once(mut self, messages: usize) -> Self {
        self.at_once = messages.max(1);
        self
    }

    /// Receives a delivery of the message `id`: runs `work` in a transaction, unless an earlier delivery did, and
    /// commits its writes together with the id.
    ///
    /// `id` is what the producer calls the message, 1 to 255 bytes. `work` gets the transaction as in
    /// [`Retry::run`](rowlock::Retry::run): after a conflict it runs again, and its effects outside of the transaction
    /// happen as often.
    ///
    /// Errors come as [`Failed`](Delivery::Failed).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future while `work` runs rolls the transaction back. After `work`, the commit goes on in the
    /// background. In both cases the next delivery finds out.
    pub async fn receive<E, F>(
        &self,
        id: impl AsRef<[u8]>,
        payload: impl AsRef<[u8]>,
        mut work: impl FnMut(RetryTx<P::Database>) -> F,
    ) -> Delivery<E>
    where
        E: From<sqlx::Error> + From<Error> + Retryable,
        F: Future<Output = Result<(), E>>,
    {
        let id = id.as_ref();
        if id.is_empty() || id.len() > LONGEST_ID {
            return Delivery::InvalidId;
        }
        let request = Fingerprint::of(payload);
        let work = |tx| {
            let work = work(tx);
            async { work.await.map(|()| Outcome::empty()) }
        };
        let consumer = self.consumer.as_bytes();
        let idempotency = self.idempotency.clone().wait(self.wait);
        let run = idempotency.run_in_tx(&self.pool, Scope(consumer).key(id), request, work);
        match run.await {
            Ok(Begun::New(_)) => Delivery::Done,
            Ok(Begun::Replay(_) | Begun::Expired) => Delivery::Duplicate,
            Ok(Begun::InFlight(_)) => Delivery::InFlight,
            Ok(Begun::Mismatch) => Delivery::OtherPayload,
            Ok(Begun::Unknown(_) | Begun::Poisoned { .. }) => Delivery::Undecided,
            Err(error) => Delivery::Failed(error),
        }
    }

    /// Receives a batch: each message in a transaction of its own, some [at the same time](Self::at_once). The
    /// deliveries are in the order of the messages: one that fails keeps no other one back.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/shop.db?mode=rwc", dir.path().display());
    /// # let pool = sqlx::SqlitePool::connect(&url).await?;
    /// # sqlx::raw_sql("CREATE TABLE credit (cents INTEGER CHECK (cents > 0))").execute(&pool).await?;
    /// # let rowlock = rowlock::Rowlock::from_pool(&pool).await?;
    /// use rowlock_recipes::inbox::{Inbox, Reply};
    ///
    /// let inbox = Inbox::new(rowlock.idempotency(), &pool, "billing");
    /// let batch = [("evt_1", "500"), ("evt_2", "-1"), ("evt_3", "700")];
    /// let deliveries = inbox.receive_all(&batch, async |mut tx, (_, cents)| {
    ///     sqlx::query("INSERT INTO credit VALUES (?)").bind(cents).execute(&mut *tx).await?;
    ///     Ok::<_, rowlock::Error>(())
    /// });
    /// let replies: Vec<_> = deliveries.await.iter().map(|delivery| delivery.reply()).collect();
    /// assert_eq!(replies, [Reply::Ack, Reply::Nack, Reply::Ack]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// As for [`receive`](Self::receive). Acknowledge nothing of the batch then.
    pub async fn receive_all<'a, M, E, F>(
        &self,
        messages: &'a [M],
        work: impl Fn(RetryTx<P::Database>, &'a M) -> F,
    ) -> Vec<Delivery<E>>
    where
        M: Message,
        E: From<sqlx::Error> + From<Error> + Retryable,
        F: Future<Output = Result<(), E>>,
    {
        let work = &work;
        let receive = |message: &'a M| {
            self.receive(message.id(), message.payload(), move |tx| work(tx, message))
        };
        let deliveries = stream::iter(messages.iter().map(receive));
        deliveries.buffered(self.at_once).collect().await
    }
}
