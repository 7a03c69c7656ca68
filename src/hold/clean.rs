//! The cleaner: removes records and form tokens whose time is over, in the background.
//!
//! # Overview
//!
//! A task on the thread of the renewals, with a connection that it makes for each round. A round is small batches, each of
//! them one short transaction, with four times as long a pause behind each as it took, until nothing is left. Cleaners of several
//! processes pass each other's rows over.
//!
//! # Trust window
//!
//! Nothing depends on it: whoever asks for a key judges its record by the clock, cleaned or not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::select;
use tokio::sync::Notify;

use super::clock::{Moment, sleep_until};
use super::link::Link;
use crate::store::Connector;
use crate::store::fault::Fault;
use crate::store::record::{CleanedRows, Records};

/// How much longer than a batch the pause behind it is: others need the server, too.
const REST: u32 = 4;

/// The rows of one kind in one batch.
pub(crate) const BATCH: u32 = 500;

/// The way to the cleaner. Dropping it ends its task.
#[derive(Debug)]
pub(crate) struct Cleaner(Arc<Shared>);

#[derive(Debug, Default)]
pub(crate) struct Shared {
    wanted: AtomicBool,
    closed: AtomicBool,
    news: Notify,
}

impl Cleaner {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self(Arc::clone(shared))
    }

    /// From now on there may be something to clean.
    pub(crate) fn start(&self) {
        if !self.0.wanted.swap(true, Ordering::AcqRel) {
            self.0.news.notify_one();
        }
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
        self.0.news.notify_one();
    }
}

/// Cleans every so often; never, without a time.
pub(super) async fn run<C: Connector>(
    mut link: Link<C>,
    shared: &Shared,
    every: Option<Duration>,
    target: &str,
) {
    let Some(every) = every else {
        return;
    };
    // What starts together must not clean together.
    let mut next = Moment::now() + every.mul_f64(fastrand::f64());
    while !shared.closed.load(Ordering::Acquire) {
        if !shared.wanted.load(Ordering::Acquire) {
            shared.news.notified().await;
            continue;
        }
        if !next.has_passed() {
            select! {
                () = shared.news.notified() => {}
                () = sleep_until(next) => {}
            }
            continue;
        }
        if let Err(fault) = round(&mut link, shared).await {
            tracing::warn!(%target, error = %fault, "cannot clean");
        }
        link.hang_up();
        next = Moment::now() + every.mul_f64(0.75 + fastrand::f64() / 2.0);
    }
}

async fn round<C: Connector>(link: &mut Link<C>, shared: &Shared) -> Result<(), Fault> {
    while !shared.closed.load(Ordering::Acquire) {
        link.connect().await?;
        let began = Moment::now();
        let patience = link.patience();
        let cleaned = link
            .run(patience, async |conn: &mut C::Connection| {
                conn.clean(BATCH).await
            })
            .await?;
        if !cleaned.is_full(BATCH) {
            break;
        }
        sleep_until(Moment::now() + began.elapsed() * REST).await;
    }
    Ok(())
}

impl CleanedRows {
    /// Whether there may be more.
    pub(crate) fn is_full(&self, batch: u32) -> bool {
        let most = self.outcomes.max(self.records).max(self.tokens);
        most >= u64::from(batch)
    }
}
