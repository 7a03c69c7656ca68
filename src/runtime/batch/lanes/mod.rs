//! Lanes: group commit for operations.
//!
//! # Overview
//!
//! A lane is a task with a connection of its own. A batch takes all operations that have arrived, at most one per
//! name, and sends each kind, or two that go together, as one statement. Operations that arrive meanwhile form the
//! next batch. An operation alone leaves at once. Answers go to their callers [together](post).
//!
//! Reads of one record that wait together share one answer, and so do claims of it. Large outcomes are read in bounded
//! portions, one per batch. The statements of an attempt on its record arrive in order, even when one of them is put
//! off.
//!
//! # Failure
//!
//! - *The statement was refused and may be sent again* (deadlock, serialization failure, busy): it is sent again,
//!   after growing pauses, until the operation's time is over.
//! - *The statement was refused for good*: its jobs are sent again in halves, so that only the guilty one fails.
//! - *The connection broke*: all jobs of the batch are in doubt. They are sent again on the next connection, where
//!   every verb finds the effect of an earlier sending of the same grant. An outcome that cannot be found out in time
//!   is reported as unknown, and an acquire is undone. A job that breaks the connection twice may be the cause (a
//!   server ends the connection when a statement is too large). Such jobs are sent in ever smaller statements, at last
//!   alone. A job that breaks the connection alone lets the others go first.
//! - *Jobs that are sent again* go together, as the first time: under load most jobs are retries.
//! - *The caller is gone*: an acquire that was not sent is skipped. An acquire that was sent produces a guard that no
//!   caller receives, and dropping a guard releases.
//! - *The server may still run a statement that we gave up on*, or receive it late: the first sending of an acquire
//!   would then grant the name to nobody. So an acquire that was in doubt is undone when it ends, whether it was given
//!   up, refused, or granted by a later sending and released. An undo that finds nothing to undo is repeated, with
//!   growing pauses, for as long as the lease could last (10 minutes at most).

mod batch;
mod batch_limits;
mod failure;
mod pending;
mod post;
mod subject;
#[cfg(test)]
mod tests;
mod trouble;

use std::sync::Arc;

use tokio::select;
use tokio::sync::{mpsc, oneshot};

use super::job::{Job, SharedBatch};
use super::link::Link;
use crate::model::{FaultKind, Moment, Unfinished};
use crate::runtime::base::timer::{sleep_until, sleep_until_some};
use crate::store::driver::request::RequestLimit;
use crate::store::verbs::fault::Fault;
pub(crate) use batch_limits::MAX_BYTES;
use pending::Pending;
pub(crate) use post::Home;
use post::Post;
use trouble::Trouble;

/// A message to a lane.
#[derive(Debug)]
pub(crate) enum Message {
    Job(Job),
    /// Answered when all jobs before it are done.
    Flush(oneshot::Sender<()>),
    /// The lane reports the duties that it has left: when it has none, or when the time is over.
    Report(Report),
    /// No more duties will come: the lane ends when its jobs are done, and reports then, or when the time is over.
    Stop(Report),
}

/// A shutdown's question what is left.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) until: Moment,
    pub(crate) left: oneshot::Sender<Vec<Unfinished>>,
}

/// A lane, as its clients see it.
#[derive(Debug)]
pub(crate) struct LaneHandle {
    pub(crate) jobs: mpsc::UnboundedSender<Message>,
    pub(crate) home: Arc<Home>,
}

impl LaneHandle {
    pub(crate) fn new(jobs: mpsc::UnboundedSender<Message>) -> Self {
        let home = Arc::default();
        Self { jobs, home }
    }
}

#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) link: Link,
    pub(crate) target: Arc<str>,
    queue: mpsc::UnboundedReceiver<Message>,
    pending: Pending,
    trouble: Trouble,
    /// A statement of this batch was refused and has to be sent again. The rest of the batch goes back to the queue,
    /// so that the time of every job is checked before the next wait.
    refused: bool,
    /// A statement of this batch met a read-only server.
    read_only: Option<Fault>,
    /// Random, from 0 to 1, drawn for each batch; see [`Pending::put_off`].
    jitter: f64,
    /// The questions without an answer yet.
    reports: Vec<Report>,
    is_stopped: bool,
    /// Where its callers wait.
    home: Arc<Home>,
    post: Post,
    /// The batches that two kinds of request share.
    shared: Vec<SharedBatch>,
}

impl Lane {
    /// `limit` applies to requests to the server.
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
            refused: false,
            read_only: None,
            jitter: 0.0,
            reports: Vec::new(),
            is_stopped: false,
            home: Arc::default(),
            post: Post::default(),
            shared: Vec::new(),
        }
    }

    /// A lane with these shared batches.
    pub(crate) fn with_shared(self, shared: [SharedBatch; 2]) -> Self {
        let shared = shared.into();
        Self { shared, ..self }
    }

    /// A lane that knows where its callers wait.
    pub(crate) fn with_home(self, home: &Arc<Home>) -> Self {
        Self {
            home: Arc::clone(home),
            ..self
        }
    }

    /// Works until all senders are gone and all jobs are done, or until it is stopped.
    pub(crate) async fn work(mut self) {
        while self.gather().await {
            if self.connect().await {
                let batch = self.pick();
                self.execute(batch).await;
            }
        }
        self.post.deliver_all();
        self.report_if(|_| true);
        self.link.close().await;
    }

    /// Whether the lane was told to stop and has nothing left to do. From then on it accepts nothing.
    fn has_ended(&mut self) -> bool {
        if !self.is_stopped || !self.pending.is_done() {
            return false;
        }
        self.queue.close();
        // Jobs that were sent before that.
        self.take_in();
        self.pending.is_done()
    }

    /// When the lane has to report what is left.
    fn reports_at(&self) -> Option<Moment> {
        self.reports.iter().map(|report| report.until).min()
    }

    fn report_in_time(&mut self) {
        let is_free = !self.is_stopped && self.pending.duties().next().is_none();
        self.report_if(|report| is_free || report.until.has_passed());
    }

    fn report_if(&mut self, is_due: impl Fn(&Report) -> bool) {
        if self.reports.is_empty() {
            return;
        }
        let unfinished: Vec<_> = self.pending.duties().map(Unfinished::of).collect();
        for report in std::mem::take(&mut self.reports) {
            if is_due(&report) {
                let _ = report.left.send(unfinished.clone());
            } else {
                self.reports.push(report);
            }
        }
    }

    /// Waits for work and takes in all of it. False: no work will come any more.
    async fn gather(&mut self) -> bool {
        loop {
            self.take_in();
            self.report_in_time();
            if self.has_ended() {
                return false;
            }
            if !self.pending.is_idle() {
                return true;
            }
            self.post.deliver();
            let wakes_at = self.pending.wakes_at().into_iter();
            let due = wakes_at.chain(self.reports_at()).min();
            let idle_at = self.link.idle_at();
            select! {
                message = self.queue.recv() => match (message, due) {
                    (Some(message), _) => self.arrive(message),
                    (None, Some(due)) => sleep_until(due).await,
                    (None, None) => return false,
                },
                () = sleep_until_some(due) => {}
                () = sleep_until_some(idle_at) => self.link.close_idle().await,
            }
        }
    }

    /// Takes in all jobs that have arrived, and those that have waited long enough.
    fn take_in(&mut self) {
        self.receive();
        if self.is_asked() {
            // An answer without a caller may leave another job.
            self.post.deliver_all();
            self.receive();
        }
        self.pending.answer_flushes();
    }

    fn receive(&mut self) {
        self.pending.wake(Moment::now());
        while let Ok(message) = self.queue.try_recv() {
            self.arrive(message);
        }
    }

    /// Whether somebody waits until all jobs are done, or asks what is left.
    fn is_asked(&self) -> bool {
        self.is_stopped || !self.reports.is_empty() || self.pending.has_flushes()
    }

    fn arrive(&mut self, message: Message) {
        match message {
            Message::Job(job) => self.pending.arrive(job),
            Message::Flush(reply) => self.pending.flush(reply),
            Message::Report(report) => self.reports.push(report),
            Message::Stop(report) => {
                self.reports.push(report);
                self.is_stopped = true;
            }
        }
    }

    /// Connects, as often as needed, while operations wait for it. False: the time of all of them was over first.
    async fn connect(&mut self) -> bool {
        if self.link.is_known() {
            return true;
        }
        self.post.deliver();
        // One attempt goes on while operations give up: under load some operation always gives up.
        let mut dialing = None;
        loop {
            let Some(give_up) = self.expire() else {
                return false;
            };
            self.report_in_time();
            if self.is_stopped && self.pending.is_done() {
                return false;
            }
            let give_up = self.reports_at().map_or(give_up, |at| give_up.min(at));
            let dial_at = self.trouble.dial_at();
            if !dial_at.has_passed() {
                sleep_until(dial_at.min(give_up)).await;
                continue;
            }
            let attempt = dialing.get_or_insert_with(|| Box::pin(self.link.dial(true)));
            let made = select! {
                made = attempt => made,
                () = sleep_until(give_up) => continue,
            };
            dialing = None;
            match made {
                Ok(()) => return true,
                Err(fault) => self.cannot_connect(fault),
            }
        }
    }

    fn cannot_connect(&mut self, fault: Fault) {
        tracing::warn!(target = %self.target, error = %fault, "cannot connect, will try again");
        if fault.kind == FaultKind::ReadOnly {
            self.refuse_waiting_takes(&fault);
        }
        self.strike(fault);
    }

    fn strike(&mut self, fault: Fault) {
        self.trouble.strike(fault, Moment::now());
    }

    /// Gives up the operations whose time is over. Returns when the next one's time is over.
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

    /// Puts back jobs that were not sent because the batch ended before their turn.
    fn not_sent(&mut self, jobs: Vec<Job>) {
        for job in jobs.into_iter().rev() {
            self.pending.push_front(job.again());
        }
    }
}
