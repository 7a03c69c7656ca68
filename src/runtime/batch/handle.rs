//! The handle to the lanes: hands a job to its lane, and waits for the answer.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::select;
use tokio::sync::{OwnedMutexGuard, mpsc, oneshot};

use super::alone::alone;
use super::endpoints::Endpoints;
use super::head::{JobHead, Manner, Progress};
use super::job::{Job, Reply};
use super::lanes::{LaneHandle, Message, Report};
use super::slow::{SlowMessage, SlowOp};
use crate::model::{Error, Moment, Name, Subject, Unfinished};
use crate::runtime::base::backoff;
use crate::runtime::base::tasks::{TaskKind, Tasks};
use crate::runtime::base::threads::LANES;
use crate::runtime::base::timer::sleep_until;
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;

/// The bound of a look beside a transaction of the caller's, in a database with one writer. Either it is answered at
/// once, or it cannot be answered before that transaction ends (an in-memory database locks whole tables).
pub(crate) const ASIDE_LIMIT: Duration = Duration::from_millis(250);

/// The most undelivered duties that a shutdown lists.
const MAX_UNDELIVERED: usize = 1_000;

/// A part without work gets this long to end, even when the time is over.
pub(crate) const MOMENT: Duration = Duration::from_millis(100);

/// What a client sends with.
pub(crate) struct Lanes {
    all: Vec<LaneHandle>,
    /// The connection for looks. A long look delays no operation, and a caller's open transaction that keeps the lanes
    /// from writing does not keep it from reading.
    aside: mpsc::UnboundedSender<Message>,
    slow: mpsc::UnboundedSender<SlowMessage>,
    /// One cleaning runs at a time: several could delay a list or a forced release for long.
    cleaning: Arc<tokio::sync::Mutex<()>>,
    endpoints: Arc<Endpoints>,
    pub(crate) target: Arc<str>,
    pub(crate) operation_timeout: Duration,
    one_writer: bool,
    /// What this client has started.
    pub(crate) tasks: Tasks,
    /// When its shutdown began, as a [mark](Tasks::mark): later tasks are granted nothing any more. `None`: it has not
    /// begun.
    closing: RwLock<Option<u64>>,
    /// Duties that arrived after the lanes had ended.
    undelivered: Mutex<Vec<Unfinished>>,
}

impl fmt::Debug for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lanes = f.debug_struct("Lanes");
        lanes.field("target", &self.target).finish_non_exhaustive()
    }
}

/// The ends of the channels to the lanes.
#[derive(Debug)]
pub(crate) struct Channels {
    pub(crate) lanes: Vec<LaneHandle>,
    pub(crate) aside: mpsc::UnboundedSender<Message>,
    pub(crate) slow: mpsc::UnboundedSender<SlowMessage>,
}

impl Lanes {
    /// `one_writer`: the database has one writer at a time.
    pub(crate) fn new(
        channels: Channels,
        endpoints: Arc<Endpoints>,
        (target, operation_timeout): (Arc<str>, Duration),
        one_writer: bool,
        tasks: Tasks,
    ) -> Self {
        let Channels { lanes, aside, slow } = channels;
        Self {
            all: lanes,
            aside,
            slow,
            cleaning: Arc::default(),
            endpoints,
            target,
            operation_timeout,
            one_writer,
            tasks,
            closing: RwLock::default(),
            undelivered: Mutex::default(),
        }
    }

    /// Hands `job` to the lane of its subject. A subject always has the same lane, so its jobs keep their order.
    pub(crate) fn send(&self, job: impl Into<Job>) {
        let job = job.into();
        // Until the job is in the lane: a shutdown that begins now asks the lane after that.
        let closing = job.may_grant().then(|| self.closing.read());
        if closing.as_deref().is_some_and(|mark| self.is_closed(*mark)) {
            return job.fail(self.stopped());
        }
        let number = job.head().subject.as_ref().map_or(0, |subject| {
            let mut hasher = DefaultHasher::new();
            subject.hash(&mut hasher);
            usize::try_from(hasher.finish() % self.all.len() as u64).unwrap_or(0)
        });
        let lane = &self.all[number];
        self.hand_in(&lane.jobs, job);
        lane.home.note();
    }

    /// A lane ends before its senders when the client shuts down or the lane's thread panicked.
    fn hand_in(&self, lane: &mpsc::UnboundedSender<Message>, job: Job) {
        let Err(mpsc::error::SendError(Message::Job(job))) = lane.send(Message::Job(job)) else {
            return;
        };
        if job.head().manner == Manner::Duty {
            let mut undelivered = self.undelivered.lock();
            if undelivered.len() < MAX_UNDELIVERED {
                undelivered.push(Unfinished::of(job.head()));
            }
        }
        job.fail(self.stopped());
    }

    /// Whether the lanes have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.all.iter().all(|lane| lane.jobs.is_closed())
    }

    /// Returns an error when this client is shutting down: it grants nothing any more.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        let mark = *self.closing.read();
        if self.is_closed(mark) {
            return Err(self.stopped());
        }
        Ok(())
    }

    /// Whether this client shuts down.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.read().is_some()
    }

    /// Whether the caller is granted nothing any more. (A task that was spawned before may need a lock to come to its
    /// end.)
    fn is_closed(&self, mark: Option<u64>) -> bool {
        mark.is_some_and(|mark| !self.tasks.called_from_before(mark))
    }

    /// Grants nothing any more to later tasks. Returns the [mark](Tasks::mark) of the first call.
    pub(crate) fn close(&self) -> u64 {
        // It waits for callers who are about to hand an acquire to a lane.
        let mut closing = self.closing.write();
        *closing.get_or_insert_with(|| self.tasks.mark())
    }

    /// What the answers of the database pass through.
    #[cfg(feature = "testing")]
    pub(crate) fn gate(&self) -> &super::gate::Gate {
        &self.endpoints.gate
    }

    /// Why the last connection could not be made; `None` when it was made, or when no server answered.
    pub(crate) fn unreachable(&self, doing: &'static str) -> Option<Error> {
        let fault = self.endpoints.refusal()?;
        Some(fault.into_error(doing, &self.target))
    }

    /// Sends a job and waits for the answer. Dropping the future does not stop the job.
    pub(crate) async fn answer<T, J: Into<Job>>(
        &self,
        job: impl FnOnce(Reply<T>) -> J,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        self.send(job(reply));
        self.heard(answer).await
    }

    /// The answer to a job, as soon as it is there.
    pub(crate) async fn heard<T>(
        &self,
        answer: oneshot::Receiver<Result<T, Error>>,
    ) -> Result<T, Error> {
        answer.await.unwrap_or_else(|_| Err(self.stopped()))
    }

    /// Runs a verb that shares no statement, in its turn among the jobs on `subject`.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        head: JobHead,
        verb: impl AsyncFnMut(&mut dyn Store) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Error> {
        self.answer(|reply| alone(head, verb, reply)).await
    }

    /// Runs a verb on a row again and again while a transaction has the row locked (`None`). It is done even when no
    /// caller waits.
    pub(crate) async fn until_unlocked<T: Send + 'static>(
        &self,
        (row, name): (Subject, &Name),
        doing: &'static str,
        verb: impl AsyncFnMut(&mut dyn Store) -> Result<Option<T>, Fault> + Clone + Send + 'static,
    ) -> Result<T, Error> {
        let give_up = Moment::now() + self.operation_timeout;
        let mut backoff = backoff::poll();
        loop {
            let head = JobHead::new(row.clone(), doing, Manner::Duty, self.progress());
            if let Some(done) = self.run(head, verb.clone()).await? {
                return Ok(done);
            }
            if give_up.has_passed() {
                let name = name.clone();
                return Err(Error::RowLocked { doing, name });
            }
            sleep_until(Moment::now() + backoff.next().unwrap_or_default()).await;
        }
    }

    /// Runs a verb that changes nothing, on the connection for looks: a long look delays no other job.
    pub(crate) async fn run_aside<T: Send + 'static>(
        &self,
        head: JobHead,
        verb: impl AsyncFnMut(&mut dyn Store) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        self.hand_in(&self.aside, alone(head, verb, reply).into());
        self.heard(answer).await
    }

    /// Runs a verb that may take long.
    pub(crate) async fn run_slow<T: Send + 'static>(
        &self,
        head: JobHead,
        verb: impl AsyncFnMut(&mut dyn Store) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Error> {
        self.slow(head, verb, None).await
    }

    /// Runs a verb that removes rows.
    pub(crate) async fn clean<T: Send + 'static>(
        &self,
        verb: impl AsyncFnMut(&mut dyn Store) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Error> {
        let turn = Arc::clone(&self.cleaning).lock_owned().await;
        let head = self.wish(None, "clean");
        self.slow(head, verb, Some(turn)).await
    }

    /// Sends a slow operation and waits for the answer.
    async fn slow<T: Send + 'static>(
        &self,
        head: JobHead,
        verb: impl AsyncFnMut(&mut dyn Store) -> Result<T, Fault> + Send + 'static,
        turn: Option<OwnedMutexGuard<()>>,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        let job: Job = alone(head, verb, reply).into();
        let kind_of_task = match job.head().manner {
            Manner::Order => TaskKind::Order,
            _ => TaskKind::SlowOp,
        };
        let member = self.tasks.enter(kind_of_task, "a slow operation");
        let slow = SlowOp { job, member, turn };
        // When slow operations have stopped, dropping the slow operation drops the reply, and the caller sees that.
        let _ = self.slow.send(SlowMessage::Run(slow));
        self.heard(answer).await
    }

    /// No slow operation begins any more.
    pub(crate) fn stop_slow(&self) {
        let _ = self.slow.send(SlowMessage::Stop);
    }

    /// The head of a job that changes something.
    pub(crate) fn wish(&self, subject: impl Into<Option<Subject>>, doing: &'static str) -> JobHead {
        JobHead::new(subject, doing, Manner::Wish, self.progress())
    }

    /// The head of a job that changes nothing.
    pub(crate) fn look(&self, subject: impl Into<Option<Subject>>, doing: &'static str) -> JobHead {
        JobHead::new(subject, doing, Manner::Look, self.progress())
    }

    /// [`Self::look`] while a transaction of the caller's is open.
    pub(crate) fn look_beside(
        &self,
        subject: impl Into<Option<Subject>>,
        doing: &'static str,
    ) -> JobHead {
        let limit = if self.one_writer {
            ASIDE_LIMIT
        } else {
            self.operation_timeout
        };
        JobHead::new(subject, doing, Manner::Look, Progress::within(limit))
    }

    /// The progress of a job that is sent now, and may take as long as an operation may.
    pub(crate) fn progress(&self) -> Progress {
        Progress::within(self.operation_timeout)
    }

    /// Waits until all jobs sent so far are done.
    pub(crate) async fn flush(&self) {
        let flush = |lane: &LaneHandle| {
            let (reply, done) = oneshot::channel();
            let _ = lane.jobs.send(Message::Flush(reply));
            done
        };
        let replies: Vec<_> = self.all.iter().map(flush).collect();
        for done in replies {
            let _ = done.await;
        }
    }

    /// Asks each lane what it leaves undone. A lane that waits for the answer to a statement does not report.
    pub(crate) async fn report(
        &self,
        ask: impl Fn(Report) -> Message,
        until: Moment,
    ) -> Vec<Unfinished> {
        let until = until.max(Moment::now() + MOMENT / 2);
        let deadline = until + MOMENT / 2;
        let lanes = self.all.iter().map(|lane| &lane.jobs);
        let lanes = lanes.chain([&self.aside]);
        let asked = lanes.map(|lane| {
            let (left, told) = oneshot::channel();
            // A lane that has ended has left nothing.
            let _ = lane.send(ask(Report { until, left }));
            told
        });
        let asked: Vec<_> = asked.collect();
        let (mut unfinished, mut silent) = (Vec::new(), None);
        for told in asked {
            match before(deadline, told).await {
                Some(left) => unfinished.extend(left.unwrap_or_default()),
                None => silent = Some(Unfinished::thread(LANES)),
            }
        }
        unfinished.extend(silent);
        unfinished
    }

    /// The duties that arrived after the lanes had ended.
    pub(crate) fn take_undelivered(&self) -> Vec<Unfinished> {
        std::mem::take(&mut self.undelivered.lock())
    }

    /// The error for an operation whose lane is gone.
    pub(crate) fn stopped(&self) -> Error {
        Error::ShutDown {
            target: self.target.to_string(),
        }
    }
}

/// What `work` returns before the deadline.
pub(crate) async fn before<T>(deadline: Moment, work: impl Future<Output = T>) -> Option<T> {
    select! {
        biased;
        done = work => Some(done),
        () = sleep_until(deadline) => None,
    }
}
