//! Slow operations: operations that may take long. Each runs on a connection of its own.
//!
//! A forced release, a pause and its end wait for the transaction that has the row locked. A list and a cleaning read
//! a whole table, and the end of a session frees all its locks. On a lane they would delay other jobs; on the
//! connection for looks they would delay open transactions. Each slow operation also has a thread while it runs,
//! because a list of many rows is work for this process too.

use std::sync::Arc;
use std::time::Duration;

use tokio::select;
use tokio::sync::{OwnedMutexGuard, mpsc, oneshot};
use tokio::task::JoinSet;

use super::job::Job;
use super::lanes::{Lane, Message};
use super::spare::Spare;
use crate::model::Moment;
use crate::runtime::base::tasks::Member;
use crate::runtime::base::threads::{begin, own_runtime};

/// How many slow operations run at a time, each with a [spare](Spare) connection. The others wait for their turn.
const MOST: usize = 4;

/// The name of the thread of a slow operation.
const THREAD: &str = "rowlock-slow";

/// A job that may take long.
#[derive(Debug)]
pub(crate) struct SlowOp {
    pub(crate) job: Job,
    pub(crate) member: Member,
    /// Cleanings take turns, also those whose caller has gone.
    pub(crate) turn: Option<OwnedMutexGuard<()>>,
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
    spare: Arc<Spare>,
    lane: impl Fn(mpsc::UnboundedReceiver<Message>) -> Lane + 'static,
    (target, operation_timeout): (Arc<str>, Duration),
) {
    let mut running = JoinSet::new();
    let mut is_open = true;
    while is_open || !running.is_empty() {
        let order = select! {
            order = queue.recv(), if is_open && running.len() < MOST => order,
            Some(_) = running.join_next() => continue,
        };
        let Some(Order::Run(SlowOp {
            mut job,
            member,
            turn,
        })) = order
        else {
            is_open = false;
            queue.close();
            // Dropping the queued slow operations tells their callers that they will not run.
            while queue.try_recv().is_ok() {}
            continue;
        };
        let room = spare.take().await;
        // What its caller has seen by then may have changed since: a forced release would free a later holder.
        if job.is_closed() {
            continue;
        }
        job.head_mut().progress.give_up = Moment::now() + operation_timeout;
        let (sender, alone) = mpsc::unbounded_channel();
        // This function owns the receiver, so the send succeeds.
        let _ = sender.send(Message::Job(job));
        let lane = lane(alone);
        let (done, ended) = oneshot::channel::<()>();
        let work = move || {
            let _ends = (member, turn, room, done);
            own_runtime()?.block_on(lane.work());
            Ok(())
        };
        // Dropping the slow operation tells its caller that it will not run.
        if let Err(error) = begin(THREAD, &target, work) {
            tracing::error!(%error, "a slow operation does not run");
        }
        running.spawn_local(async move {
            let _ = ended.await;
        });
    }
}
