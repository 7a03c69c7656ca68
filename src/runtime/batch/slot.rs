//! One connection, which several links may share.
//!
//! Their calls take turns. A renewal must not wait for a look, or for a login of another link, that gets no answer. So
//! some links are *urgent*: no other link begins a call while an urgent one has something to send, and the call that
//! has the connection then is cut off when it has had its [time](PATIENCE).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;

use tokio::select;
use tokio::sync::{MutexGuard, watch};

use crate::model::Moment;
use crate::runtime::base::timer::sleep_until;
use crate::store::driver::connect::Connection;
use crate::store::verbs::fault::Fault;

/// How long a call has before an urgent one cuts it off.
const PATIENCE: Duration = Duration::from_millis(250);

/// Where one connection is, or will be.
#[derive(Debug)]
pub(super) struct Slot {
    /// Locked during a call, and while the connection is made.
    connection: tokio::sync::Mutex<Option<Made>>,
    /// How many urgent links have something to send.
    urgent: watch::Sender<usize>,
    /// The number of the connection, or of the last one.
    pub(super) number: AtomicU64,
    /// The largest outcome that the server of the last connection accepts, in bytes; 0: it was not asked.
    pub(super) largest: AtomicUsize,
    /// How many links keep it.
    pub(super) keepers: AtomicUsize,
}

#[derive(Debug)]
pub(super) struct Made {
    pub(super) connection: Box<dyn Connection>,
    pub(super) used: Moment,
}

/// The connection, or the place for one, while a link has it.
pub(super) type Place<'a> = MutexGuard<'a, Option<Made>>;

impl Default for Slot {
    fn default() -> Self {
        Self {
            connection: tokio::sync::Mutex::default(),
            urgent: watch::Sender::new(0),
            number: AtomicU64::new(0),
            largest: AtomicUsize::new(0),
            keepers: AtomicUsize::new(0),
        }
    }
}

impl Slot {
    /// Waits for the connection. (An urgent link has a [`Precedence`] meanwhile.)
    pub(super) async fn place(&self, is_urgent: bool) -> Place<'_> {
        if is_urgent {
            return self.connection.lock().await;
        }
        let mut urgent = self.urgent.subscribe();
        loop {
            let place = self.connection.lock().await;
            if *urgent.borrow_and_update() == 0 {
                return place;
            }
            drop(place);
            // The sender is here.
            let _ = urgent.wait_for(|urgent| *urgent == 0).await;
        }
    }

    /// The connection, if no link has it now.
    pub(super) fn try_place(&self) -> Option<Place<'_>> {
        self.connection.try_lock().ok()
    }

    /// Runs a call. It ends early when it is not urgent, has had its time, and an urgent link has something to send.
    pub(super) async fn unless_cut<T>(
        &self,
        is_urgent: bool,
        call: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        if is_urgent {
            return call.await;
        }
        let mut urgent = self.urgent.subscribe();
        let cut = async {
            sleep_until(Moment::now() + PATIENCE).await;
            let _ = urgent.wait_for(|urgent| *urgent > 0).await;
        };
        select! {
            biased;
            done = call => done,
            () = cut => Err(Fault::timed_out()),
        }
    }
}

/// An urgent link has something to send: until this is dropped, no call of another link begins.
#[derive(Debug)]
pub(super) struct Precedence(Arc<Slot>);

impl Precedence {
    pub(super) fn on(slot: &Arc<Slot>) -> Self {
        slot.urgent.send_modify(|urgent| *urgent += 1);
        Self(Arc::clone(slot))
    }
}

impl Drop for Precedence {
    fn drop(&mut self) {
        self.0.urgent.send_modify(|urgent| *urgent -= 1);
    }
}
