//! Jobs: what a lane is given to do, whatever the verb.
//!
//! A [`Verb`] is one of the store's, with what its caller asked and the way back to the caller. A [`Task`] is a verb with its
//! [`Head`], which is all that the lane's schedule looks at. A [`Job`] is a task whose verb has been erased, and a [`Batch`]
//! gathers the tasks of one verb again, for one statement.
//!
//! A lane knows neither clients nor guards: a verb answers its caller by itself, in [`Verb::settle`] and [`Verb::fail`].

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::model::{Error, Moment, Subject, Unfinished};
use crate::store::Store;
use crate::store::fault::Fault;

/// The outcomes in one statement have little more than so many bytes: servers limit a statement (MariaDB to 16 MiB).
pub(crate) const MAX_BYTES: usize = 1 << 20;

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

/// What becomes of a job whose caller has gone, or whose connection broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// It changes nothing: it is left undone when its caller has gone, and is never in doubt.
    Look,
    /// It is left undone when its caller has gone before it was sent.
    Wish,
    /// A wish that a server which takes no writes refuses at once: who may wait asks again.
    Acquire,
    /// It is done whether or not a caller waits.
    Duty,
    /// A duty that is sent once: sent again it might free the next holder's grant.
    Order,
    /// A duty that undoes what may never come: it is repeated after long pauses, and no flush waits for it.
    Vigil,
}

/// What the lane's schedule knows of a task.
#[derive(Debug)]
pub(crate) struct Head {
    /// What it is about; two jobs on one subject never share a statement.
    pub(crate) subject: Option<Subject>,
    /// What is tried, for messages.
    pub(crate) doing: &'static str,
    pub(crate) manner: Manner,
    pub(crate) fate: Fate,
    /// It says something about an attempt: such jobs keep their order, also when one of them is put off.
    pub(crate) in_order: bool,
    /// The size of the outcome that it writes, or is known to bring, in bytes.
    pub(crate) bytes: usize,
    /// What it takes of a request to the server beside the rest, where that is bounded: the bytes of its name, and others.
    pub(crate) request: Option<(usize, usize)>,
}

impl Head {
    pub(crate) fn new(
        subject: impl Into<Option<Subject>>,
        doing: &'static str,
        manner: Manner,
        fate: Fate,
    ) -> Self {
        Self {
            subject: subject.into(),
            doing,
            manner,
            fate,
            in_order: false,
            bytes: 0,
            request: None,
        }
    }

    /// The connection broke under it.
    pub(crate) fn doubt(&mut self) {
        if self.manner != Manner::Look {
            self.fate.doubts += 1;
        }
    }

    /// How large the outcome is that it writes, in bytes.
    pub(crate) fn written(&self) -> usize {
        if self.manner == Manner::Look {
            0
        } else {
            self.bytes
        }
    }
}

impl Unfinished {
    /// A job that a lane leaves undone.
    pub(crate) fn of(head: &Head) -> Self {
        Self::new(head.doing, head.subject.clone())
    }
}

/// A verb with its head.
#[derive(Debug)]
pub(crate) struct Task<V> {
    pub(crate) head: Head,
    pub(crate) verb: V,
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

/// How far a job has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fate {
    /// From here on it is not tried again.
    pub(crate) give_up: Moment,
    /// It was sent and not answered: it may have happened, at least in part.
    pub(crate) sent: bool,
    /// How often the connection broke under it: the server may be working on as many sendings still, or get them late.
    pub(crate) doubts: u32,
    /// How often the connection broke under a statement that it was in.
    pub(crate) breaks: u32,
    /// With how many others, and itself, it may share a batch: few, when statements that it is in break the connection.
    pub(crate) company: usize,
    /// How often it was put off.
    pub(crate) put_offs: u32,
    /// Its place among all that have arrived at the lane.
    pub(crate) number: u64,
}

impl Fate {
    pub(crate) fn within(limit: Duration) -> Self {
        Self::until(Moment::now() + limit)
    }

    pub(crate) fn until(give_up: Moment) -> Self {
        Self {
            give_up,
            sent: false,
            doubts: 0,
            breaks: 0,
            company: usize::MAX,
            put_offs: 0,
            number: 0,
        }
    }

    /// Whether an earlier sending of it may have happened.
    pub(crate) fn in_doubt(&self) -> bool {
        self.doubts > 0
    }

    /// The connection broke under a statement that it was in, with as many others and itself. From break number
    /// `suspect_from` on, one of the jobs may be what breaks it: they are sent again with fewer others.
    pub(crate) fn broke(&mut self, together: usize, suspect_from: u32) {
        self.breaks += 1;
        if self.breaks >= suspect_from {
            self.company = self.company.min((together / 16).max(1));
        }
    }

    /// It was answered: something else broke the connection.
    pub(crate) fn innocent(self) -> Self {
        Self {
            breaks: 0,
            company: usize::MAX,
            ..self
        }
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

impl<V: Verb> AnyTask for Task<V> {
    fn head(&self) -> &Head {
        &self.head
    }

    fn head_mut(&mut self) -> &mut Head {
        &mut self.head
    }

    fn turn(&self) -> Turn {
        V::TURN
    }

    fn is_closed(&self) -> bool {
        self.verb.is_closed()
    }

    fn shares(&self, first: &dyn AnyTask) -> bool {
        let first: &dyn Any = first;
        // (A task that was sent before may have happened: it needs an answer of its own.)
        let may = !self.head.fate.sent || self.head.manner == Manner::Look;
        may && first
            .downcast_ref::<Self>()
            .is_some_and(|first| self.verb.shares(&first.verb))
    }

    fn undo(&self, now: Moment) -> Option<Job> {
        V::undo(self, now)
    }

    fn again(self: Box<Self>) -> Job {
        V::again(*self)
    }

    fn fail(self: Box<Self>, error: Error) {
        self.verb.fail(error);
    }

    fn into_batch(self: Box<Self>) -> Box<dyn Batch> {
        Box::new(Gathered {
            firsts: vec![*self],
            followers: vec![Vec::new()],
            outcomes: Vec::new(),
        })
    }
}

/// Tasks of one verb that go into one statement, and then its outcomes.
pub(crate) trait Batch: fmt::Debug {
    /// Adds a task of the same verb, or gives it back. Tasks come sorted by subject.
    fn join(&mut self, job: Job) -> Option<Job>;

    fn turn(&self) -> Turn;

    /// Sends the statement, and keeps what it found.
    fn send<'a>(
        &'a mut self,
        store: &'a mut dyn Store,
    ) -> Pin<Box<dyn Future<Output = Result<(), Fault>> + 'a>>;

    /// Answers the callers, after the statement has succeeded.
    fn settle(self: Box<Self>, answered: Answered) -> Vec<Next>;

    /// What was, or would have been, in the statement; and what shares the answers.
    fn into_jobs(self: Box<Self>) -> (Vec<Job>, Vec<Job>);
}

struct Gathered<V: Verb> {
    firsts: Vec<Task<V>>,
    /// Those that share the answer of the first one at this place.
    followers: Vec<Vec<Task<V>>>,
    outcomes: Vec<V::Outcome>,
}

impl<V: Verb> fmt::Debug for Gathered<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gathered")
            .field("firsts", &self.firsts)
            .finish_non_exhaustive()
    }
}

impl<V: Verb> Batch for Gathered<V> {
    fn join(&mut self, job: Job) -> Option<Job> {
        if V::TURN == Turn::Alone || !(&*job as &dyn Any).is::<Task<V>>() {
            return Some(job);
        }
        let last = self.firsts.last().zip(self.followers.last_mut());
        let followers = last.filter(|(first, _)| {
            first.head.subject == job.head().subject && job.shares(*first as &dyn AnyTask)
        });
        let Ok(task) = (job as Box<dyn Any>).downcast::<Task<V>>() else {
            return None;
        };
        if let Some((_, followers)) = followers {
            followers.push(*task);
        } else {
            self.firsts.push(*task);
            self.followers.push(Vec::new());
        }
        None
    }

    fn turn(&self) -> Turn {
        V::TURN
    }

    fn send<'a>(
        &'a mut self,
        store: &'a mut dyn Store,
    ) -> Pin<Box<dyn Future<Output = Result<(), Fault>> + 'a>> {
        Box::pin(async move {
            self.outcomes = V::send(&mut self.firsts, store).await?;
            Ok(())
        })
    }

    fn settle(self: Box<Self>, answered: Answered) -> Vec<Next> {
        let mut next = Vec::new();
        let tasks = self.firsts.into_iter().zip(self.followers);
        for ((first, followers), outcome) in tasks.zip(self.outcomes) {
            for follower in followers {
                if let Some(outcome) = V::echo(&outcome) {
                    next.push(V::settle(follower, outcome, answered));
                }
            }
            next.push(V::settle(first, outcome, answered));
        }
        next
    }

    fn into_jobs(self: Box<Self>) -> (Vec<Job>, Vec<Job>) {
        let firsts = self.firsts.into_iter().map(Job::from).collect();
        let followers = self.followers.into_iter().flatten();
        (firsts, followers.map(Job::from).collect())
    }
}
