//! Waiting for a lease that another holder has.
//!
//! The [waiters](crate::runtime::waiters) of one process queue. The first waiter asks again after growing,
//! jittered pauses, at the holder's expiry, and when this process releases the name. Callers see only
//! [`acquire`], so a queue across processes can replace this one.

use std::sync::Arc;
use std::time::Duration;

use tokio::select;
use tokio::time::timeout;

use crate::model::Moment;
use crate::model::{Busy, Error, Name};
use crate::runtime::Core;
use crate::runtime::backoff;
use crate::runtime::lease_guard::Guard;
use crate::runtime::timer::sleep_until;
use crate::runtime::verbs::take::Acquired;

/// The request that a waiter repeats. (A trait, because the compiler cannot show that the future of a
/// passed async closure is `Send`.)
pub(super) trait Asker: Sync {
    fn ask(&self) -> impl Future<Output = Result<Acquired, Error>> + Send;
}

/// Asks until the lease is granted or `wait` is over. `None` waits for ever. Asks at least once, however short the
/// wait.
///
/// Cancel safe: a lease that a dropped future acquired is released.
pub(super) async fn acquire(
    core: &Arc<Core>,
    name: &Name,
    wait: Option<Duration>,
    asker: &impl Asker,
) -> Result<Guard, Error> {
    let started = Moment::now();
    let limit = wait.map(|wait| started + wait);
    let timed_out = |busy| Error::WaitTimeout {
        name: name.clone(),
        waited: started.elapsed(),
        busy: Box::new(busy),
    };

    let waiter = core.waiters.join(name);
    let first = match wait {
        None => waiter.first().await,
        Some(wait) => match timeout(wait, waiter.first()).await {
            Ok(first) => first,
            // Other waiters of this process are first. Ask once, so that the error names the holder.
            Err(_) => match asker.ask().await? {
                Acquired::Held(guard) => return Ok(guard),
                Acquired::Busy(busy) => return Err(timed_out(busy)),
            },
        },
    };

    let mut backoff = backoff::poll();
    loop {
        let over = limit.is_some_and(Moment::has_passed);
        let mut pause = backoff.next().unwrap_or_default();
        match asker.ask().await {
            Ok(Acquired::Held(guard)) => {
                drop(first);
                return Ok(guard);
            }
            Ok(Acquired::Busy(busy)) if over => return Err(timed_out(busy)),
            Ok(Acquired::Busy(Busy { holder, .. })) => {
                if let Some(holder) = holder {
                    pause = pause.min(holder.remaining);
                }
            }
            Err(error) if error.is_transient() && !over => {
                tracing::debug!(%name, %error, "trying again");
            }
            Err(error) => return Err(error),
        }
        let wake = Moment::now() + pause;
        let wake = limit.map_or(wake, |limit| wake.min(limit));
        select! {
            () = sleep_until(wake) => {}
            () = waiter.freed() => backoff = backoff::poll(),
        }
    }
}

#[cfg(all(test, feature = "sqlite"))]
#[path = "wait_tests.rs"]
mod tests;
