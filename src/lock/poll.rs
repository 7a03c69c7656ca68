//! Waiting for a lease where there is no queue: on a Galera cluster.

use tokio::select;
use tokio::time::timeout;

use super::Lock;
use super::patience::Patience;
use crate::model::{Error, Name};
use crate::runtime::base::backoff;
use crate::runtime::base::timer::sleep_until;
use crate::runtime::base::wait_log::WaitLog;
use crate::runtime::held::guard::Guard;
use crate::runtime::requests::take::AcquireAnswer;

impl Lock {
    /// Asks again and again, until the lease is granted or the wait is over. Asks at least once, however short the
    /// wait.
    ///
    /// Of the [waiters](field@crate::runtime::Core::waiters) of one client, only the first one asks: after growing,
    /// jittered pauses, at the holder's expiry, and when this client releases the name.
    pub(super) async fn poll(&self, name: &Name) -> Result<Guard, Error> {
        let patience = Patience::new(self);
        let waiter = self.core.waiters.join(name);
        let first = match self.wait {
            None => waiter.first().await,
            Some(wait) => match timeout(wait, waiter.first()).await {
                Ok(first) => first,
                // Other waiters of this client are first. Ask once, so that the error names the holder.
                Err(_) => match self.ask(name).await? {
                    AcquireAnswer::Held(guard) => return Ok(guard),
                    AcquireAnswer::Not(busy) => return Err(patience.timed_out(busy)),
                },
            },
        };

        let (mut backoff, mut log) = (backoff::poll(), WaitLog::default());
        loop {
            let mut pause = backoff.next().unwrap_or_default();
            let asked = self.ask(name).await;
            match asked {
                Ok(AcquireAnswer::Held(guard)) => {
                    drop(first);
                    return Ok(guard);
                }
                Ok(AcquireAnswer::Not(busy)) if patience.is_over() => {
                    return Err(patience.timed_out(busy));
                }
                Ok(AcquireAnswer::Not(busy)) => {
                    log.over(&format_args!("{name:?}"));
                    if let Some(remaining) = busy.remaining() {
                        pause = pause.min(remaining);
                    }
                }
                Err(error) if error.is_transient() && !patience.is_over() => {
                    log.trouble(&format_args!("{name:?}"), &error);
                }
                Err(error) => return Err(error),
            }
            select! {
                () = sleep_until(patience.wake(pause)) => {}
                () = waiter.freed() => backoff = backoff::poll(),
            }
        }
    }
}
