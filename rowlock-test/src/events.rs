//! Waiting for events, and for locks that must be free.

use std::future::Future;
use std::time::Duration;

use rowlock::{Held, Rowlock};

use crate::patience;

/// Waits until `condition` holds. Panics when the test's [`patience`] is over, so that a test whose event never comes fails.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + patience();
    while !condition().await {
        assert!(
            tokio::time::Instant::now() < deadline,
            "this never came: {what}"
        );
        // The awaited event needs the CPU, too.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Takes a lock that must be free.
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

/// Waits until the lease is renewed once more.
pub async fn renewed(held: &Held) {
    let until = held.deadline();
    while held.deadline() == until {
        tokio::task::yield_now().await;
    }
}
