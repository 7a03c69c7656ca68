//! A request that shares no statement: a closure which sends its verb.

use std::fmt;

use super::head::JobHead;
use crate::model::Error;
use crate::runtime::batch::job::{AnswerTime, Next, Rank, Reply, Request, Task};
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;

/// Runs alone. It may run several times: after a failure it is sent again.
pub(crate) struct ClosureRequest<F, T> {
    pub(crate) verb: F,
    pub(crate) reply: Reply<T>,
}

/// A job that shares no statement.
pub(crate) fn alone<F, T>(head: JobHead, verb: F, reply: Reply<T>) -> Task<ClosureRequest<F, T>> {
    let request = ClosureRequest { verb, reply };
    Task { head, request }
}

impl<F, T> fmt::Debug for ClosureRequest<F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClosureRequest").finish_non_exhaustive()
    }
}

impl<F, T> Request for ClosureRequest<F, T>
where
    F: AsyncFnMut(&mut dyn Store) -> Result<T, Fault> + Send + 'static,
    T: Send + 'static,
{
    type Outcome = T;

    const RANK: Rank = Rank::Alone;

    async fn send(tasks: &mut [Task<Self>], store: &mut dyn Store) -> Result<Vec<T>, Fault> {
        let mut found = Vec::with_capacity(1);
        for task in tasks {
            found.push((task.request.verb)(store).await?);
        }
        Ok(found)
    }

    fn settle(task: Task<Self>, outcome: T, _: AnswerTime) -> Next {
        let _ = task.request.reply.send(Ok(outcome));
        Next::Done
    }

    fn fail(self, error: Error) {
        let _ = self.reply.send(Err(error));
    }

    fn is_closed(&self) -> bool {
        self.reply.is_closed()
    }
}
