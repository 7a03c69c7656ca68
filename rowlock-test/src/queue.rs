//! The queue of a name: who waits, and tasks that wait.

use std::sync::Arc;
use std::time::Duration;

use rowlock::{Error, Held, Lock, Rowlock, WaiterInfo};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::{eventually, patience};

/// A task that waits for a name.
pub type Waiting = JoinHandle<Result<Held, Error>>;

/// The waiters for a name, the first one first.
pub async fn waiters(rowlock: &Rowlock, name: &str) -> Vec<WaiterInfo> {
    rowlock.admin().queue(name).await.unwrap()
}

/// The holders of the waiters for a name, the first one first.
pub async fn queue_of(rowlock: &Rowlock, name: &str) -> Vec<String> {
    let waiters = waiters(rowlock, name).await.into_iter();
    waiters.map(|waiter| waiter.holder).collect()
}

/// Waits until the queue of a name is these waiters, in this order.
pub async fn queue_is(rowlock: &Rowlock, name: &str, holders: &[&str]) {
    let mut queue = queue_of(rowlock, name).await;
    let is_it = async {
        while queue != holders {
            tokio::time::sleep(Duration::from_millis(1)).await;
            queue = queue_of(rowlock, name).await;
        }
    };
    let in_time = timeout(patience(), is_it).await;
    assert!(
        in_time.is_ok(),
        "the queue of {name} is {queue:?}, and never {holders:?}"
    );
}

/// A task that waits for a name with the settings of `with`. It is in the queue when this returns.
pub async fn join_with(
    rowlock: &Rowlock,
    name: &str,
    holder: &str,
    with: impl FnOnce(Lock) -> Lock,
) -> Waiting {
    let lock = with(rowlock.lock(name).holder(Arc::<str>::from(holder)));
    let waiting = tokio::spawn(async move { lock.acquire().await });
    let what = format!("{holder} is in the queue of {name}");
    let joined = async || {
        let queue = queue_of(rowlock, name).await;
        queue.iter().any(|waiter| waiter == holder)
    };
    eventually(&what, joined).await;
    waiting
}

/// A task that waits for a name. It is in the queue when this returns.
pub async fn join(rowlock: &Rowlock, name: &str, holder: &str) -> Waiting {
    join_with(rowlock, name, holder, |lock| lock).await
}

/// Releases a lock that was held until now.
pub async fn release(held: &Held) {
    held.release().await.unwrap();
}

/// Every task releases the name as soon as it has it. Returns their numbers in the order of their fences.
pub async fn turns(waiting: impl IntoIterator<Item = Waiting>) -> Vec<usize> {
    let mut tasks = JoinSet::new();
    for (number, waiting) in waiting.into_iter().enumerate() {
        tasks.spawn(async move {
            let held = waiting.await.unwrap().unwrap();
            release(&held).await;
            (held.fence(), number)
        });
    }
    let mut turns = tasks.join_all().await;
    turns.sort_unstable();
    turns.into_iter().map(|(_, number)| number).collect()
}
