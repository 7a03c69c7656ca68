//! The client: one handle for all engines.

mod builder;
mod holder;

use std::sync::Arc;
use std::time::Duration;

pub use builder::Builder;
use tokio::task::JoinHandle;

use crate::idempotency::{FormTokens, Idempotency};
use crate::lock::{InTx, Lock, Owner, Version};
use crate::model::{Engine, Error, LockInfo, Name, SessionInfo, Subject, Unfinished};
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
/// A client has a few connections of its own, outside every pool, and two threads. They end when the last
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
    /// (a missing file is created).
    ///
    /// Write several servers as `HOST1:PORT1,HOST2:PORT2`. The client tries them in turn until one takes writes, now and
    /// after a failover. PgBouncer in transaction mode needs no setting. If rowlock cannot find out how a pooler shares
    /// connections, put `rowlock_pooler=transaction` or `rowlock_pooler=session` into the PostgreSQL URL. See
    /// `docs/CLUSTERS.md`.
    ///
    /// # Errors
    ///
    /// An invalid URL, a database that is unreachable or takes no writes, a refused login, tables that cannot be
    /// created or do not fit this library. Each message says what to do.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no client behind. A migration that has begun finishes, or rolls
    /// back, in the background.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder().connect(url).await
    }

    /// Uses the database of the application's own sqlx pool (`PgPool`, `MySqlPool`, `SqlitePool`).
    ///
    /// rowlock takes only the connect options from the pool, and no connection, so that neither can starve
    /// the other.
    ///
    /// # Errors
    ///
    /// The errors of [`connect`](Self::connect).
    pub async fn from_pool<P: Pool>(pool: &P) -> Result<Self, Error> {
        Self::builder().from_pool(pool).await
    }

    /// The builder, for settings before connecting.
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

    /// The version of `name`. [`InTx::advance`] succeeds later if the name was not granted since; see [`Version`]. Read
    /// the version *before* the data that it protects, and begin the transaction that reads the data after it. Inside a
    /// transaction, use [`InTx::version`].
    ///
    /// # Errors
    ///
    /// An invalid name, a database out of reach, or a damaged row.
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

    /// Tokens for forms whose submission must happen once; see [`FormTokens`].
    pub fn form_tokens(&self) -> FormTokens {
        FormTokens::new(&self.core)
    }

    /// A new owner, for re-entry of locks; see [`Owner`].
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner::new(&self.core)
    }

    /// The live lease of `name`, if it has one.
    ///
    /// It may still show a lease whose guard was just dropped: [`flush`](Self::flush) waits for the release.
    ///
    /// # Errors
    ///
    /// An invalid name, a database out of reach, or a damaged row.
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

    /// All live leases, sorted by name. It reads the whole table, on a connection of its own.
    ///
    /// # Errors
    ///
    /// A database out of reach, or a damaged row.
    pub async fn list(&self) -> Result<Vec<LockInfo>, Error> {
        let list = async |store: &mut dyn Store| store.lock_list().await;
        let rows = self.core.run_errand(self.core.look(None, "list"), list);
        rows.await?.into_iter().map(LockRow::info).collect()
    }

    /// All live sessions of all clients, the oldest first.
    ///
    /// # Errors
    ///
    /// A database out of reach.
    pub async fn sessions(&self) -> Result<Vec<SessionInfo>, Error> {
        let list = async |store: &mut dyn Store| store.session_list().await;
        let list = self
            .core
            .run_errand(self.core.look(None, "list sessions"), list);
        list.await
    }

    /// Ends this client's session, and frees all locks that were taken [in it](Lock::in_session), in one statement. Returns how many
    /// these were. Their guards lose them at once ([`Loss::SessionEnded`](crate::Loss::SessionEnded)), before the database frees them.
    /// A lock that a transaction has pinned is free when that transaction has ended. The next lock in a session opens a new one.
    ///
    /// # Errors
    ///
    /// A database out of reach. The locks are lost all the same, and free when the session expires. Call it again to free them earlier.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop it.
    pub async fn end_session(&self) -> Result<u64, Error> {
        self.core.end_session().await
    }

    /// Releases the lease of `name` by force, and returns it. For administrators.
    ///
    /// It frees only leases. If a transaction has locked or pinned the name, it waits for half of the
    /// [`operation_timeout`](Builder::operation_timeout), or for all of it when others wait too; end such a transaction in the server.
    ///
    /// The holder notices at its next renewal, within a third of its TTL. Until then it may go on
    /// working. To prevent an overlap, stop the holder first, or have the resource check the fence. Later
    /// fences of the name are still greater. A damaged row is repaired.
    ///
    /// # Errors
    ///
    /// An invalid name, or a database out of reach.
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
        // A row that cannot be read was freed, too. A lease that had run out had no holder.
        let held = row.filter(LockRow::is_live);
        Ok(held.and_then(|row| row.info().ok()))
    }

    /// Removes one batch of expired rows: outcomes past their retention, forgotten records and expired form tokens, at most
    /// `batch` of each (1 to 10,000), and expired sessions with their locks. Also removes the rows of all locks that were not used for ten days, and looks for them
    /// `batch` rows at a time. The cleaner does this in the background, see [`Builder::clean_every`].
    ///
    /// Fences of a lock rise even after its row was removed, unless the database's clock is set back by more than ten days.
    ///
    /// A client runs one cleaning at a time: a concurrent call waits for its turn, however long that takes.
    ///
    /// # Errors
    ///
    /// A batch out of range; a database out of reach.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the cleaning after the current batch.
    pub async fn clean(&self, batch: u32) -> Result<Cleaned, Error> {
        let rows = self.clean_records(batch).await?;
        Ok(Cleaned {
            locks: self.clean_locks(batch).await?,
            ..rows
        })
    }

    /// Removes all expired rows, in as many batches as needed. (It looks at the rows of locks once.)
    ///
    /// # Errors
    ///
    /// The errors of [`clean`](Self::clean). Rows that were removed before an error stay removed.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`clean`](Self::clean).
    pub async fn clean_all(&self, batch: u32) -> Result<Cleaned, Error> {
        let mut all = Cleaned::default();
        loop {
            let rows = self.clean_records(batch).await?;
            all.outcomes += rows.outcomes;
            all.records += rows.records;
            all.tokens += rows.tokens;
            all.sessions += rows.sessions;
            let most = rows.outcomes.max(rows.records);
            let most = most.max(rows.tokens).max(rows.sessions);
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
            sessions: rows.sessions,
            locks: 0,
        })
    }

    async fn clean_locks(&self, batch: u32) -> Result<u64, Error> {
        check_batch(batch)?;
        let timeout = self.core.settings.operation_timeout;
        let walk = |reply| Walk::task(batch, timeout, reply);
        self.core.errand(ErrandKind::Cleaning, walk).await
    }

    /// Waits until all releases and drops so far have reached the database, and until the client's own tasks have ended (those of
    /// [`spawn`](Self::spawn), and those that finish dropped calls), for at most the
    /// [`operation_timeout`](Builder::operation_timeout). Call it before the process exits. If the database is out of
    /// reach, or a transaction has the row locked, the rest is tried again in the background. If the process ends
    /// first, the lease ends with its TTL.
    ///
    /// Cancel safe.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`).
    pub async fn flush(&self) {
        self.core.flush().await;
    }

    /// Ends this client and all its clones, before the process exits. Waits for at most `limit` plus half a second, and returns the
    /// work that had not ended by then. It can be called again.
    ///
    /// In this order: new grants and claims are refused ([`Error::ShutDown`]), except to the client's own tasks; these tasks end, among
    /// them those that finish dropped calls, and those of [`spawn`](Self::spawn); releases, completions and drops are sent to the
    /// database; renewals, the cleaner and the threads end.
    ///
    /// The list contains each lease and each attempt whose guard still exists. Such a guard stays good: it is renewed, and can be
    /// released or completed until the process exits. Drop your guards before you call this.
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
    /// If the future is dropped, the parts that have stopped stay stopped. The next call goes on.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`).
    pub async fn shutdown(&self, limit: Duration) -> Vec<Unfinished> {
        self.core.shut_down(limit).await
    }

    /// A policy for retrying transactions after a conflict: 10 attempts, with pauses of up to 10 ms, 20 ms, … 1 s between
    /// them.
    ///
    /// If a caller drops the future, a task finishes its transaction. [`flush`](Self::flush) and
    /// [`shutdown`](Self::shutdown) wait for that task.
    pub fn retry(&self) -> Retry {
        Retry::new().owned_by(&self.core.tasks)
    }

    /// Runs `work` to its end, as a task of the caller's runtime. [`flush`](Self::flush) and [`shutdown`](Self::shutdown) wait for
    /// it. `name` names the work in the list of a shutdown that leaves it unfinished. Dropping the handle does not stop it.
    ///
    /// For work that holds a lock or a key, and must end in good order even if its request is cancelled.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
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

    /// The brand and version that the server reports.
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

/// The numbers of rows that a cleaning removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cleaned {
    /// Outcomes past their retention, whose keys are still remembered.
    pub outcomes: u64,
    /// Records.
    pub records: u64,
    /// Expired form tokens that were not used.
    pub tokens: u64,
    /// Rows of locks that were not used for ten days.
    pub locks: u64,
    /// Expired sessions, and the locks that they left behind. (These were free for other holders before.)
    pub sessions: u64,
}

/// Refuses a batch of 0, with which a cleaning would not end, and large batches.
fn check_batch(batch: u32) -> Result<(), Error> {
    if (1..=10_000).contains(&batch) {
        return Ok(());
    }
    Err(Error::InvalidSetting {
        setting: "batch",
        reason: "1 to 10000 rows are allowed",
    })
}
