//! Steps of an attempt: beginning a step, and recording its result.

use std::sync::Arc;

use crate::model::{Error, Outcome, Subject};
use crate::runtime::batch::handle::Lanes;
use crate::runtime::batch::head::{JobHead, Manner, Progress};
use crate::runtime::batch::job::{AnswerTime, Job, Next, Rank, Reply, Request, Task};
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::record::FinishOutcome;
use crate::store::verbs::step::{StepBegun, StepKind, StepParams};

#[derive(Debug)]
pub(crate) struct BeginStep {
    params: StepParams,
    lanes: Arc<Lanes>,
    reply: Reply<(StepBegun, UndoStep)>,
}

impl BeginStep {
    pub(crate) fn task(
        lanes: &Arc<Lanes>,
        params: StepParams,
        reply: Reply<(StepBegun, UndoStep)>,
    ) -> Task<Self> {
        let progress = lanes.progress();
        let head = head(&params, "begin a step of", Manner::Wish, progress);
        let lanes = Arc::clone(lanes);
        let request = Self {
            params,
            lanes,
            reply,
        };
        Task { head, request }
    }
}

fn head(params: &StepParams, doing: &'static str, manner: Manner, progress: Progress) -> JobHead {
    let subject = Subject::Record(params.key.clone());
    JobHead {
        in_order: true,
        ..JobHead::new(subject, doing, manner, progress)
    }
}

impl Request for BeginStep {
    type Outcome = StepBegun;

    const RANK: Rank = Rank::Alone;

    async fn send(
        tasks: &mut [Task<Self>],
        store: &mut dyn Store,
    ) -> Result<Vec<StepBegun>, Fault> {
        let mut begun = Vec::with_capacity(1);
        for task in tasks {
            begun.push(store.step_begin(&task.request.params).await?);
        }
        Ok(begun)
    }

    fn settle(task: Task<Self>, begun: StepBegun, _: AnswerTime) -> Next {
        if matches!(begun, StepBegun::Locked) {
            return Next::Later(task.into());
        }
        let Self {
            params,
            lanes,
            reply,
        } = task.request;
        let is_open = matches!(begun, StepBegun::Fresh) && params.kind != StepKind::Repeatable;
        let undo = UndoStep::new(is_open.then(|| (lanes, params.clone())));
        if let Err(Ok((_, undo))) = reply.send(Ok((begun, undo))) {
            undo.disarm();
            if is_open {
                // Goes before the end of the attempt, which may be waiting already.
                return Next::First(
                    FinishStep::task(params, None, None, task.head.progress).into(),
                );
            }
        }
        Next::Done
    }

    fn fail(self, error: Error) {
        let _ = self.reply.send(Err(error));
    }

    fn is_closed(&self) -> bool {
        self.reply.is_closed()
    }
}

#[derive(Debug)]
pub(crate) struct FinishStep {
    params: StepParams,
    /// `None`: the step did not happen.
    outcome: Option<Outcome>,
    /// `None`: the step began for a caller who has gone.
    reply: Option<Reply<FinishOutcome>>,
}

impl FinishStep {
    pub(crate) fn task(
        params: StepParams,
        outcome: Option<Outcome>,
        reply: Option<Reply<FinishOutcome>>,
        progress: Progress,
    ) -> Task<Self> {
        let head = JobHead {
            bytes: outcome.as_ref().map_or(0, |outcome| outcome.bytes().len()),
            ..head(&params, "keep a step of", Manner::Duty, progress)
        };
        let request = Self {
            params,
            outcome,
            reply,
        };
        Task { head, request }
    }
}

impl Request for FinishStep {
    type Outcome = FinishOutcome;

    const RANK: Rank = Rank::Alone;

    async fn send(
        tasks: &mut [Task<Self>],
        store: &mut dyn Store,
    ) -> Result<Vec<FinishOutcome>, Fault> {
        let mut finished = Vec::with_capacity(1);
        for Task { request, .. } in tasks {
            finished.push(
                store
                    .step_finish(&request.params, request.outcome.as_ref())
                    .await?,
            );
        }
        Ok(finished)
    }

    fn settle(task: Task<Self>, finished: FinishOutcome, _: AnswerTime) -> Next {
        if finished == FinishOutcome::Locked {
            return Next::Later(task.into());
        }
        if let Some(reply) = task.request.reply {
            let _ = reply.send(Ok(finished));
        }
        Next::Done
    }

    fn fail(self, error: Error) {
        if let Some(reply) = self.reply {
            let _ = reply.send(Err(error));
        }
    }

    fn is_closed(&self) -> bool {
        false
    }
}

/// Travels with the answer that a step may begin. A caller that does not receive the answer has not begun the step.
#[derive(Debug)]
pub(crate) struct UndoStep(Option<(Arc<Lanes>, StepParams)>);

impl UndoStep {
    /// `None`: there is nothing to undo.
    fn new(begun: Option<(Arc<Lanes>, StepParams)>) -> Self {
        Self(begun)
    }

    pub(crate) fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for UndoStep {
    fn drop(&mut self) {
        if let Some((lanes, params)) = self.0.take() {
            undo_step(&lanes, params);
        }
    }
}

/// Undoes a step that began and did not happen, so that its record has no open step. (When this is given up, the end
/// of the attempt does it.)
pub(crate) fn undo_step(lanes: &Lanes, params: StepParams) {
    let undo: Job = FinishStep::task(params, None, None, lanes.progress()).into();
    lanes.send(undo);
}
