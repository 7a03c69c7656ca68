//! For operators: what is held, by whom, and who waits for it; what has run; facts of the database.

mod clean;
mod force;
mod forget;
mod list;
mod pause;
mod quarantine;

use std::sync::Arc;

pub use clean::Cleaned;
use uuid::Uuid;

use super::Rowlock;
use crate::model::{Error, Kind, LockInfo, Name, RunInfo, SessionInfo, Subject};
use crate::runtime::Core;
use crate::runtime::batch::head::{JobHead, Manner};
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::lock_row::RowAction;
use crate::store::verbs::row::LockRow;
use crate::store::verbs::run::RunRow;
use crate::store::verbs::session::SessionRow;

/// The operator's side of a client, made by [`Rowlock::admin`]: lists, releases by force, pauses, cleaning,
/// quarantine. The command `rowlock` calls it. Copying is free.
///
/// A list reads on a connection of its own, so it delays no lock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/locks.db", dir.path().display());
/// use rowlock::{NameFilter, NameState};
///
/// let rowlock = rowlock::Rowlock::connect(&url).await?;
/// let held = rowlock.lock("stock:42").acquire().await?;
/// let admin = rowlock.admin();
/// for info in admin.names(&NameFilter::new().state(NameState::InUse)).await?.items {
///     println!("{}: {} holders, {} wait", info.name, info.holders.len(), info.waiters);
/// }
/// for waiter in admin.queue("stock:42").await? {
///     println!("{} waits since {}", waiter.holder, waiter.joined_at);
/// }
/// assert!(admin.force_release("stock:42").await?.is_some());
/// assert!(!held.is_held());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Admin<'a> {
    pub(super) rowlock: &'a Rowlock,
}

impl<'a> Admin<'a> {
    /// All holders of `name`, in the order of their fences: the holder of a lock, the writer or the readers of a
    /// read/write lock, or the permits of a semaphore. [`LockInfo::mode`] says which. It reads the rows of this name
    /// only, on a connection of its own.
    ///
    /// # Errors
    ///
    /// An invalid name, a database out of reach, or a damaged row.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/locks.db", dir.path().display());
    /// let rowlock = rowlock::Rowlock::connect(&url).await?;
    /// let exports = rowlock.semaphore("exports", 3);
    /// let permits = (exports.acquire().await?, exports.clone().weight(2).acquire().await?);
    /// for held in rowlock.admin().holders("exports").await? {
    ///     println!("{} has a {} since {}", held.holder, held.mode, held.acquired_at);
    /// }
    /// # assert_eq!(rowlock.admin().holders("exports").await?.len(), 2);
    /// # drop(permits);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn holders<N>(self, name: N) -> Result<Vec<LockInfo>, Error>
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        let name = name.try_into().map_err(Into::into)?;
        let rows = self.held(&name, "list the holders of").await?;
        rows.into_iter().map(LockRow::info).collect()
    }

    /// All live sessions of all clients, the oldest first.
    ///
    /// # Errors
    ///
    /// A database out of reach, or a damaged row.
    pub async fn sessions(self) -> Result<Vec<SessionInfo>, Error> {
        let list = async |store: &mut dyn Store| store.session_list().await;
        let rows = self.read(None, "list sessions", list).await?;
        rows.into_iter().map(SessionRow::info).collect()
    }

    /// Ends the session of a client: all its locks are free, and its waiters leave the queues. Returns how many locks
    /// these were. The client notices at the next renewal of its session, within a third of the
    /// [`session_ttl`](crate::Builder::session_ttl), and may go on working until then: stop it first, or have the
    /// resource check the fence. A lock that a transaction has pinned is free when that transaction has ended.
    ///
    /// # Errors
    ///
    /// A database out of reach.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop it.
    pub async fn end_session(self, id: Uuid) -> Result<u64, Error> {
        let head = JobHead {
            manner: Manner::Order,
            ..self
                .core()
                .lanes
                .wish(Subject::Session(id), "end the session")
        };
        let end = async move |store: &mut dyn Store| store.session_end(id).await;
        self.core().lanes.run_slow(head, end).await
    }

    /// The last run of each lock, sorted by name. A lock has a run if its holder [records](crate::Held::begin_run)
    /// one, as a job (`rowlock_recipes::Job`) does. A run is kept for 400 days after its begin.
    ///
    /// # Errors
    ///
    /// A database out of reach, or a damaged row.
    pub async fn runs(self) -> Result<Vec<RunInfo>, Error> {
        let list = async |store: &mut dyn Store| store.run_list(None).await;
        let rows = self.read(None, "list runs", list).await?;
        rows.into_iter().map(RunRow::info).collect()
    }

    /// The runs of the work under the lock `name`, the last one first: at most 20 are kept.
    ///
    /// # Errors
    ///
    /// An invalid name, a database out of reach, or a damaged row.
    pub async fn runs_of<N>(self, name: N) -> Result<Vec<RunInfo>, Error>
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        let name = name.try_into().map_err(Into::into)?;
        let list = async move |store: &mut dyn Store| store.run_list(Some(&name)).await;
        let rows = self.read(None, "list the runs of", list).await?;
        rows.into_iter().map(RunRow::info).collect()
    }

    /// Settings of the server under which a crash may lose commits, in words.
    ///
    /// # Errors
    ///
    /// A database out of reach.
    pub async fn warnings(self) -> Result<Vec<String>, Error> {
        let look = async |store: &mut dyn Store| store.warnings().await;
        self.read(None, "look at the server's settings", look).await
    }

    /// The engine and version that the server reports.
    #[must_use]
    pub fn server_version(self) -> &'a str {
        &self.core().server.version
    }

    /// The id of the database. It was made with the tables, and differs from that of every other database. (A copied
    /// or restored database has the id of the original.)
    #[must_use]
    pub fn database_id(self) -> Uuid {
        self.core().server.database
    }

    /// The migrations that this client applied when it connected.
    #[must_use]
    pub fn applied_migrations(self) -> &'a [String] {
        &self.rowlock.applied
    }

    fn core(self) -> &'a Arc<Core> {
        &self.rowlock.core
    }

    async fn kind(self, name: &Name) -> Result<Kind, Error> {
        let row = self.row(name).await?;
        Ok(row.and_then(|row| row.kind).unwrap_or(Kind::Lock))
    }

    async fn row(self, name: &Name) -> Result<Option<LockRow>, Error> {
        let head = self
            .core()
            .lanes
            .look(Subject::Lock(name.clone()), "look up");
        let of = name.clone();
        let look = async move |store: &mut dyn Store| store.lock_row(&of, RowAction::Look).await;
        self.core().lanes.run_aside(head, look).await
    }

    /// What a name stands for, and its live permits.
    pub(super) async fn permits(self, name: &Name) -> Result<(Kind, Vec<LockRow>), Error> {
        let kind = self.kind(name).await?;
        if !kind.has_permits() {
            return Ok((kind, Vec::new()));
        }
        Ok((kind, self.held(name, "look up").await?))
    }

    /// The live grants of a name.
    async fn held(self, name: &Name, doing: &'static str) -> Result<Vec<LockRow>, Error> {
        let subject = Subject::Lock(name.clone());
        let name = name.clone();
        let list = async move |store: &mut dyn Store| store.lock_holders(&name).await;
        self.read(subject, doing, list).await
    }

    /// Reads rows, however many these are.
    async fn read<T: Send + 'static>(
        self,
        subject: impl Into<Option<Subject>>,
        doing: &'static str,
        verb: impl AsyncFnMut(&mut dyn Store) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Error> {
        let lanes = &self.core().lanes;
        lanes.run_slow(lanes.look(subject, doing), verb).await
    }
}
