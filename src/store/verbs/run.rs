//! The last runs of the work under a lock: the verbs, with their parameters and outcomes.
//!
//! `rowlock_run` has the last [`MOST`] runs of each lock under which runs were recorded, by their fences. A run
//! begins, and ends, only while no other one has a greater fence: a late process does neither.

use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use super::columns::read_columns;
use super::fault::Fault;
use super::time::{micros, time};
use crate::model::{Error, Name, RunInfo, RunState};

/// How long a run is kept after its begin: longer than a year, for a yearly job.
pub(crate) const KEPT: Duration = Duration::from_hours(400 * 24);

/// How many runs of a lock are kept.
pub(crate) const MOST: i64 = 20;

/// The verbs for runs.
#[async_trait]
pub(crate) trait RunStore {
    /// Records that a run has begun under this live grant, with the holder of its row. Returns false when the grant is
    /// not live. A second sending finds the run. Removes the runs before the last [`MOST`].
    async fn run_begin(&mut self, params: &RunParams) -> Result<bool, Fault>;

    /// Records the end of a run. Returns false when there is no such run, when a later one has begun, or when it has
    /// ended before in another way.
    async fn run_end(&mut self, params: &RunParams, end: &RunEnd) -> Result<bool, Fault>;

    /// The runs of a name, the last one first; or the last run of each name, sorted by name.
    async fn run_list(&mut self, name: Option<&Name>) -> Result<Vec<RunRow>, Fault>;

    /// Removes at most `limit` runs that began before [`KEPT`].
    async fn run_clean(&mut self, limit: u32) -> Result<(), Fault>;
}

/// A run: its lock, its grant, and its fence.
#[derive(Debug, Clone)]
pub(crate) struct RunParams {
    pub(crate) name: Name,
    pub(crate) grant_id: Uuid,
    pub(crate) fence: i64,
}

#[derive(Debug, Clone)]
pub(crate) struct RunEnd {
    pub(crate) succeeded: bool,
    pub(crate) message: String,
}

/// The columns of a row: name, fence, holder, begin, how long it took, whether it has succeeded, the message, and
/// whether its grant is live. Times are in microseconds.
type RunColumns = (
    Vec<u8>,
    i64,
    String,
    i64,
    i64,
    Option<bool>,
    Option<String>,
    bool,
);

/// A run, as operators see it.
#[derive(Debug)]
pub(crate) struct RunRow(RunColumns);

read_columns! {
    RunRow: RunColumns => Self;
}

impl RunRow {
    /// The row as callers see it.
    pub(crate) fn info(self) -> Result<RunInfo, Error> {
        let (name, fence, holder, began_at, took, succeeded, message, is_live) = self.0;
        let damaged = |what| Error::damaged("rowlock_run", &name, what);
        let state = match succeeded {
            Some(true) => RunState::Succeeded,
            Some(false) => RunState::Failed,
            None if is_live => RunState::Running,
            None => RunState::Abandoned,
        };
        Ok(RunInfo {
            name: Name::from_bytes(&name)
                .ok_or_else(|| damaged("the name of its run is not 1 to 255 bytes of UTF-8"))?,
            fence,
            holder,
            began_at: time(began_at).ok_or_else(|| damaged("a time of its run is out of range"))?,
            took: (state != RunState::Abandoned).then(|| micros(took)),
            state,
            message: message.unwrap_or_default(),
        })
    }
}
