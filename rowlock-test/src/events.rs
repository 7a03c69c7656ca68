//! Waiting for events, and for locks that must be free.

use std::future::Future;
use std::time::{Duration, Instant};

use rowlock::{Builder, Busy, Error, Held, Loss, Rowlock, RunInfo};

use crate::patience;

/// Waits until `condition` holds. Panics when the test's [`patience`] is over, so that a test whose event never comes
/// fails.
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

/// A client whose operations have little time: a busy server may not answer it when it connects.
pub async fn connected(builder: &Builder, url: &str) -> Rowlock {
    answered(async || builder.clone().connect(url).await).await
}

/// What operations with little time return in the end: a busy server may not answer the first ones.
pub async fn answered<T>(ask: impl AsyncFn() -> Result<T, Error>) -> T {
    let began = Instant::now();
    loop {
        match ask().await {
            Err(error) if error.is_transient() && began.elapsed() < patience() => {}
            answer => return answer.unwrap_or_else(|error| panic!("{error}")),
        }
    }
}

/// The last run of the work under a lock, if one was recorded.
pub async fn last_run(rowlock: &Rowlock, name: &str) -> Option<RunInfo> {
    let runs = rowlock.admin().runs_of(name).await;
    runs.unwrap().into_iter().next()
}

/// Takes a lock that must be free. (Another verb may have its row locked for a moment: then nobody is told as its
/// holder.)
pub async fn take(rowlock: &Rowlock, name: &str, ttl: Duration) -> Held {
    let deadline = tokio::time::Instant::now() + patience();
    let lock = rowlock.lock(name).ttl(ttl).wait(Duration::ZERO);
    loop {
        let busy = match lock.acquire().await {
            Ok(held) => return held,
            Err(Error::WaitTimeout { busy, .. }) => busy,
            Err(error) => panic!("{error}"),
        };
        let is_in_the_way =
            busy.holder.is_some() || busy.quarantine.is_some() || busy.pause.is_some();
        let is_a_moment = !is_in_the_way && busy.waiters == 0;
        let has_time = tokio::time::Instant::now() < deadline;
        assert!(is_a_moment && has_time, "the name is free: {busy}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until the lease is renewed once more. Panics when it is lost before.
pub async fn renewed(held: &Held) {
    let until = held.deadline();
    while held.deadline() == until {
        assert_eq!(held.loss(), None, "it is renewed");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// How a lease was lost, as its release tells.
pub fn loss(released: Result<(), Error>) -> Option<Loss> {
    match released {
        Ok(()) => None,
        Err(Error::Lost { loss, .. }) => Some(loss),
        Err(error) => panic!("{error}"),
    }
}

/// Who is in the way of an acquire whose wait is over.
pub fn busy<H: std::fmt::Debug>(acquired: Result<H, Error>) -> Busy {
    match acquired {
        Err(Error::WaitTimeout { busy, .. }) => *busy,
        other => panic!("{other:?}"),
    }
}
