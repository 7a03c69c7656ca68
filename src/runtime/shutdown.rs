//! Shutting a client down, in order.
//!
//! 1. The client grants no lock and claims no key any more, but to the tasks of step 2.
//! 2. The tasks that go on for callers who have gone end. They may still need everything below.
//! 3. Errands end.
//! 4. The lanes finish what they have.
//! 5. When no guard is left and no task runs: the lanes, the renewals, the cleaner and the threads end.
//!
//! A guard that is left is reported, and stays good: its lease is renewed, it can be released, and its attempt can still record
//! its outcome. The threads end after the last guard, as when the last handle of a client is dropped. So a shutdown loses
//! nothing; the end of the process does.
//!
//! Calls may overlap or be dropped in the middle, because each step can be repeated.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::select;
use tokio::sync::oneshot;

use super::Core;
use super::errands::Order;
use super::lanes::Message;
use super::tasks::{self, Kind};
use super::timer::sleep_until;
use crate::model::{Moment, Unfinished};

impl Core {
    /// Shuts down in order, within `limit`. Returns what did not end.
    pub(crate) async fn shut_down(&self, limit: Duration) -> Vec<Unfinished> {
        let until = Moment::now() + limit;
        // Later calls keep the mark of the first one.
        self.closing.fetch_min(tasks::started(), Ordering::AcqRel);
        within(until, self.tasks.ended(&[Kind::Work])).await;
        let _ = self.errands.send(Order::Stop);
        let errands = [Kind::Order, Kind::Errand];
        within(until, self.tasks.ended(&errands)).await;
        within(until, self.flush_lanes()).await;
        let held = self.renewals.held();
        let mut unfinished: Vec<_> = held
            .into_iter()
            .map(|on| Unfinished::new(HOLD, Some(on)))
            .collect();
        for kind in [Kind::Work, Kind::Order, Kind::Errand] {
            let running = self.tasks.running(kind).into_iter();
            unfinished.extend(running.map(|name| Unfinished::new(name, None)));
        }
        if unfinished.is_empty() {
            unfinished = self.end(until).await;
        }
        unfinished.append(&mut self.undelivered());
        unfinished
    }

    /// Ends the lanes, the renewals, the cleaner and the threads, when nothing needs them any more.
    async fn end(&self, until: Moment) -> Vec<Unfinished> {
        self.cleaner.stop();
        let mut unfinished = self.stop_lanes(until).await;
        let held = self.renewals.close();
        let held = held.into_iter().map(|on| Unfinished::new(HOLD, Some(on)));
        unfinished.extend(held);
        // Their threads go on with what is reported here.
        if !unfinished.is_empty() {
            return unfinished;
        }
        let threads = [Kind::Lanes, Kind::Renewals];
        within(until, self.tasks.ended(&threads)).await;
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

/// A guard that is left.
const HOLD: &str = "hold";

/// A part without work gets this long to end, even when the time is over.
const MOMENT: Duration = Duration::from_millis(100);

async fn within<T>(until: Moment, work: impl Future<Output = T>) -> Option<T> {
    select! {
        biased;
        done = work => Some(done),
        () = sleep_until(until.max(Moment::now()) + MOMENT) => None,
    }
}
