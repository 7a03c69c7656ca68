//! Time, tasks and retries: everything between a caller's future and a connection.
//!
//! # Overview
//!
//! A client ([`Core`]) owns two threads, each with a runtime of its own:
//!
//! - `rowlock-lanes` runs the [lanes]. Each lane has a connection, gathers the operations that arrive while its
//!   statement is in flight, and sends them as the next statement. A caller's future only awaits the answer. It never
//!   owns a statement, so dropping it cannot damage a connection. The delegates of [cohorts](cohort) run there too,
//!   and what ends their offers and lingering leases. One more connection serves looks at single rows. Each [slow
//!   operation](slow operations), which may take long, gets a connection and a thread of its own.
//! - `rowlock-renew` [renews](renew) all leases that this client holds, on one or two connections of its own, and
//!   announces warnings and losses. The [cleaner](clean) runs there too, and the tasks that find out whose turn in a
//!   [queue] it is.
//!
//! Neither thread runs code of the caller's: a runtime whose workers are all blocked loses no lease. Both threads end
//! when the last handle, guard and pending operation are gone.

mod alphabet;
pub(crate) mod backoff;
pub(crate) mod clean;
pub(crate) mod cohort;
mod gathered;
pub(crate) mod grant;
mod guards;
pub(crate) mod head;
mod hold;
pub(crate) mod job;
mod lanes;
pub(crate) mod lease_guard;
mod link;
pub(crate) mod meter;
pub(crate) mod password;
pub(crate) mod place;
pub(crate) mod proven;
pub(crate) mod queue;
pub(crate) mod record_guard;
mod renew;
pub(crate) mod rows;
pub(crate) mod schema;
pub(crate) mod seen_keys;
pub(crate) mod session;
mod sessions;
mod settings;
mod shutdown;
pub(crate) mod slow;
mod start;
mod status;
pub(crate) mod tasks;
mod threads;
pub(crate) mod timer;
pub(crate) mod token;
pub(crate) mod turns;
pub(crate) mod verbs;
pub(crate) mod wait_log;
mod waiters;

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::model::{Engine, Error, Moment, Name, RecordKey, Subject, Unfinished};
use crate::store::engines::Driver;
use crate::store::fault::Fault;
use crate::store::record::RecordRow;
use crate::store::{Capabilities, Store};
use alphabet::Alphabet;
use clean::Cleaner;
use cohort::Cohorts;
use guards::Guards;
use head::{Head, Manner, Progress};
use job::{Job, Reply, Task};
use lanes::{LaneHandle, Message};
use link::Way;
use proven::ProvenPools;
use queue::Queue;
use renew::Renewals;
use rows::Known;
pub(crate) use rows::make_rows;
use seen_keys::SeenKeys;
use sessions::Sessions;
pub(crate) use settings::Settings;
use slow::{Order, SlowKind, SlowOp};
use tasks::{Kind, Tasks};
use timer::sleep_until;
use turns::KeyTurns;
use verbs::alone::Alone;
use verbs::read::Read;
use waiters::Waiters;

/// The bound of a look. Either it is answered at once, or it cannot be answered before the caller's transaction ends
/// (an in-memory database locks whole tables).
const ASIDE_LIMIT: Duration = Duration::from_millis(250);

/// The most undelivered duties that a shutdown lists.
const MAX_UNDELIVERED: usize = 1_000;

/// A running client: the handle to its lanes and its renewals.
pub(crate) struct Core {
    lanes: Vec<LaneHandle>,
    /// The connection for looks. A long look delays no operation, and a caller's open transaction that keeps the lanes
    /// from writing does not keep it from reading.
    aside: mpsc::UnboundedSender<Message>,
    slow: mpsc::UnboundedSender<Order>,
    pub(crate) capabilities: Capabilities,
    pub(crate) renewals: Renewals,
    cleaner: Cleaner,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) queue: Arc<Queue>,
    cohorts: Cohorts,
    /// The runtime of the lanes' thread.
    pub(crate) own: Handle,
    way: Arc<Way>,
    pub(crate) settings: Settings,
    pub(crate) target: Arc<str>,
    pub(crate) driver: Driver,
    /// For messages. Code asks the `capabilities` instead.
    pub(crate) engine: Engine,
    pub(crate) version: String,
    alphabet: Alphabet,
    /// Other servers take writes too.
    pub(crate) multi_writer: bool,
    /// The largest outcome that the server accepted when this client connected, in bytes.
    pub(crate) largest_outcome: usize,
    /// The database's own id.
    pub(crate) database: Uuid,
    /// Recently seen keys: these records probably exist.
    pub(crate) seen_keys: SeenKeys,
    /// Pools of its database. An answer that this client knows already is one for such a pool only.
    pub(crate) proven: ProvenPools,
    /// The keys whose attempts, and whose transactions, this client runs now.
    pub(crate) turns: Arc<KeyTurns>,
    /// Who asks for the others, of those who wait for the attempt of another client.
    pub(crate) pollers: Arc<KeyTurns>,
    /// What this client has started.
    pub(crate) tasks: Tasks,
    pub(crate) sessions: Sessions,
    /// Its guards that have not ended.
    pub(crate) guards: Guards,
    /// When its shutdown began, as a [mark](Tasks::mark): later tasks are granted nothing any more. `None`: it has not
    /// begun.
    closing: RwLock<Option<u64>>,
    /// Duties that arrived after the lanes had ended.
    undelivered: Mutex<Vec<Unfinished>>,
    /// Names known to have a row.
    rows: Mutex<HashMap<Name, Known>>,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut core = f.debug_struct("Core");
        core.field("target", &self.target).finish_non_exhaustive()
    }
}

impl Core {
    /// Hands `job` to the lane of its subject. A subject always has the same lane, so its jobs keep their order.
    pub(crate) fn send(&self, job: impl Into<Job>) {
        let job = job.into();
        // Until the job is in the lane: a shutdown that begins now asks the lane after that.
        let closing = job.may_grant().then(|| self.closing());
        if closing.as_deref().is_some_and(|mark| self.is_closed(*mark)) {
            return job.fail(self.stopped());
        }
        let number = job.head().subject.as_ref().map_or(0, |subject| {
            let mut hasher = DefaultHasher::new();
            subject.hash(&mut hasher);
            usize::try_from(hasher.finish() % self.lanes.len() as u64).unwrap_or(0)
        });
        let lane = &self.lanes[number];
        self.hand_in(&lane.jobs, job);
        lane.home.note();
    }

    /// A lane ends before its senders when the client shuts down or the lane's thread panicked.
    fn hand_in(&self, lane: &mpsc::UnboundedSender<Message>, job: Job) {
        let Err(mpsc::error::SendError(Message::Job(job))) = lane.send(Message::Job(job)) else {
            return;
        };
        if job.head().manner == Manner::Duty {
            let mut undelivered = self.undelivered();
            if undelivered.len() < MAX_UNDELIVERED {
                undelivered.push(Unfinished::of(job.head()));
            }
        }
        job.fail(self.stopped());
    }

    /// Whether the lanes have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.lanes.iter().all(|lane| lane.jobs.is_closed())
    }

    fn undelivered(&self) -> MutexGuard<'_, Vec<Unfinished>> {
        let undelivered = self.undelivered.lock();
        undelivered.unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an error when this client is shutting down: it grants nothing any more.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        let mark = *self.closing();
        if self.is_closed(mark) {
            return Err(self.stopped());
        }
        Ok(())
    }

    /// Whether this client shuts down.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing().is_some()
    }

    /// Whether the caller is granted nothing any more. (A task that was spawned before may need a lock to come to its
    /// end.)
    fn is_closed(&self, mark: Option<u64>) -> bool {
        mark.is_some_and(|mark| !self.tasks.called_from_before(mark))
    }

    fn closing(&self) -> RwLockReadGuard<'_, Option<u64>> {
        self.closing.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the last connection could not be made; `None` when it was made, or when no server answered.
    pub(crate) fn unreachable(&self, doing: &'static str) -> Option<Error> {
        let fault = self.way.refusal()?;
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

    async fn heard<T>(&self, answer: oneshot::Receiver<Result<T, Error>>) -> Result<T, Error> {
        answer.await.unwrap_or_else(|_| Err(self.stopped()))
    }

    /// Runs a verb that shares no statement, in its turn among the jobs on `subject`.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        head: Head,
        verb: impl AsyncFnMut(&mut dyn Store) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Error> {
        self.answer(|reply| alone(head, verb, reply)).await
    }

    /// Runs a verb that changes nothing, on the connection for looks: a long look delays no other job.
    pub(crate) async fn ask_aside<T: Send + 'static>(
        &self,
        head: Head,
        verb: impl AsyncFnMut(&mut dyn Store) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        self.hand_in(&self.aside, alone(head, verb, reply).into());
        self.heard(answer).await
    }

    /// Runs a verb that may take long.
    pub(crate) async fn run_slow<T: Send + 'static>(
        &self,
        head: Head,
        verb: impl AsyncFnMut(&mut dyn Store) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Error> {
        self.slow(SlowKind::Other, |reply| alone(head, verb, reply))
            .await
    }

    /// [`Self::run_slow`] for a verb that removes rows.
    pub(crate) async fn clean<T: Send + 'static>(
        &self,
        head: Head,
        verb: impl AsyncFnMut(&mut dyn Store) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Error> {
        self.slow(SlowKind::Cleaning, |reply| alone(head, verb, reply))
            .await
    }

    /// Sends a slow operation and waits for the answer.
    pub(crate) async fn slow<T, J: Into<Job>>(
        &self,
        kind: SlowKind,
        job: impl FnOnce(Reply<T>) -> J,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        let job = job(reply).into();
        let kind_of_task = match job.head().manner {
            Manner::Order => Kind::Order,
            _ => Kind::SlowOp,
        };
        let member = self.tasks.enter(kind_of_task, kind.name());
        let slow = SlowOp { job, kind, member };
        // When slow operations have stopped, dropping the slow operation drops the reply, and the caller sees that.
        let _ = self.slow.send(Order::Run(slow));
        self.heard(answer).await
    }

    /// The head of a job that changes something.
    pub(crate) fn wish(&self, subject: impl Into<Option<Subject>>, doing: &'static str) -> Head {
        let progress = Progress::within(self.settings.operation_timeout);
        Head::new(subject, doing, Manner::Wish, progress)
    }

    /// The head of a job that changes nothing.
    pub(crate) fn look(&self, subject: impl Into<Option<Subject>>, doing: &'static str) -> Head {
        let progress = Progress::within(self.settings.operation_timeout);
        Head::new(subject, doing, Manner::Look, progress)
    }

    /// [`Self::look`] while a transaction of the caller's is open.
    pub(crate) fn look_beside(
        &self,
        subject: impl Into<Option<Subject>>,
        doing: &'static str,
    ) -> Head {
        let limit = if self.capabilities.one_writer {
            ASIDE_LIMIT
        } else {
            self.settings.operation_timeout
        };
        Head::new(subject, doing, Manner::Look, Progress::within(limit))
    }

    /// Reads the record of a key.
    pub(crate) async fn read_record(&self, key: &RecordKey) -> Result<Option<RecordRow>, Error> {
        let progress = Progress::within(self.settings.operation_timeout);
        self.answer(|reply| Read::task(key, progress, reply)).await
    }

    /// Waits until all jobs sent so far are done, but no longer than an operation may take. A job that takes longer
    /// meets an unreachable database or a row that is locked for long.
    pub(crate) async fn flush(&self) {
        let until = Moment::now() + self.settings.operation_timeout;
        self.queue.keepers.recall_all();
        let all = async {
            self.flush_lanes().await;
            let kinds = [Kind::Work, Kind::Finish, Kind::Order];
            self.tasks.ended(&kinds, self.tasks.mark()).await;
            // Guards that the tasks dropped at their end send statements too.
            self.flush_lanes().await;
        };
        tokio::select! {
            () = all => {}
            () = sleep_until(until) => {}
        }
    }

    async fn flush_lanes(&self) {
        let flush = |lane: &LaneHandle| {
            let (reply, done) = oneshot::channel();
            let _ = lane.jobs.send(Message::Flush(reply));
            done
        };
        let replies: Vec<_> = self.lanes.iter().map(flush).collect();
        for done in replies {
            let _ = done.await;
        }
    }

    /// Turns the cleaner on: records or tokens are in use.
    pub(crate) fn keep_clean(&self) {
        self.cleaner.start();
    }

    /// The error for an operation whose lane is gone.
    pub(crate) fn stopped(&self) -> Error {
        Error::ShutDown {
            target: self.target.to_string(),
        }
    }
}

fn alone<F, T>(head: Head, verb: F, reply: Reply<T>) -> Task<Alone<F, T>> {
    let verb = Alone { verb, reply };
    Task { head, verb }
}
