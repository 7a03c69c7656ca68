//! The client: one handle for all engines, and how it is made.

mod builder;
mod holder;

use std::sync::Arc;
use std::time::Duration;

pub use builder::Builder;
use tokio::task::JoinHandle;

use crate::idempotency::{FormTokens, Idempotency};
use crate::lock::{InTx, Lock, Owner, Version};
use crate::model::{Engine, Error, LockInfo, Name, Subject, Unfinished};
use crate::runtime::Core;
use crate::runtime::clean::BATCH;
use crate::runtime::errands::ErrandKind;
use crate::runtime::head::{Head, Manner};
use crate::runtime::verbs::walk::Walk;
use crate::store::Store;
use crate::store::row::LockRow;
use crate::transaction::Pool;
use crate::transaction::Retry;
use crate::transaction::Transaction;

/// A client of the locks in one database. Cloning is cheap, and clones share everything.
///
/// It has a few connections of its own, outside every pool, and two threads; they end when the last
/// clone and the last guard are dropped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/locks.db", dir.path().display());
/// let rowlock = rowlock::Rowlock::connect(&url).await?;
/// let held = rowlock.lock("stock:42").acquire().await?;
/// println!("holding {} with fence {}", held.name(), held.fence());
/// let _ = held.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Rowlock {
    core: Arc<Core>,
    applied: Arc<[String]>,
}

impl Rowlock {
    /// How many rows of one kind the cleaner in the background removes in one transaction.
    pub const CLEAN_BATCH: u32 = BATCH;

    /// Connects to `url` and brings its tables up to date.
    ///
    /// `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, `mysql://…`, `mariadb://…` or `sqlite:PATH`
    /// (a file that is not there is made).
    ///
    /// Several servers are written as `HOST1:PORT1,HOST2:PORT2`, and tried in turn until one takes writes, now and after a
    /// failover. Behind PgBouncer in transaction mode nothing is needed; `rowlock_pooler=transaction` or
    /// `rowlock_pooler=session` in a PostgreSQL URL says how connections are shared where that cannot be found out. See
    /// `docs/CLUSTERS.md`.
    ///
    /// # Errors
    ///
    /// A URL that cannot be used, an unreachable database, one that takes no writes, a refused login, tables that cannot be
    /// made or do not fit this library: each message says what to do.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no client behind. A migration that has begun is finished, or rolled
    /// back, in the background.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder().connect(url).await
    }

    /// Uses the database of the application's own sqlx pool (`PgPool`, `MySqlPool`, `SqlitePool`).
    ///
    /// The pool only tells where and how to connect: no connection is taken from it, so that
    /// neither can starve the other.
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect).
    pub async fn from_pool<P: Pool>(pool: &P) -> Result<Self, Error> {
        Self::builder().from_pool(pool).await
    }

    /// Settings, before connecting.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The lock called `name`: 1 to 255 bytes of UTF-8 without NUL, compared byte by byte.
    pub fn lock<N>(&self, name: N) -> Lock
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        Lock::new(Arc::clone(&self.core), name.try_into().map_err(Into::into))
    }

    /// Locks in a transaction of the application's own pool; see [`InTx`].
    pub fn in_tx<'t, T: Transaction>(&self, tx: &'t mut T) -> InTx<'t, T> {
        InTx::new(Arc::clone(&self.core), tx)
    }

    /// The version of `name`, to be [advanced](InTx::advance) later if nobody was granted the name
    /// since; see [`Version`]. Read it *before* the data that it stands for, and begin the transaction that reads
    /// them after it, not before. Inside a transaction, [`InTx::version`] is the one to use.
    ///
    /// # Errors
    ///
    /// A refused name, a database out of reach, or a damaged row.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn version<N>(&self, name: N) -> Result<Version, Error>
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        Version::read(&self.core, name.try_into().map_err(Into::into)?).await
    }

    /// Idempotency: an effect that happens once for a key; see [`Idempotency`].
    pub fn idempotency(&self) -> Idempotency {
        Idempotency::new(&self.core)
    }

    /// Tokens for forms that are to be submitted once; see [`FormTokens`].
    pub fn form_tokens(&self) -> FormTokens {
        FormTokens::new(&self.core)
    }

    /// A new owner, for locks that are entered again; see [`Owner`].
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner::new(&self.core)
    }

    /// Who holds `name` right now, if anybody does.
    ///
    /// A lease whose guard was dropped a moment ago may be shown still: [`flush`](Self::flush) waits for its release.
    ///
    /// # Errors
    ///
    /// A refused name, a database out of reach, or a damaged row.
    pub async fn inspect<N>(&self, name: N) -> Result<Option<LockInfo>, Error>
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        let name = name.try_into().map_err(Into::into)?;
        let head = self.core.look(Subject::Lock(name.clone()), "inspect");
        let inspect = async move |store: &mut dyn Store| store.lock_inspect(&name).await;
        let row = self.core.ask_aside(head, inspect).await?;
        row.map(LockRow::info).transpose()
    }

    /// All locks that somebody holds right now, by name. It reads the whole table, on a connection of its own.
    ///
    /// # Errors
    ///
    /// A database out of reach, or a damaged row.
    pub async fn list(&self) -> Result<Vec<LockInfo>, Error> {
        let list = async |store: &mut dyn Store| store.lock_list().await;
        let rows = self.core.run_errand(self.core.look(None, "list"), list);
        rows.await?.into_iter().map(LockRow::info).collect()
    }

    /// Frees `name`, whoever holds it, and tells who did. For administrators.
    ///
    /// A lease, that is: a transaction that has the name locked or pinned is waited for, for half of the
    /// [`operation_timeout`](Builder::operation_timeout); end it in the server.
    ///
    /// The holder learns it with its next renewal, within a third of its TTL. Until then it may go on
    /// working: only a resource that checks the fence, or stopping the holder first, prevents an
    /// overlap. The fences of the name go on rising. A damaged row is repaired.
    ///
    /// # Errors
    ///
    /// A refused name, or a database out of reach.
    pub async fn force_release<N>(&self, name: N) -> Result<Option<LockInfo>, Error>
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        let name = name.try_into().map_err(Into::into)?;
        let timeout = self.core.settings.operation_timeout;
        let head = Head {
            manner: Manner::Order,
            ..self.core.wish(Subject::Lock(name.clone()), "force release")
        };
        let of = name.clone();
        let free = async move |store: &mut dyn Store| store.lease_force_release(&of, timeout).await;
        let row = self.core.run_errand(head, free).await?;
        self.core.waiters.freed(&name);
        // What cannot be read is freed all the same, and nobody held what had run out.
        let held = row.filter(LockRow::is_live);
        Ok(held.and_then(|row| row.info().ok()))
    }

    /// Removes what is over, once: outcomes past their retention, records and form tokens past their time, at most
    /// `batch` of each (1 to 10,000); and the rows of all locks that nobody has used for ten days, which are looked
    /// for `batch` rows at a time. The cleaner does this in the background, see [`Builder::clean_every`].
    ///
    /// The fences of a lock go on rising after its row was removed, unless the database's clock is set back by more than
    /// ten days.
    ///
    /// A client cleans once at a time: a call that comes meanwhile waits for its turn, however long that takes.
    ///
    /// # Errors
    ///
    /// A batch out of range; a database out of reach.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops after the batch that is under way.
    pub async fn clean(&self, batch: u32) -> Result<Cleaned, Error> {
        let rows = self.clean_records(batch).await?;
        Ok(Cleaned {
            locks: self.clean_locks(batch).await?,
            ..rows
        })
    }

    /// Removes everything that is over, in as many batches as that takes. (The rows of locks are looked at once.)
    ///
    /// # Errors
    ///
    /// Those of [`clean`](Self::clean). What was removed before stays removed.
    ///
    /// # Cancel safety
    ///
    /// That of [`clean`](Self::clean).
    pub async fn clean_all(&self, batch: u32) -> Result<Cleaned, Error> {
        let mut all = Cleaned::default();
        loop {
            let rows = self.clean_records(batch).await?;
            all.outcomes += rows.outcomes;
            all.records += rows.records;
            all.tokens += rows.tokens;
            let most = rows.outcomes.max(rows.records).max(rows.tokens);
            if most < u64::from(batch) {
                break;
            }
        }
        all.locks = self.clean_locks(batch).await?;
        Ok(all)
    }

    async fn clean_records(&self, batch: u32) -> Result<Cleaned, Error> {
        check_batch(batch)?;
        let clean = async move |store: &mut dyn Store| store.clean(batch).await;
        let head = self.core.wish(None, "clean");
        let rows = self.core.clean(head, clean).await?;
        Ok(Cleaned {
            outcomes: rows.outcomes,
            records: rows.records,
            tokens: rows.tokens,
            locks: 0,
        })
    }

    async fn clean_locks(&self, batch: u32) -> Result<u64, Error> {
        check_batch(batch)?;
        let timeout = self.core.settings.operation_timeout;
        let walk = |reply| Walk::task(batch, timeout, reply);
        self.core.errand(ErrandKind::Cleaning, walk).await
    }

    /// Waits until the database has been told of everything that was dropped or released so far, as
    /// far as it can be reached within the [`operation_timeout`](Builder::operation_timeout). Call it before the process
    /// exits. What could not be told by then (the database is away, or a transaction has the row locked) is tried on in
    /// the background; when the process ends first, the lease ends with its TTL.
    ///
    /// Cancel safe.
    ///
    /// # Panics
    ///
    /// Outside of a runtime of tokio's with timers (`enable_time`).
    pub async fn flush(&self) {
        self.core.flush().await;
    }

    /// Ends this client, and all its clones: the process is about to exit. Waits for `limit`, or half a second longer, and tells what
    /// had not ended by then. Nothing is lost by calling it twice.
    ///
    /// In this order: no lock is granted and no key is claimed any more ([`Error::ShutDown`]); the tasks that finish what was cut off
    /// come to their end; what was released, completed or dropped is told to the database; renewals and the cleaner stop; the
    /// threads end. A lease whose guard is still there is in the list: nobody renews it any more, it is held until its
    /// [`deadline`](crate::Held::deadline), and its guard can no longer release it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), rowlock::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let url = format!("sqlite:{}/locks.db", dir.path().display());
    /// # let rowlock = rowlock::Rowlock::connect(&url).await?;
    /// # drop(rowlock.lock("nightly").acquire().await?);
    /// for unfinished in rowlock.shutdown(std::time::Duration::from_secs(10)).await {
    ///     eprintln!("not finished: {unfinished}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// What has stopped when the future is dropped stays stopped. The next call goes on.
    ///
    /// # Panics
    ///
    /// Outside of a runtime of tokio's with timers (`enable_time`).
    pub async fn shutdown(&self, limit: Duration) -> Vec<Unfinished> {
        self.core.shut_down(limit).await
    }

    /// A policy for transactions that are tried again when another client was faster: 10 attempts, with pauses of up to 10 ms,
    /// 20 ms, … 1 s between them.
    ///
    /// What it has to finish after its caller has gone belongs to this client: [`flush`](Self::flush) and
    /// [`shutdown`](Self::shutdown) wait for it.
    pub fn retry(&self) -> Retry {
        Retry::new().owned_by(&self.core.tasks)
    }

    /// Runs `work` to its end, as a task of the caller's runtime that [`flush`](Self::flush) and [`shutdown`](Self::shutdown) wait
    /// for. `name` tells people which work it is, when a shutdown leaves it unfinished. Dropping the handle does not stop it.
    ///
    /// For work that holds a lock or a key, and has to end well when the request that began it is gone.
    ///
    /// # Panics
    ///
    /// Outside of a runtime of tokio's.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.core.tasks.spawn(name, work)
    }

    /// The brand of the database.
    #[must_use]
    pub fn engine(&self) -> Engine {
        self.core.engine
    }

    /// The server's brand and version, as it tells them.
    #[must_use]
    pub fn server_version(&self) -> &str {
        &self.core.version
    }

    /// The database, without its password.
    #[must_use]
    pub fn target(&self) -> &str {
        &self.core.target
    }

    /// The migrations that this client applied when it connected.
    #[must_use]
    pub fn applied_migrations(&self) -> &[String] {
        &self.applied
    }
}

/// What cleaning has removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cleaned {
    /// Outcomes past their retention, whose keys are still remembered.
    pub outcomes: u64,
    /// Records.
    pub records: u64,
    /// Form tokens that nobody has used.
    pub tokens: u64,
    /// Rows of locks that nobody has used for ten days.
    pub locks: u64,
}

/// A batch of no rows would find nothing, again and again.
fn check_batch(batch: u32) -> Result<(), Error> {
    if (1..=10_000).contains(&batch) {
        return Ok(());
    }
    Err(Error::InvalidSetting {
        setting: "batch",
        reason: "1 to 10000 rows are allowed",
    })
}
