//! Striped stock: one counter in several rows, each under its own lock, so that several transactions change it at the
//! same time.
//!
//! # Overview
//!
//! A counter that every buyer changes (the stock of a hot item, the seats of a show) is a row that every buyer waits
//! for: one sells after the other. So the application splits the counter into stripes, a row each, in a table of its
//! own. A buyer takes from any stripe that has enough, and N buyers sell at the same time. The counter is the sum of
//! its stripes.
//!
//! rowlock has the locks: a [pessimistic lock](rowlock::LockInTx) for each stripe. The application has the table and
//! the SQL ([`Quantities`]). Every call runs in the caller's transaction, and commits or rolls back with it.
//!
//! # State model
//!
//! ```text
//!              ┌─ take: one stripe has enough ── lock it, or wait for it ── add −n ──────────────────┐
//!   (nothing) ─┼─ take: only several stripes together ── lock all, in ascending order ── add to each ┼─► changed until the
//!              ├─ give back: lock one ── add +n ─────────────────────────────────────────────────────┤   transaction ends
//!              ├─ restock, rebalance: lock all, in ascending order ── add to each ───────────────────┘
//!              └─ take: the sum is too small ──► Short: nothing was changed
//! ```
//!
//! A call asks for one stripe. If that stripe is locked, the call picks another one and waits for it, for 0.1 s; then
//! it goes on to the next. So a transaction that hangs delays few others. While a client finds stripes locked, most of
//! its calls wait for the first stripe that they pick. A call waits for a stripe only if all stripes that it has
//! locked come before that one. So calls wait in ascending order, and two transactions with one call each never
//! deadlock.
//!
//! A client remembers the quantities that it saw. It begins with a stripe that seems to have enough and that few of
//! its own transactions use. Of several such stripes it prefers those that have more. It reads all stripes again when
//! it has taken an eighth of what it saw, and before it answers that there is too little. Its memory decides only
//! where it begins: the statement that takes also checks the quantity.
//!
//! # Trust window
//!
//! None: the locks and the changes belong to the caller's transaction. The sum of all stripes changes by exactly what
//! committed transactions took and gave back, and no stripe goes below zero, because each change is one statement that
//! reads the newest quantity, checks it and writes it. This holds at every level of isolation.
//!
//! # Failure
//!
//! - *The process crashes* between any two statements: the server rolls back, and the stock is as before.
//! - *The process is paused*: its stripe stays locked, and the others sell. A taker who meets it goes on after 0.1 s.
//!   Its transaction keeps what it took until the server ends it: set `idle_in_transaction_session_timeout` or
//!   `wait_timeout`. A call that needs all stripes waits for it ([`Stripes::wait`]).
//! - *The process is cut off*: the server rolls back when it sees the connection close. A commit without an answer is
//!   [`Error::CommitUnknown`].
//! - *The last items are in open transactions*: a taker waits for them, and learns whether they are sold or back.
//! - *Several calls in one transaction* keep their locks until it ends, and may deadlock with another such
//!   transaction. The database ends one of them, and [`Retry`](rowlock::Retry) tries it again. Take different counters
//!   in the same order everywhere.
//!
//! # When not to use it
//!
//! - *The counter is not hot*: one row with one lock is simpler. Stripes help when transactions wait for the counter
//!   most of the time.
//! - *SQLite*: it has one writer at a time. Stripes are correct there, and not faster.
//! - *Most takes need several stripes* (large quantities, little stock in each stripe): each of them locks all
//!   stripes, and so excludes all others.
//! - *The items differ* (numbered seats): lock the seat.
//! - *The exact sum is needed in each sale*: [`Stripes::total`] is one more statement, and is old when it returns.

mod call;
mod change;
mod error;
mod seen;
mod sql;
mod take;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rowlock::Rowlock;
use rowlock::{Error, InvalidError, Name};
use seen::Seen;

pub use error::StripesError;
pub use sql::{OnConnection, Quantities};
pub use take::Taken;

/// A counter in several stripes, each under its own lock: made by [`new`](Self::new). See the [module](self) for the
/// promise, and for when not to use it. Keep it and share it: clones share what they saw of the stripes.
///
/// ```
/// use rowlock_recipes::stripes::{Quantities, Stripes, StripesError};
/// use sqlx::SqliteConnection;
///
/// /// CREATE TABLE stock (item INTEGER, stripe INTEGER, items INTEGER NOT NULL CHECK (items >= 0), PRIMARY KEY (item, stripe))
/// struct Stock {
///     item: i64,
/// }
///
/// impl Quantities for Stock {
///     type Connection = SqliteConnection;
///
///     async fn add(&self, connection: &mut SqliteConnection, stripe: i32, by: i64) -> sqlx::Result<u64> {
///         let add = "UPDATE stock SET items = items + ?3 WHERE item = ?1 AND stripe = ?2 AND items + ?3 >= 0";
///         let done = sqlx::query(add).bind(self.item).bind(stripe).bind(by).execute(connection).await?;
///         Ok(done.rows_affected())
///     }
///
///     async fn read(&self, connection: &mut SqliteConnection) -> sqlx::Result<Vec<(i32, i64)>> {
///         let read = "SELECT stripe, items FROM stock WHERE item = ?1";
///         sqlx::query_as(read).bind(self.item).fetch_all(connection).await
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/shop.db?mode=rwc", dir.path().display());
/// # let pool = sqlx::SqlitePool::connect(&url).await?;
/// # sqlx::raw_sql("CREATE TABLE stock (item INTEGER, stripe INTEGER, items INTEGER NOT NULL CHECK (items >= 0), PRIMARY KEY (item, stripe));
/// #                CREATE TABLE orders (buyer TEXT)").execute(&pool).await?;
/// let rowlock = rowlock::Rowlock::from_pool(&pool).await?;
/// let stripes = Stripes::new(&rowlock, "stock:42", 8, Stock { item: 42 })?;
/// let stripes = &stripes;
///
/// // Once: a row for each stripe, then the stock.
/// for stripe in stripes.numbers() {
///     sqlx::query("INSERT INTO stock VALUES (42, ?, 0)").bind(stripe).execute(&pool).await?;
/// }
/// rowlock
///     .retry()
///     .run(&pool, async |mut tx| { stripes.restock(&mut tx, 100).await })
///     .await?;
///
/// // For each buyer:
/// let sold = rowlock
///     .retry()
///     .run(&pool, async |mut tx| {
///         stripes.take(&mut tx, 3).await?;
///         sqlx::query("INSERT INTO orders VALUES ('Ada')").execute(&mut *tx).await?;
///         Ok::<_, StripesError>(())
///     })
///     .await;
/// match sold {
///     Ok(()) => println!("sold"),
///     Err(StripesError::Short { left, .. }) => println!("only {left} left"),
///     Err(error) => return Err(error.into()),
/// }
/// # let mut tx = pool.begin().await?;
/// # assert_eq!(stripes.total(&mut tx).await?, 97);
/// # Ok(())
/// # }
/// ```
#[must_use = "it does nothing by itself"]
pub struct Stripes<S> {
    rowlock: Rowlock,
    name: Name,
    names: Arc<[Name]>,
    sql: Arc<S>,
    seen: Arc<Seen>,
    wait: Option<Duration>,
}

impl<S> Stripes<S> {
    /// The most stripes that a counter can have.
    pub const MOST: u32 = 256;

    /// The counter `name` in `stripes` stripes: 1 to [`MOST`](Self::MOST). Their locks are called `name/000`,
    /// `name/001`, …, and the application's rows have the numbers 0, 1, … All processes have to use the same number of
    /// stripes.
    ///
    /// Use as many stripes as transactions change the counter at the same time. More stripes make each look and each
    /// rebalance slower.
    ///
    /// # Errors
    ///
    /// [`InvalidError::Setting`] for another number of stripes; [`InvalidError::Name`] for a name that is invalid, or
    /// longer than 251 bytes.
    pub fn new<N>(rowlock: &Rowlock, name: N, stripes: u32, sql: S) -> Result<Self, Error>
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        let name = name.try_into().map_err(Into::into)?;
        if !(1..=Self::MOST).contains(&stripes) {
            return Err(Error::Invalid(InvalidError::Setting {
                setting: "stripes",
                reason: "a counter has 1 to 256 stripes",
            }));
        }
        let names = (0..stripes).map(|stripe| Name::new(&format!("{}/{stripe:03}", name.as_str())));
        let names: Vec<Name> = names.collect::<Result<_, _>>()?;
        Ok(Self {
            rowlock: rowlock.clone(),
            name,
            seen: Arc::new(Seen::new(names.len())),
            names: names.into(),
            sql: Arc::new(sql),
            wait: None,
        })
    }

    /// The longest time that a call waits for locks: at most 366 days; for ever when not set. After that the call
    /// fails with [`Error::WaitTimeout`].
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// The counter's name.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The names of the stripes' locks, in ascending order. A transaction that changes a row without [`Stripes`] locks
    /// its name first.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.names.iter()
    }

    /// The numbers of the stripes, in ascending order.
    #[must_use]
    pub fn numbers(&self) -> Range<i32> {
        0..i32::try_from(self.names.len()).unwrap_or(i32::MAX)
    }
}

impl<S> Clone for Stripes<S> {
    fn clone(&self) -> Self {
        Self {
            rowlock: self.rowlock.clone(),
            name: self.name.clone(),
            names: Arc::clone(&self.names),
            sql: Arc::clone(&self.sql),
            seen: Arc::clone(&self.seen),
            wait: self.wait,
        }
    }
}

impl<S> fmt::Debug for Stripes<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stripes")
            .field("name", &self.name)
            .field("stripes", &self.names.len())
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}
