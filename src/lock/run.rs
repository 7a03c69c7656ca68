//! Recording the run of the work under a lease.

use std::sync::Arc;

use super::Held;
use crate::model::{Error, InvalidError, Loss, Subject};
use crate::runtime::batch::head::{JobHead, Manner, Progress};
use crate::store::verbs::Store;
use crate::store::verbs::run::{RunEnd, RunParams};

/// The longest message, in bytes.
const MESSAGE: usize = 1_000;

impl Held {
    /// Records that the work under this lease begins: when, by whom, and under which fence. Operators see the last
    /// runs of each lock ([`Admin::runs_of`](crate::Admin::runs_of)). A second call of the same guard does nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the lease is lost. [`Error::Released`]. A permit of a semaphore or a read/write lock has
    /// no runs ([`InvalidError::Setting`]). A database out of reach.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop it: the run may be recorded.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/locks.db", dir.path().display());
    /// # let rowlock = rowlock::Rowlock::connect(&url).await?;
    /// let held = rowlock.lock("nightly-report").acquire().await?;
    /// held.begin_run().await?;
    /// // … the report is made …
    /// held.end_run(true, "42 pages").await?;
    /// held.release().await?;
    /// for run in rowlock.admin().runs_of("nightly-report").await? {
    ///     println!("{} {} after {:?}: {}", run.name, run.state, run.took.unwrap_or_default(), run.message);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn begin_run(&self) -> Result<(), Error> {
        let params = self.run()?;
        self.guard.check("begin the run of")?;
        let begun = self.record("begin the run of", async move |store: &mut dyn Store| {
            store.run_begin(&params).await
        });
        if begun.await? {
            return Ok(());
        }
        let loss = self.loss().unwrap_or(Loss::TakenOver);
        let name = self.name().clone();
        Err(Error::Lost { name, loss })
    }

    /// Records the end of the run that [`begin_run`](Self::begin_run) has recorded. It also works after a release or a
    /// loss. `message` is for people to read, and is cut at 1,000 bytes. Returns false, and records nothing, if a
    /// later run has replaced this one, or if this run has ended in another way.
    ///
    /// # Errors
    ///
    /// Those of [`begin_run`](Self::begin_run), except [`Error::Lost`] and [`Error::Released`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop it: the end may be recorded.
    pub async fn end_run(&self, succeeded: bool, message: &str) -> Result<bool, Error> {
        let params = self.run()?;
        // NUL is no text on PostgreSQL.
        let message = message.replace('\0', " ");
        let mut message = self.core.server.legible(&message.into()).to_string();
        message.truncate(message.floor_char_boundary(MESSAGE));
        let end = RunEnd { succeeded, message };
        self.record("end the run of", async move |store: &mut dyn Store| {
            store.run_end(&params, &end).await
        })
        .await
    }

    fn run(&self) -> Result<RunParams, Error> {
        let grant = self.guard.grant();
        if grant.name.of_permit().is_some() {
            return Err(Error::Invalid(InvalidError::Setting {
                setting: "run",
                reason: "only locks have runs, and this is a permit",
            }));
        }
        Ok(RunParams {
            name: grant.name.clone(),
            grant_id: grant.id,
            fence: *self.run.get_or_init(|| self.fence()),
        })
    }

    async fn record(
        &self,
        doing: &'static str,
        verb: impl AsyncFnMut(&mut dyn Store) -> Result<bool, crate::store::verbs::fault::Fault>
        + Send
        + 'static,
    ) -> Result<bool, Error> {
        let core = Arc::clone(&self.core);
        let subject = Subject::Lock(self.name().clone());
        let progress = Progress::within(core.holdings.settings.operation_timeout);
        let head = JobHead::new(subject, doing, Manner::Duty, progress);
        core.lanes.run(head, verb).await
    }
}
