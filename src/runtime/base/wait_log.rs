//! What the log tells of a wait while the database is in its way. A caller that waits without a limit gets no error,
//! so nothing else tells it.

use std::fmt::Display;

/// The log of one wait: a warning when the trouble begins, and a line when it is over. Each further try is told at
/// DEBUG.
///
/// The target `rowlock::waiting` is a promise to applications that show these lines to people.
#[derive(Debug, Default)]
pub(crate) struct WaitLog {
    is_told: bool,
}

impl WaitLog {
    /// The database refuses, or does not answer.
    pub(crate) fn trouble(&mut self, waiting_for: &dyn Display, error: &dyn Display) {
        if std::mem::replace(&mut self.is_told, true) {
            tracing::debug!(target: "rowlock::waiting", "still waits for {waiting_for}: {error}");
        } else {
            tracing::warn!(target: "rowlock::waiting", "still waits for {waiting_for}: {error}");
        }
    }

    /// The database has answered.
    pub(crate) fn over(&mut self, waiting_for: &dyn Display) {
        if std::mem::take(&mut self.is_told) {
            tracing::info!(target: "rowlock::waiting", "the wait for {waiting_for} goes on: the database has answered");
        }
    }
}
