//! Jobs: what a lane is given to do, whatever the verb.
//!
//! A [`Verb`] is one of the store's, with what its caller asked and the way back to the caller. A [`Task`] is a verb with its
//! [`Head`], which is all that the lane's schedule looks at. A [`Job`] is a task whose verb has been erased, and a [`Batch`]
//! gathers the tasks of one verb again, for one statement.
//!
//! A lane knows neither clients nor guards: a verb answers its caller by itself, in [`Verb::settle`] and [`Verb::fail`].

use std::any::Any;
use std::fmt;
use std::time::Duration;

use tokio::sync::oneshot;

use super::head::{Head, Manner};
use crate::model::{Error, Moment};
use crate::store::fault::Fault;
use crate::store::{Call, Store};

/// The way back to the caller.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// A task of any verb.
pub(crate) type Job = Box<dyn AnyTask>;

/// A verb of the store's, what its caller asked, and the way back to the caller.
pub(crate) trait Verb: fmt::Debug + Send + Sized + 'static {
    type Outcome;

    /// When its statement comes in a batch.
    const TURN: Turn;

    /// Sends all `tasks` in one statement. Their subjects differ, and they are sorted by subject. One outcome each, in
    /// their order.
    async fn send(
        tasks: &mut [Task<Self>],
        store: &mut dyn Store,
    ) -> Result<Vec<Self::Outcome>, Fault>;

    /// Answers the caller, or says what comes before that.
    fn settle(task: Task<Self>, outcome: Self::Outcome, answered: Answered) -> Next;

    /// Answers the caller with an error.
    fn fail(self, error: Error);

    /// Whether no caller waits for the answer.
    fn is_closed(&self) -> bool;

    /// What has to be done after `task` when it ends without the outcome that its caller asked for.
    fn undo(task: &Task<Self>, now: Moment) -> Option<Job> {
        let _ = (task, now);
        None
    }

    /// What is sent when `task` has to be sent again later.
    fn again(task: Task<Self>) -> Job {
        task.into()
    }

    /// Whether the answer to `first`, which is on the same subject and came before, does for this one too.
    fn shares(&self, first: &Self) -> bool {
        let _ = first;
        false
    }

    /// What those are told who share the answer.
    fn echo(outcome: &Self::Outcome) -> Option<Self::Outcome> {
        let _ = outcome;
        None
    }
}

/// The order of the statements of a batch. What frees something comes before what asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Turn {
    Release,
    Take,
    Confirm,
    Finish,
    Claim,
    Read,
    /// Reads of outcomes that are known to be large.
    LargeRead,
    /// It shares no statement.
    Alone,
}

/// A verb with its head.
#[derive(Debug)]
pub(crate) struct Task<V> {
    pub(crate) head: Head,
    pub(crate) verb: V,
}

impl<V> Task<V> {
    /// What it looks for may never come: no flush waits for it.
    pub(crate) fn repeated(mut self) -> Self {
        self.head.repeat();
        self
    }
}

impl<V: Verb> From<Task<V>> for Job {
    fn from(task: Task<V>) -> Self {
        Box::new(task)
    }
}

/// What comes after the answer to a task.
#[derive(Debug)]
pub(crate) enum Next {
    Done,
    /// Not now: a row is locked, or something is to be repeated.
    Later(Job),
    /// Before everything else that waits for a statement.
    First(Job),
    /// In the next statement of this batch.
    Then(Job),
}

/// When the statement was sent, and how long its answer took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answered {
    pub(crate) sent: Moment,
    pub(crate) took: Duration,
}

impl Answered {
    /// A grant whose answer took longer than this part of its TTL is confirmed by a renewal before it is
    /// handed out. (On SQLite the statement itself waits while another connection writes.)
    const STALE: u32 = 6;

    pub(crate) fn is_stale(self, ttl: Duration) -> bool {
        self.took > ttl / Self::STALE
    }
}

/// A [`Task`] of a verb that the schedule need not know.
pub(crate) trait AnyTask: Any + fmt::Debug + Send {
    fn head(&self) -> &Head;

    fn head_mut(&mut self) -> &mut Head;

    fn turn(&self) -> Turn;

    /// See [`Verb::is_closed`].
    fn is_closed(&self) -> bool;

    /// See [`Verb::shares`].
    fn shares(&self, first: &dyn AnyTask) -> bool;

    /// See [`Verb::undo`].
    fn undo(&self, now: Moment) -> Option<Job>;

    /// See [`Verb::again`].
    fn again(self: Box<Self>) -> Job;

    /// See [`Verb::fail`].
    fn fail(self: Box<Self>, error: Error);

    /// A batch with this task only.
    fn into_batch(self: Box<Self>) -> Box<dyn Batch>;
}

impl dyn AnyTask {
    /// Whether it can be left undone without a trace.
    pub(crate) fn is_abandoned(&self) -> bool {
        match self.head().manner {
            Manner::Look => self.is_closed(),
            Manner::Wish | Manner::Acquire => self.is_closed() && !self.head().fate.sent,
            Manner::Duty | Manner::Order | Manner::Vigil => false,
        }
    }
}

/// Tasks of one verb that go into one statement, which is its [`Call`]. It keeps what the statement found.
pub(crate) trait Batch: Call + fmt::Debug {
    /// Adds a task of the same verb, or gives it back. Tasks come sorted by subject.
    fn join(&mut self, job: Job) -> Option<Job>;

    fn turn(&self) -> Turn;

    /// Answers the callers, after the statement has succeeded.
    fn settle(self: Box<Self>, answered: Answered) -> Vec<Next>;

    /// What was, or would have been, in the statement; and what shares the answers.
    fn into_jobs(self: Box<Self>) -> (Vec<Job>, Vec<Job>);
}
