//! How long a caller waits.

use std::time::Duration;

use super::Lock;
use crate::model::{Busy, Error, Moment};
use crate::runtime::base::timer::sleep_until;

/// The wait of one call.
pub(super) struct Patience {
    started: Moment,
    /// `None`: it waits for ever.
    pub(super) limit: Option<Moment>,
}

impl Patience {
    pub(super) fn new(lock: &Lock) -> Self {
        let started = Moment::now();
        let limit = lock.wait.map(|wait| started + wait);
        Self { started, limit }
    }

    pub(super) fn is_over(&self) -> bool {
        self.limit.is_some_and(Moment::has_passed)
    }

    /// The end of a pause; that of the wait, if it is sooner.
    pub(super) fn wake(&self, pause: Duration) -> Moment {
        let wake = Moment::now() + pause;
        self.limit.map_or(wake, |limit| wake.min(limit))
    }

    pub(super) fn timed_out(&self, busy: Busy) -> Error {
        Error::WaitTimeout {
            name: busy.name.clone(),
            waited: self.started.elapsed(),
            busy: Box::new(busy),
        }
    }
}

/// Resolves at this moment; never, if there is none.
pub(super) async fn until(limit: Option<Moment>) {
    match limit {
        Some(limit) => sleep_until(limit).await,
        None => std::future::pending().await,
    }
}
