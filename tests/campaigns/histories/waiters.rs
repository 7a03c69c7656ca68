//! Looks at the queues while the processes work. The holder in a waiter's row is the number of its acquire, so the
//! history tells what became of it. A waiter that comes and goes between two looks is not counted.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use rowlock_test::{Db, on_app};
use tokio::time::{MissedTickBehavior, interval};

use super::event::{Answer, Event};

/// The pace of the looks.
const PACE: Duration = Duration::from_millis(20);

/// Adds the acquires that have a waiter to `seen`, until it is dropped.
pub(crate) async fn watch(db: &Db, seen: &RefCell<BTreeSet<u64>>) -> Infallible {
    let mut pace = interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        pace.tick().await;
        let holders: Vec<String> = on_app!(&db.app, pool => {
            sqlx::query_scalar("SELECT holder FROM rowlock_waiter").fetch_all(pool).await.unwrap()
        });
        let acquires = holders.iter().map(|holder| holder.parse::<u64>());
        seen.borrow_mut()
            .extend(acquires.map(|id| id.expect("the number of an acquire")));
    }
}

/// What became of the acquires that were seen in a queue.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outcomes {
    /// The name was passed on to them.
    pub(crate) granted: usize,
    /// Their time was over.
    pub(crate) busy: usize,
    /// They were dropped, or their process was killed, before they had an answer.
    pub(crate) open: usize,
}

impl Outcomes {
    pub(crate) fn of(seen: &BTreeSet<u64>, events: &[Event]) -> Self {
        let mut outcomes = Self {
            open: seen.len(),
            ..Self::default()
        };
        for event in events {
            let Event::Answered { id, answer, .. } = event else {
                continue;
            };
            if seen.contains(id) {
                outcomes.open -= 1;
                match answer {
                    Answer::Granted(_) => outcomes.granted += 1,
                    _ => outcomes.busy += 1,
                }
            }
        }
        outcomes
    }
}

impl fmt::Display for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            granted,
            busy,
            open,
        } = self;
        write!(f, "{granted} were granted, {busy} timed out, {open} open")
    }
}
