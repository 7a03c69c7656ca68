//! Shutting a client down, in order.
//!
//! 1. The client grants no lock and claims no key any more, but to the tasks of step 2.
//! 2. The tasks that go on for callers who have gone end. They may still need everything below.
//! 3. Slow operations end.
//! 4. The lanes finish what they have.
//! 5. When all of that has ended and no guard is left: the lanes, the renewals, the cleaner and the threads end.
//!
//! What is left is reported, and goes on. A guard stays good: its lease is renewed, it can be released, and its
//! attempt can still record its outcome. The threads end after the last guard, as when the last handle of a client is
//! dropped. So a shutdown loses nothing; the end of the process does.
//!
//! The order of the questions matters. Only tasks of step 2 and jobs in a lane make guards. So the tasks are asked
//! first, then the lanes, and the guards last: when all three answers are empty, no guard can come any more. A release
//! in between is in a lane before its guard leaves the set, and a lane that is stopped finishes its duties first.
//!
//! (A task of step 2 that calls shutdown is not waited for. It must not ask for a lock at the same time.)
//!
//! Calls may overlap or be dropped in the middle, because each step can be repeated.

use std::sync::PoisonError;
use std::time::Duration;

use tokio::select;
use tokio::sync::oneshot;

use super::Core;
use super::lanes::{Message, Report};
use super::slow::Order;
use super::tasks::Kind;
use super::threads::LANES;
use super::timer::sleep_until;
use crate::model::{Moment, Unfinished};

impl Core {
    /// Shuts down in order, within `limit` and a [`MOMENT`] for each step. Returns what did not end.
    pub(crate) async fn shut_down(&self, limit: Duration) -> Vec<Unfinished> {
        let until = Moment::now() + limit;
        let mark = self.close();
        within(until, async {
            self.tasks.ended(&[Kind::Work], mark).await;
            self.tasks.ended(&[Kind::Finish], u64::MAX).await;
        })
        .await;
        let mut unfinished = self.running(Kind::Work, mark);
        unfinished.extend(self.running(Kind::Finish, u64::MAX));
        if unfinished.is_empty() {
            let _ = self.slow.send(Order::Stop);
            let slow = [Kind::Order, Kind::SlowOp];
            within(until, self.tasks.ended(&slow, u64::MAX)).await;
        }
        for kind in [Kind::Order, Kind::SlowOp] {
            unfinished.extend(self.running(kind, u64::MAX));
        }
        self.leave_queues();
        unfinished.extend(self.ask_lanes(Message::Report, until).await);
        let guards = self.guards.list().into_iter();
        unfinished.extend(guards.map(|on| Unfinished::new("hold", Some(on))));
        if unfinished.is_empty() {
            unfinished = self.end(until).await;
        }
        unfinished.append(&mut self.undelivered());
        unfinished
    }

    /// Grants nothing any more to later tasks. Returns the [mark](super::tasks::Tasks::mark) of the first call.
    fn close(&self) -> u64 {
        // It waits for callers who are about to hand an acquire to a lane.
        let mut closing = self.closing.write().unwrap_or_else(PoisonError::into_inner);
        let mark = *closing.get_or_insert_with(|| self.tasks.mark());
        drop(closing);
        self.queue.closing.notify_waiters();
        self.queue.keepers.recall_all();
        mark
    }

    fn running(&self, kind: Kind, mark: u64) -> Vec<Unfinished> {
        let names = self.tasks.running(kind, mark).into_iter();
        names.map(|name| Unfinished::new(name, None)).collect()
    }

    /// Ends the lanes, the renewals, the cleaner and the threads, which nothing needs any more.
    async fn end(&self, until: Moment) -> Vec<Unfinished> {
        self.cleaner.stop();
        self.leave_queues();
        self.leave_session();
        let unfinished = self.ask_lanes(Message::Stop, until).await;
        if !unfinished.is_empty() {
            return unfinished;
        }
        self.renewals.close();
        let threads = [Kind::Lanes, Kind::Renewals];
        within(until, self.tasks.ended(&threads, u64::MAX)).await;
        let running = threads.map(|kind| self.tasks.running(kind, u64::MAX));
        running.into_iter().flatten().map(thread).collect()
    }

    /// Asks each lane what it leaves undone. A lane that waits for the answer to a statement does not report.
    async fn ask_lanes(&self, ask: impl Fn(Report) -> Message, until: Moment) -> Vec<Unfinished> {
        let until = until.max(Moment::now() + MOMENT / 2);
        let deadline = until + MOMENT / 2;
        let lanes = self.lanes.iter().map(|lane| &lane.jobs);
        let lanes = lanes.chain([&self.aside]);
        let asked = lanes.map(|lane| {
            let (left, told) = oneshot::channel();
            // A lane that has ended has left nothing.
            let _ = lane.send(ask(Report { until, left }));
            told
        });
        let asked: Vec<_> = asked.collect();
        let (mut unfinished, mut silent) = (Vec::new(), None);
        for told in asked {
            match before(deadline, told).await {
                Some(left) => unfinished.extend(left.unwrap_or_default()),
                None => silent = Some(thread(LANES)),
            }
        }
        unfinished.extend(silent);
        unfinished
    }
}

fn thread(name: &'static str) -> Unfinished {
    Unfinished::new(format!("the thread {name}"), None)
}

/// A part without work gets this long to end, even when the time is over.
const MOMENT: Duration = Duration::from_millis(100);

async fn within<T>(until: Moment, work: impl Future<Output = T>) -> Option<T> {
    before(until.max(Moment::now()) + MOMENT, work).await
}

async fn before<T>(deadline: Moment, work: impl Future<Output = T>) -> Option<T> {
    select! {
        biased;
        done = work => Some(done),
        () = sleep_until(deadline) => None,
    }
}
