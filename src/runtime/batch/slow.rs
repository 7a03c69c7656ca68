//! Slow operations: operations that may take long. Each runs on a connection of its own.
//!
//! A forced release waits for the transaction that has the row locked. A list and a cleaning read a whole table. On a
//! lane they would delay other jobs; on the connection for looks they would delay open transactions. Each slow
//! operation also has a thread while it runs, because a list of many rows is work for this process too.
//!
//! Cleanings run one after the other and take at most one of the places: they are not urgent, and together they could
//! delay a list or a forced release for long.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::select;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinSet};

use super::job::Job;
use super::lanes::{Lane, Message};
use crate::model::Moment;
use crate::runtime::base::tasks::Member;
use crate::runtime::base::threads::own_runtime;

/// How many slow operations run at a time, each with a connection. The others wait for their turn.
const MOST: usize = 4;

/// A job that may take long.
#[derive(Debug)]
pub(crate) struct SlowOp {
    pub(crate) job: Job,
    pub(crate) kind: SlowKind,
    pub(crate) member: Member,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlowKind {
    /// It removes rows that are no longer needed.
    Cleaning,
    Other,
}

impl SlowKind {
    /// The name for messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cleaning => "a cleaning",
            Self::Other => "a slow operation",
        }
    }
}

#[derive(Debug)]
pub(crate) enum Order {
    Run(SlowOp),
    /// No more slow operations will come.
    Stop,
}

/// Runs each slow operation in a lane that ends with it, until all senders are gone and all slow operations have
/// ended. A slow operation's time counts from the start of its turn.
pub(crate) async fn run(
    mut queue: mpsc::UnboundedReceiver<Order>,
    lane: impl Fn(mpsc::UnboundedReceiver<Message>) -> Lane + 'static,
    operation_timeout: Duration,
) {
    let mut running = JoinSet::new();
    // The cleaning that runs, and the cleanings that wait for its end.
    let mut cleaning: Option<Id> = None;
    let mut cleanings = VecDeque::new();
    let mut is_open = true;
    while is_open || !running.is_empty() {
        let next = select! {
            order = queue.recv(), if is_open && running.len() < MOST => match order {
                Some(Order::Run(slow)) if slow.kind == SlowKind::Cleaning && cleaning.is_some() => {
                    cleanings.push_back(slow);
                    None
                }
                Some(Order::Run(slow)) => Some(slow),
                Some(Order::Stop) | None => {
                    is_open = false;
                    queue.close();
                    // Dropping the queued slow operations tells their callers that they will not run.
                    while queue.try_recv().is_ok() {}
                    cleanings.clear();
                    None
                }
            },
            Some(ended) = running.join_next_with_id() => {
                let ended = ended.map_or_else(|error| error.id(), |(id, ())| id);
                if cleaning.take_if(|cleaning| *cleaning == ended).is_some() {
                    cleanings.pop_front()
                } else {
                    None
                }
            }
        };
        let Some(slow) = next else {
            continue;
        };
        let (mut job, kind) = (slow.job, slow.kind);
        job.head_mut().progress.give_up = Moment::now() + operation_timeout;
        let (sender, alone) = mpsc::unbounded_channel();
        // This function owns the receiver, so the send succeeds.
        let _ = sender.send(Message::Job(job));
        let lane = lane(alone);
        let started = running.spawn_blocking(move || {
            let _member = slow.member;
            match own_runtime() {
                Ok(runtime) => runtime.block_on(lane.work()),
                // Dropping the slow operation tells its caller that it will not run.
                Err(error) => tracing::error!(%error, "a slow operation cannot start a runtime"),
            }
        });
        if kind == SlowKind::Cleaning {
            cleaning = Some(started.id());
        }
    }
}
