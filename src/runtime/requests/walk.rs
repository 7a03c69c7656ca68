//! A walk through the lock rows that removes unused ones, one portion after the other.

use std::time::Duration;

use crate::model::{Error, Moment};
use crate::runtime::batch::head::{JobHead, Manner, Progress};
use crate::runtime::batch::job::{AnswerTime, Next, Rank, Reply, Request, Task};
use crate::store::verbs::Store;
use crate::store::verbs::clean::CleanedLocks;
use crate::store::verbs::fault::Fault;

#[derive(Debug)]
pub(crate) struct Walk {
    /// How many rows one statement looks at.
    limit: u32,
    /// The last name that the walk has looked at.
    after: Vec<u8>,
    removed: u64,
    /// The limit for each portion.
    limit_each: Duration,
    reply: Reply<u64>,
}

impl Walk {
    pub(crate) fn task(limit: u32, limit_each: Duration, reply: Reply<u64>) -> Task<Self> {
        let progress = Progress::within(limit_each);
        Task {
            head: JobHead::new(None, "clean", Manner::Wish, progress),
            request: Self {
                limit,
                after: Vec::new(),
                removed: 0,
                limit_each,
                reply,
            },
        }
    }
}

impl Request for Walk {
    type Outcome = CleanedLocks;

    const RANK: Rank = Rank::Alone;

    async fn send(
        tasks: &mut [Task<Self>],
        store: &mut dyn Store,
    ) -> Result<Vec<CleanedLocks>, Fault> {
        let mut cleaned = Vec::with_capacity(1);
        for Task { request, .. } in tasks {
            cleaned.push(store.lock_clean(&request.after, request.limit).await?);
        }
        Ok(cleaned)
    }

    fn settle(mut task: Task<Self>, cleaned: CleanedLocks, _: AnswerTime) -> Next {
        let walk = &mut task.request;
        walk.removed += cleaned.removed;
        match cleaned.last {
            Some(last) if !walk.reply.is_closed() => {
                walk.after = last;
                task.head.progress = Progress {
                    number: task.head.progress.number,
                    ..Progress::until(Moment::now() + walk.limit_each)
                };
                Next::First(task.into())
            }
            _ => {
                let _ = task.request.reply.send(Ok(task.request.removed));
                Next::Done
            }
        }
    }

    fn fail(self, error: Error) {
        let _ = self.reply.send(Err(error));
    }

    fn is_closed(&self) -> bool {
        self.reply.is_closed()
    }
}
