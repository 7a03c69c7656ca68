//! Pauses of a name.

use std::sync::Arc;
use std::time::Duration;

use super::Admin;
use crate::model::bounds::{check_by, check_pause, check_why};
use crate::model::{Error, Kind, Name, PauseInfo, Subject};
use crate::store::verbs::Store;
use crate::store::verbs::pause::{PauseParams, PauseRow};

impl Admin<'_> {
    /// Pauses `name`: from now on nobody is granted it, for `time` (100 ms to 366 days), or until it is
    /// [resumed](Self::resume). Returns the pause. A pause that the name has already is replaced, with its time and
    /// its reason. `why`: 1 to 255 bytes, for people to read.
    ///
    /// - No lock, permit or [version](crate::InTx::advance) of the name is granted by a statement that begins after
    ///   this call has returned, of any client. The name is like one that is held: asking once answers
    ///   [`Busy`](crate::Busy), which has the pause. Waiting calls wait, in their order, and are granted the name
    ///   after the pause. Transactions wait as they wait for a lease.
    /// - Who holds the name keeps it, and may renew, pin and release it. An owner that holds it may enter it again. A
    ///   reader cannot [upgrade](crate::RwHeld::try_upgrade). A waiter to whom the name was passed on before the pause
    ///   may still confirm, within 2 s.
    /// - Tasks of one client that [wait together](crate::Lock::acquire) may hand on a lease that one of them holds, in
    ///   memory, until 50 ms after their client was granted it. A lease that [lingers](crate::Lock::linger) is called
    ///   back, as by a waiter, by the next look of its client: there are up to ten in a second. Until then, tasks of
    ///   its client may take it.
    /// - A name that was never used becomes that of a lock. The row of a paused name is not removed, neither by the
    ///   cleaner nor by [`forget`](Self::forget).
    ///
    /// # Errors
    ///
    /// An invalid name, time or reason, or a database out of reach. If a transaction has locked or pinned the name, it
    /// waits as [`force_release`](Self::force_release) does.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop it: the pause may begin.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/locks.db", dir.path().display());
    /// use std::time::Duration;
    ///
    /// let rowlock = rowlock::Rowlock::connect(&url).await?;
    /// let hour = Duration::from_secs(3600);
    /// rowlock.admin().pause("reports:monthly", Some(hour), "the archive is being moved").await?;
    /// let asked = rowlock.lock("reports:monthly").wait(Duration::ZERO).acquire().await;
    /// println!("{}", asked.unwrap_err()); // "reports:monthly" is not free: paused by …
    /// assert!(rowlock.admin().resume("reports:monthly").await?);
    /// # assert!(rowlock.lock("reports:monthly").try_acquire().await?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn pause<N>(
        self,
        name: N,
        time: Option<Duration>,
        why: &str,
    ) -> Result<PauseInfo, Error>
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        let by = Arc::clone(&self.core().holdings.settings.holder);
        self.begin_pause(name.try_into().map_err(Into::into)?, time, why, &by)
            .await
    }

    /// [`pause`](Self::pause) that says who it is from, `by`: 1 to 200 bytes, for people to read. (Otherwise that is
    /// the [holder](crate::Builder::holder) of this client.)
    ///
    /// # Errors
    ///
    /// As for [`pause`](Self::pause); an invalid `by`.
    ///
    /// # Cancel safety
    ///
    /// As for [`pause`](Self::pause).
    pub async fn pause_by<N>(
        self,
        name: N,
        time: Option<Duration>,
        why: &str,
        by: &str,
    ) -> Result<PauseInfo, Error>
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        check_by(by)?;
        self.begin_pause(name.try_into().map_err(Into::into)?, time, why, by)
            .await
    }

    async fn begin_pause(
        self,
        name: Name,
        time: Option<Duration>,
        why: &str,
        by: &str,
    ) -> Result<PauseInfo, Error> {
        time.map_or(Ok(()), check_pause)?;
        check_why(why)?;
        let core = self.core();
        let params = PauseParams {
            name: name.clone(),
            time,
            by: core.server.legible(&Arc::from(by)),
            why: core.server.legible(&Arc::from(why)),
        };
        let limit = core.holdings.settings.operation_timeout;
        let of = core.clone();
        let begin = async move |store: &mut dyn Store| {
            let begun = store.pause_begin(&params, limit).await;
            // Also when the caller has gone: the tasks of this client would go on taking a lease that lingers.
            drop(of.queue.keepers.recall(&params.name));
            begun
        };
        let head = core.lanes.wish(Subject::Lock(name), "pause");
        core.lanes.run_slow(head, begin).await?.info()
    }

    /// Ends the pause of `name` now, and passes the name on to its first waiters if it is free. Returns whether it was
    /// paused. It waits as [`pause`](Self::pause) does. A pause that begins after this call has begun may stay, or may
    /// end.
    ///
    /// # Errors
    ///
    /// An invalid name, or a database out of reach.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop it: the pause may end.
    pub async fn resume<N>(self, name: N) -> Result<bool, Error>
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        let name = name.try_into().map_err(Into::into)?;
        // A second sending finds no pause any more, so this look decides.
        let Some((_, kind)) = self.seen_pause(&name).await? else {
            return Ok(false);
        };
        let core = self.core();
        let limit = core.holdings.settings.operation_timeout;
        let head = core.lanes.wish(Subject::Lock(name.clone()), "resume");
        let of = name.clone();
        let end = async move |store: &mut dyn Store| store.pause_end(&of, limit).await;
        core.lanes.run_slow(head, end).await?;
        self.pass_on(&name, kind).await;
        Ok(true)
    }

    /// The pause of `name`. `None`: it is not paused.
    ///
    /// # Errors
    ///
    /// An invalid name, a database out of reach, or a damaged row.
    pub async fn paused<N>(self, name: N) -> Result<Option<PauseInfo>, Error>
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        let name = name.try_into().map_err(Into::into)?;
        let seen = self.seen_pause(&name).await?;
        seen.map(|(pause, _)| pause.info()).transpose()
    }

    async fn seen_pause(self, name: &Name) -> Result<Option<(PauseRow, Kind)>, Error> {
        let row = self.row(name).await?;
        Ok(row.and_then(|row| Some((*row.pause?, row.kind.unwrap_or(Kind::Lock)))))
    }

    /// Grants a free name to its first waiters, and wakes who waits for it here.
    pub(super) async fn pass_on(self, name: &Name, kind: Kind) {
        // A waiter finds the name free, too.
        let _ = self.core().pass_on(name, kind).await;
        self.core().waiters.freed(name);
    }
}
