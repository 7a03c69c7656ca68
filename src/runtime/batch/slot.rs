//! One connection, which several links may share.
//!
//! Renewals go first. While one waits, no other call begins. A call that is running then is cut off after
//! [250 ms](TIME_BEFORE_CUT). If it is cut off again, its time doubles, up to the time that the renewal can wait. A
//! call that has waited for a [second](STARVED) goes before renewals.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;

use tokio::select;
use tokio::sync::{MutexGuard, watch};

use crate::model::Moment;
use crate::runtime::base::timer::sleep_until;
use crate::store::driver::connector::Connection;

/// How long a call has before an urgent one cuts it off.
pub(super) const TIME_BEFORE_CUT: Duration = Duration::from_millis(250);

/// A call that has waited for this long has its turn, also before urgent ones.
const STARVED: Duration = Duration::from_secs(1);

/// How many calls of a link in a row were cut off for an urgent one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cuts(pub(super) u32);

impl Cuts {
    /// How long the next call has before an urgent one cuts it off.
    pub(super) fn time_before_cut(self) -> Duration {
        TIME_BEFORE_CUT * (1 << self.0.min(4))
    }

    pub(super) fn note(&mut self, was_cut: bool) {
        self.0 = if was_cut { self.0 + 1 } else { 0 };
    }
}

/// Where one connection is, or will be.
#[derive(Debug)]
pub(super) struct Slot {
    /// Locked during a call, and while the connection is made.
    connection: tokio::sync::Mutex<Option<Made>>,
    urgent: watch::Sender<Urgent>,
    /// The number of the connection, or of the last one.
    pub(super) number: AtomicU64,
    /// The largest outcome that the server of the last connection accepts, in bytes; 0: it was not asked.
    pub(super) largest: AtomicUsize,
    /// How many links keep it.
    pub(super) keepers: AtomicUsize,
}

/// What urgent links have to send.
#[derive(Debug, Clone, Copy)]
struct Urgent {
    /// How many links have something to send.
    links: usize,
    /// How long the last one of them can wait.
    wait: Duration,
}

#[derive(Debug)]
pub(super) struct Made {
    pub(super) connection: Box<dyn Connection>,
    pub(super) used: Moment,
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            connection: tokio::sync::Mutex::default(),
            urgent: watch::Sender::new(Urgent {
                links: 0,
                wait: TIME_BEFORE_CUT,
            }),
            number: AtomicU64::new(0),
            largest: AtomicUsize::new(0),
            keepers: AtomicUsize::new(0),
        }
    }
}

impl Slot {
    /// Waits for the connection. (An urgent link has a [`Precedence`] meanwhile.)
    pub(super) async fn connection(&self, is_urgent: bool) -> MutexGuard<'_, Option<Made>> {
        let mut urgent = self.urgent.subscribe();
        let starved = Moment::now() + STARVED;
        loop {
            let lock = self.connection.lock().await;
            if is_urgent || urgent.borrow_and_update().links == 0 || starved.has_passed() {
                return lock;
            }
            drop(lock);
            select! {
                _ = urgent.wait_for(|urgent| urgent.links == 0) => {}
                () = sleep_until(starved) => {}
            }
        }
    }

    /// The connection, if no link has it now.
    pub(super) fn try_connection(&self) -> Option<MutexGuard<'_, Option<Made>>> {
        self.connection.try_lock().ok()
    }

    /// Runs a call. `None`: it was cut off, because it has had its time, and an urgent link has something to send. An
    /// urgent call has no such `patience`.
    pub(super) async fn unless_cut<T>(
        &self,
        patience: Option<Duration>,
        call: impl Future<Output = T>,
    ) -> Option<T> {
        let Some(patience) = patience else {
            return Some(call.await);
        };
        let began = Moment::now();
        let mut urgent = self.urgent.subscribe();
        let cut = async {
            loop {
                // The sender is here.
                let wait = urgent.wait_for(|urgent| urgent.links > 0).await;
                let wait = wait.map_or(patience, |urgent| urgent.wait);
                sleep_until(began + patience.min(wait)).await;
                if urgent.borrow().links > 0 {
                    return;
                }
            }
        };
        select! {
            biased;
            done = call => Some(done),
            () = cut => None,
        }
    }
}

/// An urgent link has something to send: until this is dropped, other links do not begin a call at once.
#[derive(Debug)]
pub(super) struct Precedence(Arc<Slot>);

impl Precedence {
    pub(super) fn on(slot: &Arc<Slot>, wait: Duration) -> Self {
        slot.urgent.send_modify(|urgent| {
            urgent.links += 1;
            urgent.wait = wait;
        });
        Self(Arc::clone(slot))
    }
}

impl Drop for Precedence {
    fn drop(&mut self) {
        self.0.urgent.send_modify(|urgent| urgent.links -= 1);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn a_call_is_cut_when_an_urgent_link_can_wait_no_longer() {
        let slot = Arc::new(Slot::default());
        let patience = Duration::from_mins(2);
        let call = slot.unless_cut(Some(patience * 10), pending::<()>());
        let _urgent = Precedence::on(&slot, Duration::ZERO);
        assert_eq!(tokio::time::timeout(patience, call).await, Ok(None));
    }
}
