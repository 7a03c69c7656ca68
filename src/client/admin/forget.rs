//! Forgetting a name.

use std::time::Duration;

use super::Admin;
use crate::lock::Held;
use crate::model::{Busy, Error, Kind, Moment, Name, Subject};
use crate::runtime::base::backoff;
use crate::runtime::base::timer::sleep_until;
use crate::store::verbs::Store;
use crate::store::verbs::lock_row::Forgot;

/// Asks once.
const ZERO: Duration = Duration::ZERO;

impl Admin<'_> {
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
    /// assert!(rowlock.admin().forget("exports").await.is_err()); // it is held
    /// by_mistake.release().await?;
    /// assert!(rowlock.admin().forget("exports").await?);
    /// let permit = rowlock.semaphore("exports", 3).acquire().await?;
    /// # drop(permit);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn forget<N>(self, name: N) -> Result<bool, Error>
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        let name = name.try_into().map_err(Into::into)?;
        let doing = "forget";
        let give_up = Moment::now() + self.core().holdings.settings.operation_timeout;
        let mut backoff = backoff::poll();
        loop {
            let head = self.core().lanes.wish(Subject::Lock(name.clone()), doing);
            let of = name.clone();
            let forget = async move |store: &mut dyn Store| store.lock_forget(&of).await;
            let forgot = self.core().lanes.run(head, forget).await?;
            if forgot != Forgot::InUse {
                self.core().rows.drop_known(&name);
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
    async fn in_the_way(self, name: &Name) -> Result<Option<Busy>, Error> {
        let asked = match self.kind(name).await? {
            Kind::Lock => self.rowlock.lock(name.clone()).wait(ZERO).acquire().await,
            Kind::Semaphore { capacity } => {
                let all = self
                    .rowlock
                    .semaphore(name.clone(), capacity)
                    .weight(capacity);
                all.wait(ZERO).acquire().await
            }
            Kind::ReadWrite => {
                let all = self.rowlock.rw_lock(name.clone()).wait(ZERO);
                all.write().await.map(Held::from)
            }
        };
        match asked {
            Ok(held) => match held.release().await {
                Ok(()) | Err(Error::Lost { .. }) => Ok(None),
                Err(error) => Err(error),
            },
            Err(Error::WaitTimeout { busy, .. }) => Ok(Some(*busy)),
            Err(error) => Err(error),
        }
    }
}
