//! Reading records. Large outcomes come in portions: each record of a statement has a share of the statement's bytes,
//! and a larger outcome comes with one of the next statements.

use crate::model::{Error, RecordKey, Subject};
use crate::runtime::batch::head::{JobHead, Manner, Progress};
use crate::runtime::batch::job::{AnswerTime, Next, Rank, Reply, Request, Task};
use crate::runtime::batch::lanes::MAX_BYTES;
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::record_row::RecordRow;

/// Reads a record, with an outcome that fits into its share. `WHOLE`: with the whole outcome, which a first read has
/// left out.
#[derive(Debug)]
pub(crate) struct Read<const WHOLE: bool = false> {
    key: RecordKey,
    reply: Reply<Option<RecordRow>>,
}

impl Read {
    pub(crate) fn task(
        key: &RecordKey,
        progress: Progress,
        reply: Reply<Option<RecordRow>>,
    ) -> Task<Self> {
        let subject = Subject::Record(key.clone());
        let key = key.clone();
        Task {
            head: JobHead::new(subject, "look up", Manner::Look, progress),
            request: Self { key, reply },
        }
    }
}

impl<const WHOLE: bool> Request for Read<WHOLE> {
    type Outcome = Option<RecordRow>;

    const RANK: Rank = if WHOLE { Rank::LargeRead } else { Rank::Read };

    async fn send(
        tasks: &mut [Task<Self>],
        store: &mut dyn Store,
    ) -> Result<Vec<Self::Outcome>, Fault> {
        let share = if WHOLE {
            usize::MAX
        } else {
            MAX_BYTES / tasks.len().max(1)
        };
        let keys: Vec<RecordKey> = tasks.iter().map(|task| task.request.key.clone()).collect();
        store.record_read(&keys, share).await
    }

    fn settle(task: Task<Self>, row: Self::Outcome, _: AnswerTime) -> Next {
        if !WHOLE && let Some(bytes) = row.as_ref().and_then(RecordRow::left_behind) {
            let head = JobHead { bytes, ..task.head };
            let Self { key, reply } = task.request;
            let request = Read::<true> { key, reply };
            return Next::First(Task { head, request }.into());
        }
        let _ = task.request.reply.send(Ok(row));
        Next::Done
    }

    fn fail(self, error: Error) {
        let _ = self.reply.send(Err(error));
    }

    fn is_closed(&self) -> bool {
        self.reply.is_closed()
    }

    fn shares(&self, first: &Self) -> bool {
        self.key == first.key
    }

    fn echo(row: &Self::Outcome) -> Option<Self::Outcome> {
        Some(row.clone())
    }
}
