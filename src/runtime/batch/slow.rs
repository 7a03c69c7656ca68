//! Slow operations: operations that may take long. Each runs on a connection of its own.
//!
//! A forced release, a pause and its end wait for the transaction that has the row locked. A list and a cleaning read
//! a whole table, and the end of a session frees all its locks. On a lane they would delay other jobs; on the
//! connection for looks they would delay open transactions. Each slow operation also has a thread while it runs,
//! because a list of many rows is work for this process too. The thread and its connection are kept for a while.

use std::sync::Arc;
use std::time::Duration;

use tokio::select;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, mpsc, oneshot};
use tokio::task::JoinSet;

use super::head::Manner;
use super::job::Job;
use super::lanes::{Lane, Message};
use super::spare::Spare;
use crate::model::{Error, Moment};
use crate::runtime::base::tasks::Member;
use crate::runtime::base::threads::{begin, own_runtime};
use crate::runtime::base::timer::sleep_until_some;

/// How many slow operations run at a time, each with a [spare](Spare) connection. The others wait for their turn.
const MOST: usize = 4;

/// How long a connection is kept for the next slow operation, if nobody else needs it, and it is not the only spare
/// one. (Another one costs 5 ms on PostgreSQL, and 45 ms on `MySQL`; a console reads a page each second.)
const KEPT: Duration = Duration::from_secs(5);

/// A connection that is older is not kept. (The servers may have changed roles: a list still succeeds on a server that
/// was the primary.)
const OLDEST: Duration = Duration::from_secs(30);

/// The name of the thread of slow operations.
const THREAD: &str = "rowlock-slow";

/// A thread with a lane, for one slow operation after the other. It has a spare connection until it ends.
struct Worker {
    /// The lane ends when this is dropped.
    lane: mpsc::UnboundedSender<Message>,
    /// Ends with the thread.
    ended: oneshot::Receiver<()>,
    began: Moment,
    /// The end of its last operation.
    rested_since: Moment,
}

impl Worker {
    /// Resolves when its connection is closed.
    async fn end(self) {
        drop(self.lane);
        let _ = self.ended.await;
    }
}

/// A job that may take long.
#[derive(Debug)]
pub(crate) struct SlowOp {
    pub(crate) job: Job,
    pub(crate) member: Member,
    /// Cleanings take turns, also those whose caller has gone.
    pub(crate) turn: Option<OwnedMutexGuard<()>>,
}

#[derive(Debug)]
pub(crate) enum SlowMessage {
    Run(SlowOp),
    /// No more slow operations will come.
    Stop,
}

/// Runs slow operations until all senders are gone, all slow operations have ended, and their connections are closed.
/// A slow operation's time counts from the start of its turn.
pub(crate) async fn run(
    mut queue: mpsc::UnboundedReceiver<SlowMessage>,
    spare: Arc<Spare>,
    lane: impl Fn(mpsc::UnboundedReceiver<Message>) -> Lane + 'static,
    (target, operation_timeout): (Arc<str>, Duration),
) {
    let mut running = JoinSet::new();
    let mut idle: Vec<Worker> = Vec::new();
    let (mut is_open, keeps) = (true, spare.has_several());
    while is_open || !running.is_empty() {
        let kept = idle.first().map(|worker| worker.rested_since + KEPT);
        let order = select! {
            order = queue.recv(), if is_open && running.len() < MOST => order,
            Some(worker) = running.join_next() => {
                idle.extend(worker.ok().flatten());
                continue;
            }
            () = sleep_until_some(kept) => {
                idle.remove(0);
                continue;
            }
            () = spare.wanted(), if !idle.is_empty() => {
                idle.clear();
                continue;
            }
        };
        let Some(SlowMessage::Run(SlowOp {
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
        // An order is sent only once, and the server may have ended a kept connection: it gets a new one.
        let is_order = job.head().manner == Manner::Order;
        let worker = loop {
            // The one that was used last: the others end.
            if let Some(kept) = idle.pop()
                && !is_order
            {
                break Ok(kept);
            }
            select! {
                permit = spare.take() => break worker(&lane, permit, &target),
                // It may have the last connection.
                Some(worker) = running.join_next() => idle.extend(worker.ok().flatten()),
            }
        };
        // What its caller has seen by then may have changed since: a forced release would free a later holder.
        if job.is_closed() {
            idle.extend(worker);
            continue;
        }
        job.head_mut().progress.give_up = Moment::now() + operation_timeout;
        let mut worker = match worker {
            Ok(worker) => worker,
            // Dropping the slow operation tells its caller that it will not run.
            Err(error) => {
                tracing::error!(%error, "a slow operation does not run");
                continue;
            }
        };
        let (done, is_done) = oneshot::channel();
        let _ = worker.lane.send(Message::Job(job));
        let _ = worker.lane.send(Message::Flush(done));
        running.spawn_local(async move {
            let is_done = is_done.await;
            drop((member, turn));
            worker.rested_since = Moment::now();
            if is_done.is_ok() && keeps && !(worker.began + OLDEST).has_passed() {
                return Some(worker);
            }
            worker.end().await;
            None
        });
    }
    for worker in idle {
        worker.end().await;
    }
}

/// Begins a thread, which has this connection.
fn worker(
    lane: impl Fn(mpsc::UnboundedReceiver<Message>) -> Lane,
    permit: OwnedSemaphorePermit,
    target: &str,
) -> Result<Worker, Error> {
    let (jobs, alone) = mpsc::unbounded_channel();
    let (done, ended) = oneshot::channel::<()>();
    let lane = lane(alone);
    let work = move || {
        let _ends = (permit, done);
        own_runtime()?.block_on(lane.work());
        Ok(())
    };
    begin(THREAD, target, work)?;
    Ok(Worker {
        lane: jobs,
        ended,
        began: Moment::now(),
        rested_since: Moment::now(),
    })
}
