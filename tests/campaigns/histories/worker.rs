//! A process that uses the library: a few tasks that acquire leases, look at them and release them, or drop them.

use std::rc::Rc;
use std::time::Duration;

use rand::Rng;
use rowlock::{Error, Held, Lock, LockInfo, Rowlock};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{sleep, timeout};

use super::event::{Answer, Ask, Grant, Numbers, answered, is_in_session};
use super::{Means, TASKS, a_name};
use crate::role::Role;

pub(crate) async fn work(role: &Role, number: u64, means: Means) {
    let rowlock = role.connect().await;
    let numbers = Rc::new(Numbers::new(number));
    let mut tasks = JoinSet::new();
    let local = LocalSet::new();
    for _ in 0..TASKS {
        let task = Task {
            rowlock: rowlock.clone(),
            numbers: Rc::clone(&numbers),
            ttl: role.ttl,
        };
        match means {
            Means::Permits => tasks.spawn_local_on(task.run_permits(), &local),
            _ => tasks.spawn_local_on(task.run(), &local),
        };
    }
    local.run_until(tasks.join_all()).await;
}

/// The longest wait, in milliseconds.
pub(super) const MAX_WAIT: u64 = 200;

/// Up to so many milliseconds.
pub(crate) fn up_to(most: u64) -> Duration {
    Duration::from_millis(rand::rng().random_range(0..=most))
}

pub(super) struct Task {
    pub(super) rowlock: Rowlock,
    pub(super) numbers: Rc<Numbers>,
    pub(super) ttl: Duration,
}

impl Task {
    async fn run(self) {
        loop {
            let name = a_name();
            let held = match rand::rng().random_range(0..10) {
                0 | 1 => {
                    self.inspect(&name).await;
                    None
                }
                2 | 3 => self.acquire_cut_off(&name).await,
                4 | 5 => self.acquire(&name).await,
                _ => self.try_acquire(&name).await,
            };
            if let Some((held, grant)) = held {
                self.hold(&name, held, grant).await;
            }
            sleep(up_to(30)).await;
        }
    }

    /// Holds the lease for a moment, or for longer than its TTL, and looks at it meanwhile.
    async fn hold(&self, name: &str, held: Held, grant: Grant) {
        for _ in 0..rand::rng().random_range(0..5) {
            sleep(up_to(if rand::rng().random_bool(0.1) {
                250
            } else {
                40
            }))
            .await;
            if rand::rng().random_bool(0.5) {
                self.check(name, &held, grant);
            } else {
                self.inspect(name).await;
            }
        }
        if rand::rng().random_bool(0.7) {
            self.release(name, &held, grant).await;
        } else {
            self.numbers.asked(name, Ask::Drop(grant));
        }
    }

    fn lock(&self, name: &str, id: u64) -> Lock {
        let lock = self.rowlock.lock(name).holder(id.to_string());
        let lock = if is_in_session(id) {
            lock.in_session()
        } else {
            lock.ttl(self.ttl)
        };
        lock.wait(up_to(MAX_WAIT))
    }

    async fn try_acquire(&self, name: &str) -> Option<(Held, Grant)> {
        let id = self.numbers.asked(name, Ask::TryAcquire);
        acquired(id, self.lock(name, id).wait(Duration::ZERO).acquire().await)
    }

    async fn acquire(&self, name: &str) -> Option<(Held, Grant)> {
        let id = self.numbers.asked(name, Ask::Acquire);
        let held = self.lock(name, id).acquire().await;
        acquired(id, held)
    }

    /// The future is dropped after a moment, perhaps before it has an outcome: while it asks or joins the queue, or at
    /// any time until its wait is over.
    async fn acquire_cut_off(&self, name: &str) -> Option<(Held, Grant)> {
        let id = self.numbers.asked(name, Ask::Acquire);
        let moment = up_to(if rand::rng().random_bool(0.5) {
            8
        } else {
            MAX_WAIT
        });
        let lock = self.lock(name, id);
        let held = timeout(moment, lock.acquire()).await.ok()?;
        acquired(id, held)
    }

    async fn inspect(&self, name: &str) {
        let id = self.numbers.asked(name, Ask::Inspect);
        match self.rowlock.inspect(name).await {
            Ok(Some(lock)) => answered(id, Answer::Held(grant_of(&lock))),
            Ok(None) => answered(id, Answer::Free),
            Err(error) => failed(id, &error),
        }
    }

    pub(super) fn check(&self, name: &str, held: &Held, grant: Grant) {
        let id = self.numbers.asked(name, Ask::Check(grant));
        let remaining = held.remaining();
        let answer = if remaining.is_zero() {
            Answer::Lost
        } else {
            Answer::Trusted(remaining)
        };
        answered(id, answer);
    }

    pub(super) async fn release(&self, name: &str, held: &Held, grant: Grant) {
        let id = self.numbers.asked(name, Ask::Release(grant));
        match held.release().await {
            Ok(()) => answered(id, Answer::Released),
            Err(Error::Lost { .. }) => answered(id, Answer::Lost),
            Err(error) => failed(id, &error),
        }
    }
}

/// Tells of the outcome of acquire `id`.
fn acquired(id: u64, outcome: Result<Held, Error>) -> Option<(Held, Grant)> {
    let busy = match outcome {
        Ok(held) => {
            let fence = held.fence();
            answered(id, Answer::Granted(fence));
            return Some((held, Grant { fence, by: id }));
        }
        Err(Error::WaitTimeout { busy, .. }) => *busy,
        Err(error) => {
            failed(id, &error);
            return None;
        }
    };
    answered(id, Answer::Busy(busy.holder.as_ref().map(grant_of)));
    None
}

/// An operation with an error that passes stays open, like an operation of a process that was killed.
pub(super) fn failed(id: u64, error: &Error) {
    if !error.is_transient() {
        answered(id, Answer::Failed(error.to_string()));
    }
}

fn grant_of(lock: &LockInfo) -> Grant {
    Grant {
        fence: lock.fence,
        by: lock.holder.parse().expect("the number of an acquire"),
    }
}
