//! Shutting a client down, in order.
//!
//! 1. The client grants no lock and claims no key any more.
//! 2. The tasks that go on for callers who have gone end. They may still need everything below.
//! 3. Errands end.
//! 4. The lanes finish their duties, and end.
//! 5. Renewals and the cleaner stop. A lease that still has a guard stays held until its deadline, as when the database is
//!    silent.
//! 6. The threads end.
//!
//! Shutdown reports the work that is unfinished when the time is over. That work goes on until the process ends. Calls may
//! overlap or be dropped in the middle, because each step can be repeated.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::select;
use tokio::sync::oneshot;

use super::Core;
use super::errands::Order;
use super::lanes::Message;
use super::tasks::Kind;
use super::timer::sleep_until;
use crate::model::{Moment, Unfinished};

impl Core {
    /// Shuts down in order, within `limit`. Returns what did not end.
    pub(crate) async fn shut_down(&self, limit: Duration) -> Vec<Unfinished> {
        let until = Moment::now() + limit;
        self.closing.store(true, Ordering::Release);
        within(until, self.tasks.ended(&[Kind::Work])).await;
        let _ = self.errands.send(Order::Stop);
        let errands = [Kind::Order, Kind::Errand];
        within(until, self.tasks.ended(&errands)).await;
        let mut unfinished = self.stop_lanes(until).await;
        self.cleaner.stop();
        let held = self.renewals.stop();
        // The thread of the lanes goes on with the duties that they have reported, and the thread of the renewals goes on to
        // announce the loss of leases that are still held.
        let mut threads = Vec::new();
        if unfinished.is_empty() {
            threads.push(Kind::Lanes);
        }
        if held.is_empty() {
            threads.push(Kind::Renewals);
        }
        within(until, self.tasks.ended(&threads)).await;
        unfinished.append(&mut self.undelivered());
        unfinished.extend(held.into_iter().map(|on| Unfinished::new("hold", Some(on))));
        for kind in [Kind::Work, Kind::Order, Kind::Errand] {
            let running = self.tasks.running(kind).into_iter();
            unfinished.extend(running.map(|name| Unfinished::new(name, None)));
        }
        for kind in threads {
            let running = self.tasks.running(kind).into_iter();
            unfinished
                .extend(running.map(|name| Unfinished::new(format!("the thread {name}"), None)));
        }
        unfinished
    }

    /// Stops the lanes. Returns what they leave undone; a lane that waits for the answer to a statement does not report.
    async fn stop_lanes(&self, until: Moment) -> Vec<Unfinished> {
        let until = until.max(Moment::now() + MOMENT);
        let mut stopping = Vec::new();
        for lane in self.lanes.iter().chain([&self.aside]) {
            let (left, answer) = oneshot::channel();
            if lane.send(Message::Stop { until, left }).is_ok() {
                stopping.push(answer);
            }
        }
        let mut unfinished = Vec::new();
        let told = async {
            for answer in stopping {
                unfinished.extend(answer.await.unwrap_or_default());
            }
        };
        within(until, told).await;
        unfinished
    }
}

/// A part without work gets this long to end, even when the time is over.
const MOMENT: Duration = Duration::from_millis(100);

async fn within<T>(until: Moment, work: impl Future<Output = T>) -> Option<T> {
    select! {
        biased;
        done = work => Some(done),
        () = sleep_until(until.max(Moment::now()) + MOMENT) => None,
    }
}
