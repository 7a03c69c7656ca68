//! The end of a client, in order.
//!
//! 1. No lock is granted and no key is claimed any more.
//! 2. The tasks that go on for callers who have gone come to their end: they may still need all that follows.
//! 3. Errands end.
//! 4. The lanes do what they have to, and end.
//! 5. Nothing is renewed any more, and the cleaner stops. A guard that is still there stays held until its deadline, as
//!    when the database is silent.
//! 6. The threads end.
//!
//! What is not done when the time is over is told. It goes on in the background, until the process ends. Calls that overlap, or
//! that are dropped in the middle, do no harm: each step can be taken again.

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
    /// Stops everything in order, within `limit`. Returns what did not end.
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
        // A lane goes on with what it has told, and what is held has its loss announced: their threads go on.
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

    /// What the lanes leave undone. A lane that waits for the answer to a statement does not tell.
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

/// What has no more to do ends at once: it has this long for that, also when the time is over.
const MOMENT: Duration = Duration::from_millis(100);

async fn within<T>(until: Moment, work: impl Future<Output = T>) -> Option<T> {
    select! {
        biased;
        done = work => Some(done),
        () = sleep_until(until.max(Moment::now()) + MOMENT) => None,
    }
}
