//! Jobs: the units of work of a lane, for every kind of request.
//!
//! A [`Request`] has the parameters of a verb of the store and the way back to its caller. A [`Task`] is a request
//! with its [`JobHead`], the only part that the lane's schedule reads. A [`Job`] is a task whose type has been
//! erased. A [`Batch`] gathers the tasks of one kind of request, or of two, for one statement.
//!
//! A lane knows neither clients nor guards: a request answers its own caller, in [`Request::settle`] and
//! [`Request::fail`].

use std::any::Any;
use std::fmt;
use std::time::Duration;

use tokio::sync::oneshot;

use super::head::{JobHead, Manner, Progress};
use crate::model::{Error, Moment};
use crate::store::driver::connector::VerbCall;
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;

/// The way back to the caller.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// A task of any kind.
pub(crate) type Job = Box<dyn AnyTask>;

/// One kind of request: its parameters, the verb that it sends, and the way back to its caller.
pub(crate) trait Request: fmt::Debug + Send + Sized + 'static {
    type Outcome;

    /// The place of its statement in a batch.
    const RANK: Rank;

    /// Whether it may grant something.
    const MAY_GRANT: bool = false;

    /// Sends all `tasks` in one statement. Their subjects differ, and they are sorted by subject. Returns one outcome
    /// for each, in the same order.
    async fn send(
        tasks: &mut [Task<Self>],
        store: &mut dyn Store,
    ) -> Result<Vec<Self::Outcome>, Fault>;

    /// Answers the caller, or returns the job that has to come first.
    fn settle(task: Task<Self>, outcome: Self::Outcome, answered: AnswerTime) -> Next;

    /// Answers the caller with an error.
    fn fail(self, error: Error);

    /// Whether no caller waits for the answer.
    fn is_closed(&self) -> bool;

    /// The job that undoes this one, when it ends without the outcome that its caller asked for. `progress`: how far
    /// it came.
    fn undo(&self, progress: &Progress, now: Moment) -> Option<Job> {
        let _ = (progress, now);
        None
    }

    /// The job to send when `task` has to be sent again later.
    fn again(task: Task<Self>) -> Job {
        task.into()
    }

    /// Whether the answer to `first`, an earlier task on the same subject, also answers this task.
    fn shares(&self, first: &Self) -> bool {
        let _ = first;
        false
    }

    /// The outcome for the tasks that share the answer.
    fn echo(outcome: &Self::Outcome) -> Option<Self::Outcome> {
        let _ = outcome;
        None
    }
}

/// The order of the statements in a batch. Statements that free something come before statements that ask for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Rank {
    /// Releases, and acquires, in one statement where the engine can.
    Exchange,
    /// Leaving a queue. It shares no statement; nor do the next one and `Join`.
    Leave,
    /// Confirming a grant that was passed on.
    Confirm,
    /// Renewing a grant whose answer came late.
    Recheck,
    Join,
    Finish,
    Claim,
    Read,
    /// Reads of outcomes known to be large.
    LargeRead,
    /// It shares no statement.
    Alone,
}

impl Rank {
    /// Its name in the metrics. `None`: each of its jobs has a name of its own.
    pub(crate) fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::Exchange => "exchange",
            Self::Leave => "leave",
            Self::Confirm => "confirm",
            Self::Recheck => "recheck",
            Self::Join => "join",
            Self::Finish => "finish",
            Self::Claim => "claim",
            Self::Read | Self::LargeRead => "read",
            Self::Alone => return None,
        })
    }

    /// Whether its jobs share no statement.
    pub(crate) fn is_alone(self) -> bool {
        matches!(self, Self::Leave | Self::Confirm | Self::Join | Self::Alone)
    }
}

/// A request with its head.
#[derive(Debug)]
pub(crate) struct Task<V> {
    pub(crate) head: JobHead,
    pub(crate) request: V,
}

impl<V> Task<V> {
    /// The effect that it undoes may never arrive: no flush waits for it.
    pub(crate) fn repeated(mut self) -> Self {
        self.head.repeat();
        self
    }
}

impl<V: Request> From<Task<V>> for Job {
    fn from(task: Task<V>) -> Self {
        Box::new(task)
    }
}

/// Gives an answer to its caller.
pub(crate) type Answer = Box<dyn FnOnce() + Send>;

/// What follows the outcome of a task.
pub(crate) enum Next {
    Done,
    /// Answer the caller, together with the other callers of the statement.
    Answer(Answer),
    /// Send the job later: a row is locked, or the job repeats.
    Later(Job),
    /// Send the job before all other waiting jobs.
    First(Job),
    /// Send the job in the next statement of this batch.
    Then(Job),
}

impl Next {
    /// The undo of sendings, if there is one. When one of them is `in_doubt`, the undo is repeated.
    pub(crate) fn undo<V: Request>(undo: Option<Task<V>>, in_doubt: bool) -> Self {
        match undo {
            Some(undo) if in_doubt => Self::Later(undo.repeated().into()),
            Some(undo) => Self::Later(undo.into()),
            None => Self::Done,
        }
    }

    pub(crate) fn answer<T: Send + 'static>(reply: Reply<T>, answer: Result<T, Error>) -> Self {
        Self::Answer(Box::new(|| drop(reply.send(answer))))
    }
}

/// When the statement was sent, and how long its answer took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnswerTime {
    pub(crate) sent: Moment,
    pub(crate) took: Duration,
}

impl AnswerTime {
    /// A grant whose answer took longer than this fraction of its TTL is confirmed by a renewal before the caller gets
    /// it. (On SQLite the statement itself waits while another connection writes.)
    const STALE: u32 = 6;

    pub(crate) fn is_stale(self, ttl: Duration) -> bool {
        self.took > ttl / Self::STALE
    }
}

/// A [`Task`] of any kind, as the schedule sees it.
pub(crate) trait AnyTask: Any + fmt::Debug + Send {
    fn head(&self) -> &JobHead;

    fn head_mut(&mut self) -> &mut JobHead;

    fn rank(&self) -> Rank;

    /// See [`Request::MAY_GRANT`].
    fn may_grant(&self) -> bool;

    /// See [`Request::is_closed`].
    fn is_closed(&self) -> bool;

    /// See [`Request::shares`].
    fn shares(&self, first: &dyn AnyTask) -> bool;

    /// See [`Request::undo`].
    fn undo(&self, now: Moment) -> Option<Job>;

    /// See [`Request::again`].
    fn again(self: Box<Self>) -> Job;

    /// See [`Request::fail`].
    fn fail(self: Box<Self>, error: Error);

    /// A batch with only this task.
    fn into_batch(self: Box<Self>) -> Box<dyn Batch>;
}

/// A batch that requests of several kinds may join.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SharedBatch {
    pub(crate) ranks: [Rank; 2],
    /// From so many tasks on.
    pub(crate) from: usize,
    pub(crate) empty: fn() -> Box<dyn Batch>,
}

impl SharedBatch {
    pub(crate) fn has(&self, rank: Rank) -> bool {
        self.ranks.contains(&rank)
    }

    /// A batch with only this job.
    pub(crate) fn of(self, job: Job) -> Box<dyn Batch> {
        let mut batch = (self.empty)();
        match batch.join(job) {
            None => batch,
            Some(job) => job.into_batch(),
        }
    }
}

impl dyn AnyTask {
    /// Whether the job can be dropped without a trace.
    pub(crate) fn is_abandoned(&self) -> bool {
        match self.head().manner {
            Manner::Look => self.is_closed(),
            Manner::Wish | Manner::Acquire => self.is_closed() && !self.head().progress.sent,
            Manner::Duty | Manner::Order | Manner::Vigil => false,
        }
    }
}

/// Tasks for one statement, which is the [`VerbCall`]: of one kind of request, or of kinds that go together. It keeps
/// the statement's outcomes.
pub(crate) trait Batch: VerbCall + fmt::Debug {
    /// Adds a task that fits, or returns the job. Tasks come sorted by subject.
    fn join(&mut self, job: Job) -> Option<Job>;

    fn rank(&self) -> Rank;

    /// What the metrics tell of it: its name, and how many operations it has.
    fn told(&self) -> (&'static str, usize);

    /// Answers the callers after the statement succeeded.
    fn settle(self: Box<Self>, answered: AnswerTime) -> Vec<Next>;

    /// The jobs of the statement, sent or not, and the jobs that share their answers.
    fn into_jobs(self: Box<Self>) -> (Vec<Job>, Vec<Job>);
}
