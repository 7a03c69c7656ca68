//! For operators: what is held, by which sessions; a forced release; forgetting a name; cleaning.

use super::Rowlock;
use crate::lock::TryAcquire;
use crate::model::{
    Busy, Error, InvalidError, Kind, LockInfo, Moment, Name, SessionInfo, Subject, WaiterInfo,
};
use crate::runtime::base::backoff;
use crate::runtime::base::timer::sleep_until;
use crate::runtime::batch::alone::alone;
use crate::runtime::requests::walk::Walk;
use crate::store::verbs::Store;
use crate::store::verbs::lock_row::{Forgot, RowAction};
use crate::store::verbs::queue::WaiterRow;
use crate::store::verbs::row::LockRow;
use crate::store::verbs::session::SessionRow;

impl Rowlock {
    /// The live lease of `name`, if it has one. `None` means that no lease is live. A read/write lock or a semaphore
    /// may have several holders: this returns one of them, and [`holders`](Self::holders) returns all.
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
    /// for held in rowlock.holders("exports").await? {
    ///     println!("{} has a {} since {}", held.holder, held.mode, held.acquired_at);
    /// }
    /// # assert_eq!(rowlock.holders("exports").await?.len(), 2);
    /// # drop(permits);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn holders<N>(&self, name: N) -> Result<Vec<LockInfo>, Error>
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        let name = name.try_into().map_err(Into::into)?;
        let rows = self.held(&name, "list the holders of").await?;
        rows.into_iter().map(LockRow::info).collect()
    }

    /// All live leases, sorted by name. It reads the whole table, on a connection of its own.
    ///
    /// # Errors
    ///
    /// A database out of reach, or a damaged row.
    pub async fn list(&self) -> Result<Vec<LockInfo>, Error> {
        let list = async |store: &mut dyn Store| store.lock_list().await;
        let rows = self
            .core
            .lanes
            .run_slow(self.core.lanes.look(None, "list"), list);
        rows.await?.into_iter().map(LockRow::info).collect()
    }

    /// All waiters in the queues of all locks, by name and position. It does not show the waiters of sessions that
    /// have expired.
    ///
    /// # Errors
    ///
    /// A database out of reach, or a damaged row.
    pub async fn waiters(&self) -> Result<Vec<WaiterInfo>, Error> {
        let list = async |store: &mut dyn Store| store.queue_list().await;
        let rows = self
            .core
            .lanes
            .run_slow(self.core.lanes.look(None, "list waiters"), list);
        rows.await?.into_iter().map(WaiterRow::info).collect()
    }

    /// All live sessions of all clients, the oldest first.
    ///
    /// # Errors
    ///
    /// A database out of reach, or a damaged row.
    pub async fn sessions(&self) -> Result<Vec<SessionInfo>, Error> {
        let list = async |store: &mut dyn Store| store.session_list().await;
        let list = self
            .core
            .lanes
            .run_slow(self.core.lanes.look(None, "list sessions"), list);
        list.await?.into_iter().map(SessionRow::info).collect()
    }

    /// Removes the row of `name`, so that the name may be used for another [kind](Kind), or for a semaphore of another
    /// capacity. Otherwise it keeps its kind until ten days after its last use. Returns whether there was a row.
    ///
    /// The name must have no holder and no waiter. One that has crashed counts until its lease or session has expired.
    ///
    /// Later fences of the name are greater, unless the database's clock is set back meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::WaitTimeout`]: a holder, a waiter or a transaction uses the name. [`Error::RowLocked`]: the database's
    /// clock is behind the name's last fence. An invalid name, a damaged row, or a database out of reach.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`).
    ///
    /// # Cancel safety
    ///
    /// After dropping the future, the row may be removed or not. It may be called again.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/locks.db", dir.path().display());
    /// let rowlock = rowlock::Rowlock::connect(&url).await?;
    /// let by_mistake = rowlock.lock("exports").acquire().await?;
    /// assert!(rowlock.forget("exports").await.is_err()); // it is held
    /// let _ = by_mistake.release().await?;
    /// assert!(rowlock.forget("exports").await?);
    /// let permit = rowlock.semaphore("exports", 3).acquire().await?;
    /// # drop(permit);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn forget<N>(&self, name: N) -> Result<bool, Error>
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        let name = name.try_into().map_err(Into::into)?;
        let doing = "forget";
        let give_up = Moment::now() + self.core.holdings.settings.operation_timeout;
        let mut backoff = backoff::poll();
        loop {
            let head = self.core.lanes.wish(Subject::Lock(name.clone()), doing);
            let of = name.clone();
            let forget = async move |store: &mut dyn Store| store.lock_forget(&of).await;
            let forgot = self.core.lanes.run(head, forget).await?;
            if forgot != Forgot::InUse {
                self.core.rows.drop_known(&name);
                return Ok(forgot == Forgot::Removed);
            }
            if let Some(busy) = self.in_the_way(&name).await? {
                return Err(Error::WaitTimeout {
                    name,
                    waited: std::time::Duration::ZERO,
                    busy: Box::new(busy),
                });
            }
            if give_up.has_passed() {
                return Err(Error::RowLocked { doing, name });
            }
            sleep_until(Moment::now() + backoff.next().unwrap_or_default()).await;
        }
    }

    /// Takes all of the name for a moment, which removes what expired leases and sessions have left behind. Returns
    /// what is in the way.
    async fn in_the_way(&self, name: &Name) -> Result<Option<Busy>, Error> {
        let asked = match self.kind(name).await? {
            Kind::Lock => self.lock(name.clone()).try_acquire().await?,
            Kind::Semaphore { capacity } => {
                let all = self.semaphore(name.clone(), capacity).weight(capacity);
                all.try_acquire().await?
            }
            Kind::ReadWrite => match self.rw_lock(name.clone()).try_write().await? {
                TryAcquire::Busy(busy) => return Ok(Some(busy)),
                TryAcquire::Held(held) => {
                    let _ = held.release().await?;
                    return Ok(None);
                }
            },
        };
        match asked {
            TryAcquire::Busy(busy) => Ok(Some(busy)),
            TryAcquire::Held(held) => {
                let _ = held.release().await?;
                Ok(None)
            }
        }
    }

    async fn kind(&self, name: &Name) -> Result<Kind, Error> {
        let head = self.core.lanes.look(Subject::Lock(name.clone()), "look up");
        let of = name.clone();
        let look = async move |store: &mut dyn Store| store.lock_row(&of, RowAction::Look).await;
        let row = self.core.lanes.run_aside(head, look).await?;
        Ok(row.and_then(|row| row.kind).unwrap_or(Kind::Lock))
    }

    /// What a name stands for, and its live permits.
    pub(super) async fn permits(&self, name: &Name) -> Result<(Kind, Vec<LockRow>), Error> {
        let kind = self.kind(name).await?;
        if !kind.has_permits() {
            return Ok((kind, Vec::new()));
        }
        Ok((kind, self.held(name, "look up").await?))
    }

    /// The live grants of a name.
    async fn held(&self, name: &Name, doing: &'static str) -> Result<Vec<LockRow>, Error> {
        let head = self.core.lanes.look(Subject::Lock(name.clone()), doing);
        let name = name.clone();
        let list = async move |store: &mut dyn Store| store.lock_holders(&name).await;
        self.core.lanes.run_slow(head, list).await
    }

    /// Removes one batch of expired rows: outcomes past their retention, forgotten records and expired form tokens, at
    /// most `batch` of each (1 to 10,000), and expired sessions with their locks. Also removes the rows of all locks
    /// that were not used for ten days, and looks for them `batch` rows at a time. The cleaner does this in the
    /// background, see [`Builder::clean_every`](crate::Builder::clean_every).
    ///
    /// Fences of a lock rise even after its row was removed, unless the database's clock is set back by more than ten
    /// days.
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
            let most = [rows.outcomes, rows.records, rows.tokens, rows.sessions];
            if most.iter().all(|rows| *rows < u64::from(batch)) {
                break;
            }
        }
        all.locks = self.clean_locks(batch).await?;
        Ok(all)
    }

    async fn clean_records(&self, batch: u32) -> Result<Cleaned, Error> {
        check_batch(batch)?;
        let clean = async move |store: &mut dyn Store| store.clean(batch).await;
        let lanes = &self.core.lanes;
        let head = lanes.wish(None, "clean");
        let rows = lanes.clean(|reply| alone(head, clean, reply)).await?;
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
        let timeout = self.core.holdings.settings.operation_timeout;
        let walk = |reply| Walk::task(batch, timeout, reply);
        self.core.lanes.clean(walk).await
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
    Err(Error::Invalid(InvalidError::Setting {
        setting: "batch",
        reason: "1 to 10000 rows are allowed",
    }))
}
