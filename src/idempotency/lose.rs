//! Losing an attempt on purpose, in a test of an application.

use super::IdempotencyGuard;
use crate::model::Error;
use crate::store::verbs::record::FinishOutcome;

impl IdempotencyGuard {
    /// Loses the attempt, as if its process had been away for longer than the lease: [`is_held`](Self::is_held) is
    /// false at once, [`lost`](Self::lost) resolves, and no outcome can be recorded ([`Error::Superseded`]). When this
    /// returns, the next attempt may begin. (During a [step that must not be repeated](Self::step_once) the record is
    /// unknown instead.) For tests of an application (feature `testing`).
    ///
    /// # Errors
    ///
    /// [`Error::Superseded`]: the attempt has ended before. A database out of reach, or an open transaction that has
    /// an outcome of this attempt.
    ///
    /// # Cancel safety
    ///
    /// Once polled, it goes on in the background.
    pub async fn lose(&self) -> Result<(), Error> {
        self.check_running("lose")?;
        match self.inner.lose().await? {
            FinishOutcome::Ended => {
                self.flight.end_silently();
                Ok(())
            }
            FinishOutcome::Superseded | FinishOutcome::Locked => Err(self.superseded("lose")),
        }
    }
}
