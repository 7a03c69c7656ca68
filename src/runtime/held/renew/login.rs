//! The login of a connection for renewals.
//!
//! A login takes several round trips, more than a statement. A bound on it that suits the statements would cut off
//! every login of a slow network, until the leases are lost. So after each attempt that was too slow, the next one may
//! take twice as long. An attempt that is under way when a renewal falls due goes on for the rest of its time.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::timeout;

use crate::model::Moment;
use crate::runtime::batch::link::Link;
use crate::store::driver::connect::Connection;
use crate::store::verbs::fault::Fault;

/// The least time for a login.
const MIN_BOUND: Duration = Duration::from_millis(500);

/// The bound is doubled this often at most. (The operation timeout bounds every login, too.)
const MAX_DOUBLINGS: u32 = 4;

type Dial = Pin<Box<dyn Future<Output = Result<Box<dyn Connection>, Fault>>>>;

#[derive(Default)]
pub(super) struct Login {
    /// The attempt under way, and when it began.
    dial: Option<(Moment, Dial)>,
    /// How many attempts in a row were too slow.
    slow: u32,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dials = self.dial.is_some();
        f.debug_struct("Login")
            .field("dials", &dials)
            .field("slow", &self.slow)
            .finish()
    }
}

impl Login {
    /// Connects, unless there is a connection. Dropping the future keeps the attempt: the next call goes on with it.
    pub(super) async fn connect(&mut self, link: &mut Link) -> Result<(), Fault> {
        if !link.is_connected() {
            let begin = || (Moment::now(), Box::pin(link.dial()) as Dial);
            let (_, dial) = self.dial.get_or_insert_with(begin);
            let made = dial.await;
            self.dial = None;
            link.put(made?);
        }
        self.slow = 0;
        Ok(())
    }

    /// [`Self::connect`], bounded: by `limit`, if no login was too slow for it before.
    pub(super) async fn finish(&mut self, link: &mut Link, limit: Duration) -> Result<(), Fault> {
        let bound = |slow: u32| limit.max(MIN_BOUND) * (1 << slow);
        let mut began = self
            .dial
            .as_ref()
            .map_or(Moment::now(), |(began, _)| *began);
        if (began + bound(self.slow)).has_passed() {
            self.is_too_slow();
            began = Moment::now();
        }
        let rest = (began + bound(self.slow)).remaining();
        let made = timeout(rest, self.connect(link)).await;
        made.unwrap_or_else(|_| {
            self.is_too_slow();
            Err(Fault::timed_out())
        })
    }

    fn is_too_slow(&mut self) {
        self.dial = None;
        self.slow = (self.slow + 1).min(MAX_DOUBLINGS);
    }
}
