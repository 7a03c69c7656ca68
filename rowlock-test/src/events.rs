//! Waiting for events, and guards that must be there.

use std::future::Future;
use std::time::Duration;

use rowlock::{Held, Rowlock};

/// Waits until `condition` holds. A minute is for what never comes to show: no test measures with it.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + Duration::from_mins(1);
    while !condition().await {
        assert!(
            tokio::time::Instant::now() < deadline,
            "not within a minute: {what}"
        );
        // What is waited for needs the machine, too.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The guard of an attempt that must succeed.
pub async fn take(rowlock: &Rowlock, name: &str, ttl: Duration) -> Held {
    rowlock
        .lock(name)
        .ttl(ttl)
        .try_acquire()
        .await
        .unwrap()
        .held()
        .expect("the name is free")
}

/// Waits until the lease was renewed once more.
pub async fn renewed(held: &Held) {
    let until = held.deadline();
    while held.deadline() == until {
        tokio::task::yield_now().await;
    }
}
