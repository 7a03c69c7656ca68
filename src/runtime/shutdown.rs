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

use std::time::Duration;

use super::base::tasks::TaskKind;
use super::batch::handle::{MOMENT, before};
use super::batch::lanes::Message;
use super::core::Core;
use super::wait::queue_place::leave_all;
use crate::model::{Moment, Unfinished};

impl Core {
    /// Shuts down in order, within `limit` and a [`MOMENT`] for each step. Returns what did not end.
    pub(crate) async fn shut_down(&self, limit: Duration) -> Vec<Unfinished> {
        let (until, tasks) = (Moment::now() + limit, &self.lanes.tasks);
        let mark = self.lanes.close();
        self.queue.closing.notify_waiters();
        self.queue.keepers.recall_all();
        within(until, async {
            tasks.ended(&[TaskKind::Work], mark).await;
            tasks.ended(&[TaskKind::Finish], u64::MAX).await;
        })
        .await;
        let mut unfinished = self.running(TaskKind::Work, mark);
        unfinished.extend(self.running(TaskKind::Finish, u64::MAX));
        if unfinished.is_empty() {
            self.lanes.stop_slow();
            let slow = [TaskKind::Order, TaskKind::SlowOp];
            within(until, tasks.ended(&slow, u64::MAX)).await;
        }
        for kind in [TaskKind::Order, TaskKind::SlowOp] {
            unfinished.extend(self.running(kind, u64::MAX));
        }
        self.leave_queues();
        unfinished.extend(self.lanes.report(Message::Report, until).await);
        let guards = self.holdings.guards.list().into_iter();
        unfinished.extend(guards.map(|on| Unfinished::new("hold", Some(on))));
        if unfinished.is_empty() {
            unfinished = self.end(until).await;
        }
        unfinished.append(&mut self.lanes.take_undelivered());
        unfinished
    }

    fn leave_queues(&self) {
        leave_all(&self.queue, &*self.holdings.on_end);
    }

    fn running(&self, kind: TaskKind, mark: u64) -> Vec<Unfinished> {
        let names = self.lanes.tasks.running(kind, mark).into_iter();
        names.map(|name| Unfinished::new(name, None)).collect()
    }

    /// Ends the lanes, the renewals, the cleaner and the threads, which nothing needs any more.
    async fn end(&self, until: Moment) -> Vec<Unfinished> {
        self.cleaner.stop();
        self.leave_queues();
        self.holdings.leave_session();
        let unfinished = self.lanes.report(Message::Stop, until).await;
        if !unfinished.is_empty() {
            return unfinished;
        }
        self.holdings.renewals.close();
        self.queue.close();
        let threads = [TaskKind::Lanes, TaskKind::Renewals];
        let tasks = &self.lanes.tasks;
        within(until, tasks.ended(&threads, u64::MAX)).await;
        let running = threads.map(|kind| tasks.running(kind, u64::MAX));
        let running = running.into_iter().flatten();
        running.map(Unfinished::thread).collect()
    }
}

async fn within<T>(until: Moment, work: impl Future<Output = T>) -> Option<T> {
    before(until.max(Moment::now()) + MOMENT, work).await
}
