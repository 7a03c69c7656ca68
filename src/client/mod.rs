//! The client: one handle for all engines.

mod admin;
mod builder;
mod holder;

use std::sync::Arc;
use std::time::Duration;

pub use admin::{Admin, Cleaned};
pub use builder::Builder;
use tokio::task::JoinHandle;

use crate::idempotency::{FormTokens, Idempotency};
use crate::lock::{InTx, Lock, MultiLock, Owner, RwLock, Semaphore, Version};
use crate::model::{Engine, Error, LockInfo, Moment, Name, Subject, Unfinished};
use crate::runtime::Core;
use crate::store::verbs::Store;
use crate::store::verbs::row::LockRow;
use crate::transaction::{Pool, Retry, Transaction};

/// A client of the locks in one database. Cloning is cheap, and clones share everything.
///
/// A client has [up to 4](Builder::max_connections) connections of its own, outside every pool, and two threads. They
/// end when the last clone and the last guard are dropped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/locks.db", dir.path().display());
/// let rowlock = rowlock::Rowlock::connect(&url).await?;
/// let held = rowlock.lock("stock:42").acquire().await?;
/// println!("holding {} with fence {}", held.name(), held.fence());
/// held.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Rowlock {
    pub(crate) core: Arc<Core>,
    applied: Arc<[String]>,
}

impl Rowlock {
    /// Connects to `url` and brings its tables up to date.
    ///
    /// `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, `mysql://…`, `mariadb://…` or `sqlite:PATH`
    /// (a missing file is created).
    ///
    /// Write several servers as `HOST1:PORT1,HOST2:PORT2`. The client tries them in turn until one takes writes, now
    /// and after a failover. PgBouncer in transaction mode needs no setting. If rowlock cannot find out how a pooler
    /// shares connections, put `rowlock_pooler=transaction` or `rowlock_pooler=session` into the PostgreSQL URL. See
    /// `docs/CLUSTERS.md`.
    ///
    /// A parameter of the URL that rowlock does not know is an error. The error names the parameter, never its value.
    /// On PostgreSQL `options[search_path]=SCHEMA` selects the schema of the tables.
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
    /// rowlock takes the connect options from the pool, but no connection, so application and rowlock cannot starve
    /// each other. On a server it reads the options again for each connection that it makes. So after sqlx's
    /// `Pool::set_connect_options`, with a new password or another address of the same database, rowlock's next
    /// connections use the new options. Options that name another database or schema are refused: locks there
    /// are other locks, and need another client. The client keeps a clone of the pool: close the pool with
    /// `Pool::close`, and do not rely on the drop of its last handle.
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

    /// The version of `name`. [`InTx::advance`] succeeds later if the name was not granted since; see [`Version`].
    /// Read the version *before* the data that it protects, and begin the transaction that reads the data after it.
    /// Inside a transaction, use [`InTx::version`].
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

    /// Several locks, all or nothing; see [`MultiLock`].
    pub fn multi_lock<N>(&self, names: impl IntoIterator<Item = N>) -> MultiLock
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        let names = names.into_iter();
        let names = names.map(|name| name.try_into().map_err(Into::into));
        MultiLock::new(&self.core, names.collect())
    }

    /// A semaphore of this capacity, for all clients that use the name; see [`Semaphore`].
    pub fn semaphore<N>(&self, name: N, capacity: u32) -> Semaphore
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        Semaphore::new(self.lock(name), capacity)
    }

    /// A read/write lock; see [`RwLock`].
    pub fn rw_lock<N>(&self, name: N) -> RwLock
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        RwLock::new(self.lock(name))
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

    /// The live lease of `name`, if it has one. `None` means that no lease is live. A read/write lock or a semaphore
    /// may have several holders: this returns one of them, and [`Admin::holders`] returns all.
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
        let head = self.core.lanes.look(Subject::Lock(name.clone()), "inspect");
        let inspect = async move |store: &mut dyn Store| store.lock_inspect(&name).await;
        let row = self.core.lanes.run_aside(head, inspect).await?;
        row.map(LockRow::info).transpose()
    }

    /// The text under which other people see what this client holds, unless a call sets another one.
    #[must_use]
    pub fn holder(&self) -> &str {
        &self.core.holdings.settings.holder
    }

    /// Asks the database one question, for a probe of readiness: whether it answers, and has rowlock's tables. Returns
    /// how long that took.
    ///
    /// # Errors
    ///
    /// A database out of reach, or tables that are missing.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn ping(&self) -> Result<Duration, Error> {
        let asked = Moment::now();
        self.admin().quarantine_left().await?;
        Ok(asked.elapsed())
    }

    /// The operator's side of this client: who holds what, releases by force, cleaning, quarantine; see [`Admin`].
    #[must_use]
    pub fn admin(&self) -> Admin<'_> {
        Admin { rowlock: self }
    }

    /// Ends this client's session, and frees all locks that were taken [in it](Lock::in_session), in one statement.
    /// Returns how many these were. Their guards lose them at once
    /// ([`Loss::SessionEnded`](crate::Loss::SessionEnded)), before the database frees them. A lock that a transaction
    /// has pinned is free when that transaction has ended. The next lock in a session opens a new one.
    ///
    /// # Errors
    ///
    /// A database out of reach. The locks are lost all the same, and free when the session expires. Call it again to
    /// free them earlier.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop it.
    pub async fn end_session(&self) -> Result<u64, Error> {
        self.core.holdings.end_session().await
    }

    /// Waits until all releases and drops so far have reached the database, and until the client's own tasks have
    /// ended (those of [`spawn`](Self::spawn), and those that finish dropped calls), for at most the
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

    /// Ends this client and all its clones, before the process exits. Waits for at most `limit` plus half a second,
    /// and returns the work that had not ended by then. It can be called again.
    ///
    /// In this order: new grants and claims are refused ([`Error::ShutDown`]), except to the client's own tasks; these
    /// tasks end, among them those that finish dropped calls, and those of [`spawn`](Self::spawn); releases,
    /// completions and drops are sent to the database; renewals, the cleaner and the threads end.
    ///
    /// When nothing is left, its connections are closed in good order: a SQLite file that nobody else uses then has
    /// all its data in itself, and no log beside it. (A client that is only dropped closes them some time later, if
    /// the process lives that long.)
    ///
    /// The list contains each held lease and each attempt whose guard still exists. Such a guard stays good: it is
    /// renewed, and can be released or completed until the process exits. Drop your guards before you call this.
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

    /// A policy for retrying transactions after a conflict: 10 attempts, with pauses of up to 10 ms, 20 ms, … 1 s
    /// between them.
    ///
    /// If a caller drops the future, a task finishes its transaction. [`flush`](Self::flush) and
    /// [`shutdown`](Self::shutdown) wait for that task.
    pub fn retry(&self) -> Retry {
        Retry::new().owned_by(&self.core.lanes.tasks)
    }

    /// Runs `work` to its end, as a task of the caller's runtime. [`flush`](Self::flush) and
    /// [`shutdown`](Self::shutdown) wait for it. `name` names the work in the list of a shutdown that leaves it
    /// unfinished. Dropping the handle does not stop it.
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
        self.core.lanes.tasks.spawn(name, work)
    }

    /// The engine of the database.
    #[must_use]
    pub fn engine(&self) -> Engine {
        self.core.server.engine
    }

    /// The database, without its password.
    #[must_use]
    pub fn target(&self) -> &str {
        &self.core.lanes.target
    }
}
