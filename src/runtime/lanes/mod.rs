//! Lanes: group commit for operations.
//!
//! # Overview
//!
//! A lane is a task with a connection of its own. It takes every operation that has arrived, at most
//! one per name, and runs each verb as one statement; what arrives in the meantime is the next
//! batch. There is no timer and no added delay: alone, an operation leaves at once.
//!
//! Reads of one record that wait together share one answer, and so do claims of it. Large outcomes are read in bounded
//! portions, one in each batch. What an attempt says of its record arrives in order, also what was put off.
//!
//! # Failure
//!
//! - *The statement was refused and may be sent again* (deadlock, serialization failure, busy): it
//!   is, after growing pauses, until the operation's time is over.
//! - *The statement was refused for good*: its jobs are sent again in halves, so that only the guilty one fails.
//! - *The connection broke*: the outcome of all of them is in doubt. They are sent again on the next
//!   connection; every verb finds what an earlier sending of the same grant did. What cannot be
//!   found out before that is reported as unknown, and an acquire is undone. What breaks it
//!   twice may be guilty of that (a statement that the server finds too large ends the connection): such operations are
//!   sent in ever smaller statements, at last alone, and what breaks the connection alone makes way for the others.
//! - *What is sent again* is sent together, as the first time: there is most of it when there is most to do.
//! - *The caller is gone*: an acquire that was not sent is skipped. One that was sent gives a guard
//!   that nobody receives, and dropping a guard releases.
//! - *The server may still be working on a statement that we gave up on*, or get it late: the first sending of an
//!   acquire would then grant the name to nobody. So an acquire that was in doubt is undone when it ends, however it
//!   ends: given up, refused, or granted by a later sending and released. An undo that finds nothing to undo is
//!   repeated, with growing pauses, for as long as the lease could last (10 minutes at most).

mod batch;
mod failure;
mod pending;
mod place;
mod room;
#[cfg(test)]
mod tests;
mod trouble;

use std::sync::Arc;
use std::time::Duration;

use tokio::select;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::job::Job;
use super::link::Link;
use crate::model::{FaultKind, Moment, Unfinished};
use crate::runtime::timer::sleep_until;
use crate::store::fault::Fault;
use crate::store::{RequestLimit, Session};
use pending::Pending;
pub(crate) use room::MAX_BYTES;
use trouble::Trouble;

/// What is sent to a lane.
#[derive(Debug)]
pub(crate) enum Message {
    Job(Job),
    /// Answered when everything before it is done.
    Flush(oneshot::Sender<()>),
    /// Nothing new comes any more: the lane ends when its duties are done. It tells what is left by then, or when the time is
    /// over.
    Stop {
        until: Moment,
        left: oneshot::Sender<Vec<Unfinished>>,
    },
}

#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) link: Link,
    pub(crate) target: Arc<str>,
    queue: mpsc::UnboundedReceiver<Message>,
    pending: Pending,
    trouble: Trouble,
    /// The largest outcome that the server takes, in bytes.
    largest: usize,
    /// A statement of this batch was refused and is to be sent again: what is left of the batch goes
    /// back, so that the time of every job is checked before the next wait.
    refused: bool,
    /// A statement of this batch has found that the server takes no writes.
    read_only: Option<Fault>,
    /// By chance, from 0 to 1, anew for every batch; see [`Pending::put_off`].
    jitter: f64,
    stop: Option<Stop>,
}

/// The lane is to end.
#[derive(Debug)]
struct Stop {
    /// When it tells what is left, if it has not ended by then. It goes on all the same.
    until: Moment,
    left: Vec<oneshot::Sender<Vec<Unfinished>>>,
}

impl Lane {
    /// `limit` is for requests to the server.
    pub(crate) fn new(
        link: Link,
        queue: mpsc::UnboundedReceiver<Message>,
        limit: RequestLimit,
        target: Arc<str>,
    ) -> Self {
        Self {
            link,
            target,
            queue,
            pending: Pending::within(limit),
            trouble: Trouble::none(Moment::now()),
            largest: usize::MAX,
            refused: false,
            read_only: None,
            jitter: 0.0,
            stop: None,
        }
    }

    /// Works until all senders are gone and everything is done, or until it is stopped.
    pub(crate) async fn work(mut self) {
        while self.gather().await {
            if self.connect().await {
                let batch = self.pick();
                self.execute(batch).await;
            }
        }
        self.tell_left();
        for job in self.pending.leave() {
            let error = self.gave_up(&job);
            job.fail(error);
        }
    }

    /// Whether it is to end, and has no duty. From then on nothing arrives.
    fn has_ended(&mut self) -> bool {
        if self.stop.is_none() || !self.pending.has_no_duty() {
            return false;
        }
        self.queue.close();
        // What was handed in before that.
        self.take_in();
        self.pending.has_no_duty()
    }

    /// When it has to tell what is left.
    fn tells_at(&self) -> Option<Moment> {
        let stop = self.stop.as_ref().filter(|stop| !stop.left.is_empty());
        stop.map(|stop| stop.until)
    }

    fn tell_in_time(&mut self) {
        if self.tells_at().is_some_and(Moment::has_passed) {
            self.tell_left();
        }
    }

    fn tell_left(&mut self) {
        if let Some(stop) = &mut self.stop {
            let unfinished: Vec<_> = self.pending.duties().map(Unfinished::of).collect();
            for left in stop.left.drain(..) {
                let _ = left.send(unfinished.clone());
            }
        }
    }

    /// Waits until there is something to do, and takes in all there is. False: nothing will come.
    async fn gather(&mut self) -> bool {
        loop {
            self.take_in();
            self.tell_in_time();
            if self.has_ended() {
                return false;
            }
            if !self.pending.is_idle() {
                return true;
            }
            let wakes_at = self.pending.wakes_at().into_iter();
            match wakes_at.chain(self.tells_at()).min() {
                None => match self.queue.recv().await {
                    Some(message) => self.arrive(message),
                    None => return false,
                },
                Some(at) => select! {
                    Some(message) = self.queue.recv() => self.arrive(message),
                    () = sleep_until(at) => {}
                },
            }
        }
    }

    /// Everything that has arrived, or has waited long enough.
    fn take_in(&mut self) {
        self.pending.wake(Moment::now());
        while let Ok(message) = self.queue.try_recv() {
            self.arrive(message);
        }
        self.pending.answer_flushes();
    }

    fn arrive(&mut self, message: Message) {
        match message {
            Message::Job(job) => self.pending.arrive(job),
            Message::Flush(reply) => self.pending.flush(reply),
            Message::Stop { until, left } => {
                let left_to = Stop {
                    until,
                    left: Vec::new(),
                };
                let stop = self.stop.get_or_insert(left_to);
                stop.until = stop.until.max(until);
                stop.left.push(left);
            }
        }
    }

    /// Makes the connection, as often as it takes, while operations wait for it. False: the
    /// time of all of them was over first.
    async fn connect(&mut self) -> bool {
        // One attempt goes on while operations give up: under load one of them always does.
        let mut dialing = None;
        while !self.link.is_connected() {
            let Some(give_up) = self.expire() else {
                return false;
            };
            self.tell_in_time();
            let give_up = self.tells_at().map_or(give_up, |at| give_up.min(at));
            let dial_at = self.trouble.dial_at();
            if !dial_at.has_passed() {
                sleep_until(dial_at.min(give_up)).await;
                continue;
            }
            let attempt = dialing.get_or_insert_with(|| {
                let timeout = self.link.operation_timeout();
                Box::pin(meet(self.link.dial(), timeout))
            });
            let made = select! {
                made = attempt => made,
                () = sleep_until(give_up) => continue,
            };
            dialing = None;
            match made {
                Ok((session, largest)) => {
                    self.link.put(session);
                    self.largest = largest;
                }
                Err(fault) => {
                    tracing::warn!(target = %self.target, error = %fault, "cannot connect");
                    if fault.kind == FaultKind::ReadOnly {
                        self.refuse_waiting_takes(&fault);
                    }
                    self.strike(fault);
                }
            }
        }
        true
    }

    fn strike(&mut self, fault: Fault) {
        self.trouble.strike(fault, Moment::now());
    }

    /// Gives up on the operations whose time is over, and tells when the next one's is.
    fn expire(&mut self) -> Option<Moment> {
        self.take_in();
        self.give_up_in_time(Moment::now());
        self.pending.answer_flushes();
        self.pending.gives_up_at()
    }

    fn give_up_in_time(&mut self, now: Moment) {
        for job in self.pending.expire(now) {
            let error = self.gave_up(&job);
            job.fail(error);
        }
    }

    /// The next batch.
    fn pick(&mut self) -> Vec<Job> {
        let now = Moment::now();
        self.give_up_in_time(now);
        self.pending.pick(now)
    }

    /// Takes back jobs that were not sent, because the batch ended before their turn.
    fn not_sent(&mut self, jobs: Vec<Job>) {
        for job in jobs.into_iter().rev() {
            self.pending.push_front(job.again());
        }
    }
}

/// A connection, and how large the outcomes are that its server takes. (That succeeds also while statements fail, and is no
/// sign that the trouble is over.) Both are one attempt, so that a job whose time is over does not wait for a server that
/// accepts and is silent.
async fn meet(
    dial: impl Future<Output = Result<Box<dyn Session>, Fault>>,
    operation_timeout: Duration,
) -> Result<(Box<dyn Session>, usize), Fault> {
    let mut session = dial.await?;
    let largest = timeout(operation_timeout, session.largest_outcome()).await;
    let largest = largest.unwrap_or_else(|_| Err(Fault::timed_out()))?;
    Ok((session, largest))
}
