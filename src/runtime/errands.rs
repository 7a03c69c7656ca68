//! Errands: what may take long, each on a connection of its own.
//!
//! A forced release waits for the transaction that has the row locked; a list reads a whole table, and so does cleaning. On a
//! lane they would hold up other jobs, and beside the lanes the looks that open transactions wait for. Each has a thread
//! for as long as it runs: what a list of many rows brings is work for this process, too.
//!
//! Cleanings take one place at most, one after the other: nobody is in a hurry for them, and together they could keep a list or
//! a forced release waiting for long.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::select;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinSet};

use super::job::Job;
use super::lanes::{Lane, Message};
use super::tasks::Member;
use super::threads::own_runtime;
use crate::model::Moment;

/// How many run at a time, each with a connection; the others wait for their turn.
const MOST: usize = 4;

/// What may take long.
#[derive(Debug)]
pub(crate) struct Errand {
    pub(crate) job: Job,
    pub(crate) kind: ErrandKind,
    pub(crate) member: Member,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrandKind {
    /// It removes rows that are needed no longer.
    Cleaning,
    Other,
}

impl ErrandKind {
    /// For people to read.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cleaning => "a cleaning",
            Self::Other => "an errand",
        }
    }
}

#[derive(Debug)]
pub(crate) enum Order {
    Run(Errand),
    /// No errand comes any more.
    Stop,
}

/// Gives each errand a lane that ends with it, until all senders are gone and everything is done. Its time counts from
/// when its turn comes.
pub(super) async fn run(
    mut queue: mpsc::UnboundedReceiver<Order>,
    lane: impl Fn(mpsc::UnboundedReceiver<Message>) -> Lane + 'static,
    operation_timeout: Duration,
) {
    let mut running = JoinSet::new();
    // The cleaning that runs, and those that wait for its end.
    let mut cleaning: Option<Id> = None;
    let mut cleanings = VecDeque::new();
    let mut is_open = true;
    while is_open || !running.is_empty() {
        let next = select! {
            order = queue.recv(), if is_open && running.len() < MOST => match order {
                Some(Order::Run(errand)) if errand.kind == ErrandKind::Cleaning && cleaning.is_some() => {
                    cleanings.push_back(errand);
                    None
                }
                Some(Order::Run(errand)) => Some(errand),
                Some(Order::Stop) | None => {
                    is_open = false;
                    queue.close();
                    // Their callers hear that nothing works on them.
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
        let Some(errand) = next else {
            continue;
        };
        let (mut job, kind) = (errand.job, errand.kind);
        job.head_mut().fate.give_up = Moment::now() + operation_timeout;
        let (sender, alone) = mpsc::unbounded_channel();
        // The receiver is right here.
        let _ = sender.send(Message::Job(job));
        let lane = lane(alone);
        let started = running.spawn_blocking(move || {
            let _member = errand.member;
            match own_runtime() {
                Ok(runtime) => runtime.block_on(lane.work()),
                // Its caller hears that nobody works on it any more.
                Err(error) => tracing::error!(%error, "an errand cannot start a runtime"),
            }
        });
        if kind == ErrandKind::Cleaning {
            cleaning = Some(started.id());
        }
    }
}
