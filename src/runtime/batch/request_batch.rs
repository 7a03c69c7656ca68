//! The tasks of one statement, all of one kind, and their outcomes.

use std::any::Any;
use std::fmt;
use std::pin::Pin;

use super::head::{JobHead, Manner};
use super::job::{AnswerTime, AnyTask, Batch, Job, Next, Rank, Request, Task};
use crate::model::{Error, Moment};
use crate::store::driver::connector::VerbCall;
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;

impl<V: Request> AnyTask for Task<V> {
    fn head(&self) -> &JobHead {
        &self.head
    }

    fn head_mut(&mut self) -> &mut JobHead {
        &mut self.head
    }

    fn rank(&self) -> Rank {
        V::RANK
    }

    fn may_grant(&self) -> bool {
        V::MAY_GRANT
    }

    fn is_closed(&self) -> bool {
        self.request.is_closed()
    }

    fn shares(&self, first: &dyn AnyTask) -> bool {
        let first: &dyn Any = first;
        // (A task that was sent before may have taken effect: it needs its own answer.)
        let may = !self.head.progress.sent || self.head.manner == Manner::Look;
        may && first
            .downcast_ref::<Self>()
            .is_some_and(|first| self.request.shares(&first.request))
    }

    fn undo(&self, now: Moment) -> Option<Job> {
        self.request.undo(&self.head.progress, now)
    }

    fn again(self: Box<Self>) -> Job {
        V::again(*self)
    }

    fn fail(self: Box<Self>, error: Error) {
        self.request.fail(error);
    }

    fn into_batch(self: Box<Self>) -> Box<dyn Batch> {
        Box::new(RequestBatch::of(*self))
    }
}

/// A batch of one kind of request.
pub(crate) struct RequestBatch<V: Request> {
    pub(crate) firsts: Vec<Task<V>>,
    /// The tasks that share the answer of the task at the same index.
    followers: Vec<Vec<Task<V>>>,
    pub(crate) outcomes: Vec<V::Outcome>,
}

impl<V: Request> RequestBatch<V> {
    pub(crate) fn none() -> Self {
        Self {
            firsts: Vec::new(),
            followers: Vec::new(),
            outcomes: Vec::new(),
        }
    }

    pub(crate) fn of(task: Task<V>) -> Self {
        let mut gathered = Self::none();
        gathered.push(task);
        gathered
    }

    /// The parameters of its tasks.
    pub(crate) fn params<A: Clone>(&self, of: impl Fn(&V) -> &A) -> Vec<A> {
        let all = self.firsts.iter().map(|task| of(&task.request));
        all.cloned().collect()
    }

    fn push(&mut self, task: Task<V>) {
        self.firsts.push(task);
        self.followers.push(Vec::new());
    }
}

impl<V: Request> fmt::Debug for RequestBatch<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBatch")
            .field("firsts", &self.firsts)
            .finish_non_exhaustive()
    }
}

impl<V: Request> Batch for RequestBatch<V> {
    fn join(&mut self, job: Job) -> Option<Job> {
        if V::RANK.is_alone() || !(&*job as &dyn Any).is::<Task<V>>() {
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
            self.push(*task);
        }
        None
    }

    fn rank(&self) -> Rank {
        V::RANK
    }

    fn told(&self) -> (&'static str, usize) {
        let doing = || self.firsts.first().map(|task| task.head.doing);
        let name = V::RANK.name().or_else(doing).unwrap_or_default();
        let followers = self.followers.iter().map(Vec::len).sum::<usize>();
        (name, self.firsts.len() + followers)
    }

    fn settle(self: Box<Self>, answered: AnswerTime) -> Vec<Next> {
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

impl<V: Request> VerbCall for RequestBatch<V> {
    fn on<'a>(
        &'a mut self,
        store: &'a mut dyn Store,
    ) -> Pin<Box<dyn Future<Output = Result<(), Fault>> + 'a>> {
        Box::pin(async move {
            self.outcomes = V::send(&mut self.firsts, store).await?;
            Ok(())
        })
    }
}
