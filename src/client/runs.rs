//! The last runs of the work under locks.

use super::Rowlock;
use crate::model::{Error, Name, RunInfo};
use crate::store::verbs::Store;
use crate::store::verbs::run::RunRow;

impl Rowlock {
    /// The last run of each lock, sorted by name. A lock has a run if its holder [records](crate::Held::begin_run)
    /// one, as a job (`rowlock_recipes::Job`) does. A run is kept for 400 days after its begin.
    ///
    /// # Errors
    ///
    /// A database out of reach, or a damaged row.
    pub async fn runs(&self) -> Result<Vec<RunInfo>, Error> {
        let list = async |store: &mut dyn Store| store.run_list(None).await;
        let rows = self
            .core
            .lanes
            .run_slow(self.core.lanes.look(None, "list runs"), list);
        rows.await?.into_iter().map(RunRow::info).collect()
    }

    /// The last run of the work under the lock `name`, if one was recorded.
    ///
    /// # Errors
    ///
    /// An invalid name, a database out of reach, or a damaged row.
    pub async fn last_run<N>(&self, name: N) -> Result<Option<RunInfo>, Error>
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        let name = name.try_into().map_err(Into::into)?;
        let list = async move |store: &mut dyn Store| store.run_list(Some(&name)).await;
        let rows = self
            .core
            .lanes
            .run_slow(self.core.lanes.look(None, "look up the last run"), list);
        rows.await?.pop().map(RunRow::info).transpose()
    }
}
