//! The waiters of this client on a Galera cluster. Those for one name queue, and only the first one asks the database.
//! It is woken at once when this client releases the name. (Elsewhere waiters are in the [queue](super::queue) of the
//! database.)

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use super::queue::Queue;
use crate::model::Name;
use crate::store::verbs::release::FreeOutcome;

/// The queues of all names that a task of this process waits for.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    by_name: Mutex<Queues>,
    /// The waiters in the queues of the database.
    pub(crate) queue: Arc<Queue>,
}

/// Each with the number of its waiters.
type Queues = HashMap<Name, (usize, Arc<NameWaiters>)>;

#[derive(Debug)]
struct NameWaiters {
    /// One permit: that of the first.
    first: Semaphore,
    freed: Notify,
}

/// A task in a queue. It leaves when this is dropped.
#[derive(Debug)]
pub(crate) struct Waiter {
    waiters: Arc<Waiters>,
    name: Name,
    queue: Arc<NameWaiters>,
}

impl Waiters {
    pub(crate) fn join(self: &Arc<Self>, name: &Name) -> Waiter {
        let queue = || {
            let (first, freed) = (Semaphore::new(1), Notify::new());
            (0, Arc::new(NameWaiters { first, freed }))
        };
        let mut queues = self.by_name.lock();
        let (count, queue) = queues.entry(name.clone()).or_insert_with(queue);
        *count += 1;
        Waiter {
            waiters: Arc::clone(self),
            name: name.clone(),
            queue: Arc::clone(queue),
        }
    }

    /// A release was answered: wakes the waiter whose turn it is.
    pub(crate) fn settled(&self, name: &Name, freed: &FreeOutcome) {
        match freed {
            FreeOutcome::Passed(next) => self.queue.all_passed(next),
            FreeOutcome::Released | FreeOutcome::WasFree | FreeOutcome::Expired => {
                match name.of_permit() {
                    Some(name) => self.freed(&name),
                    None => self.freed(name),
                }
            }
            FreeOutcome::Superseded | FreeOutcome::Locked => {}
        }
    }

    /// This process released the name: wakes the first waiter.
    pub(crate) fn freed(&self, name: &Name) {
        if let Some((_, queue)) = self.by_name.lock().get(name) {
            queue.freed.notify_one();
        }
    }
}

impl Waiter {
    /// Resolves when all earlier waiters have left. First come, first served.
    pub(crate) async fn first(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.queue.first.acquire().await.ok()
    }

    /// Resolves when this process has released the name since the last call.
    pub(crate) async fn freed(&self) {
        self.queue.freed.notified().await;
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut queues = self.waiters.by_name.lock();
        if let Some((count, _)) = queues.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                queues.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn who_came_first_is_first_until_it_leaves() {
        let waiters = Arc::new(Waiters::default());
        let name = Name::new("a").unwrap();
        let (one, two) = (waiters.join(&name), waiters.join(&name));
        let mut cx = Context::from_waker(Waker::noop());
        let first = {
            let mut turn = pin!(one.first());
            match turn.as_mut().poll(&mut cx) {
                Poll::Ready(first) => first.expect("a queue"),
                Poll::Pending => panic!("nobody is before"),
            }
        };
        let mut turn = pin!(two.first());
        assert!(turn.as_mut().poll(&mut cx).is_pending());
        drop(first);
        assert!(turn.as_mut().poll(&mut cx).is_ready());
    }

    #[test]
    fn a_name_is_kept_for_as_long_as_somebody_waits_for_it() {
        let waiters = Arc::new(Waiters::default());
        let name = Name::new("a").unwrap();
        let names = || waiters.by_name.lock().len();
        let (one, two) = (waiters.join(&name), waiters.join(&name));
        drop(one);
        assert_eq!(names(), 1);
        drop(two);
        assert_eq!(names(), 0);
    }
}
