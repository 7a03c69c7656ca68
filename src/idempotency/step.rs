//! Steps: effects outside of the database. Each step is done once for a key, over all attempts.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::guard::IdempotencyGuard;
use super::step_state::{Repeat, RunningStep};
use crate::model::{Error, Outcome, RecordError, check_step};
use crate::runtime::batch::head::Progress;
use crate::runtime::requests::step::{BeginStep, FinishStep, undo_step};
use crate::store::verbs::record::FinishOutcome;
use crate::store::verbs::step::{StepBegun, StepKind, StepParams};

/// The failure of a step that must not be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepFailed<E> {
    /// The effect did not happen, and cannot happen later: the other server refused it. The step may be tried again.
    NotDone(E),
    /// The effect may have happened: no answer came.
    Unknown(E),
}

/// `?` converts an error to `Unknown`, which assumes nothing. So take locks before the step, or map their contention
/// to `NotDone`: an error that `?` converts makes the key unknown.
impl<E> From<E> for StepFailed<E> {
    fn from(error: E) -> Self {
        Self::Unknown(error)
    }
}

/// The action for a step: run it, or return its result.
pub(super) enum StepToDo {
    Fresh(StepParams),
    Done(Outcome),
}

impl IdempotencyGuard {
    /// Does `work` once for the key, and keeps its result: an attempt after a crash gets the result instead of doing
    /// the work again.
    ///
    /// After a crash during the step, or before its result was kept, the next attempt **does the work again**. Send
    /// the [`downstream_key`](Self::downstream_key) to the other server, so that it recognises the repetition. If it
    /// cannot, use [`step_once`](Self::step_once).
    ///
    /// `step` is the name, 1 to 255 bytes. The result is kept as JSON of at most
    /// [`max_outcome`](crate::Idempotency::max_outcome) bytes. The steps of one guard run one at a time: neither in
    /// parallel nor nested. A failure is not kept.
    ///
    /// # Errors
    ///
    /// The errors of `work`. [`RecordError::StepRunning`] at once, when another step of this guard is running.
    /// [`Error::Superseded`]: another attempt has taken over. An invalid name; a result that is too large, or that
    /// JSON cannot represent; a database out of reach.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has the effect of a crash.
    pub async fn step<T, E>(
        &self,
        step: &str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E>
    where
        T: Serialize + DeserializeOwned,
        E: From<Error>,
    {
        let work = async { work.await.map_err(StepFailed::Unknown) };
        self.do_step(step, Repeat::Allowed, work).await
    }

    /// Does `work` at most once for the key: for an effect that must not be repeated, and whose repetition the other
    /// server cannot recognise.
    ///
    /// When the process crashes during the step, or `work` fails with [`StepFailed::Unknown`], the effect may or may
    /// not have happened. The step does not run again: the record is [`Begun::Unknown`](crate::Begun::Unknown) until
    /// the [reconcile hook](crate::Idempotency::reconcile) or a person (`rowlock idempotency resolve`) finds out. This
    /// takes two statements more than [`step`](Self::step).
    ///
    /// If a result could not be kept because the database was out of reach, this attempt remembers it. The next call
    /// for the same step keeps and returns it without running `work`, and [`complete`](Self::complete) and
    /// [`release`](Self::release) keep it first. (A result that is too large, or that JSON cannot represent, is lost:
    /// report a smaller one with [`step_happened`](Self::step_happened).)
    ///
    /// After [`StepFailed::Unknown`] the attempt cannot be completed. If it finds out itself, it can call
    /// [`step_happened`](Self::step_happened) or [`step_not_done`](Self::step_not_done), and go on.
    ///
    /// # Errors
    ///
    /// The errors of [`step`](Self::step); [`RecordError::StepUnknown`] when this step or another began in this
    /// attempt and failed as unknown.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has the effect of a crash: during `work` it makes the record unknown when the attempt ends.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/shop.db?mode=rwc", dir.path().display());
    /// # let rowlock = rowlock::Rowlock::connect(&url).await?;
    /// # async fn send_letter() -> Result<u32, (u16, String)> { Ok(7) }
    /// # use rowlock::{Begun, Fingerprint, Outcome};
    /// use rowlock::StepFailed;
    ///
    /// # let request = Fingerprint::of("");
    /// if let Begun::New(guard) = rowlock.idempotency().begin(rowlock::Scope("me").key("letter-1"), &request).await? {
    ///     let number: u32 = guard
    ///         .step_once("send", async {
    ///             send_letter().await.map_err(|(status, said)| match status {
    ///                 400..=499 => StepFailed::NotDone(Box::<dyn std::error::Error>::from(said)),
    ///                 _ => StepFailed::Unknown(said.into()),
    ///             })
    ///         })
    ///         .await?;
    ///     guard.complete(&Outcome::json(&number)?).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn step_once<T, E>(
        &self,
        step: &str,
        work: impl Future<Output = Result<T, StepFailed<E>>>,
    ) -> Result<T, E>
    where
        T: Serialize + DeserializeOwned,
        E: From<Error>,
    {
        self.do_step(step, Repeat::Never, work).await
    }

    /// Reports that the open step happened (the other server says so, for example), with this result, which is kept as
    /// if [`step_once`](Self::step_once) had returned it. Does nothing when `step` is not open.
    ///
    /// # Errors
    ///
    /// [`RecordError::StepRunning`], [`Error::Superseded`]; an invalid name; a result that is too large, or that JSON
    /// cannot represent; a database out of reach. After an error the step is still open: call it again.
    ///
    /// # Cancel safety
    ///
    /// Once polled, it goes on in the background. Call it again to know that the attempt can be completed.
    pub async fn step_happened<T: Serialize>(&self, step: &str, result: &T) -> Result<(), Error> {
        let running = self.enter(step)?;
        let outcome = Outcome::json(result)?;
        let size = outcome.bytes().len();
        self.bounds.check("the result of the step", size)?;
        if let Some(params) = self.ask_of_open(&running) {
            self.settle(params, Some(outcome)).await?;
            self.set_open(None);
        }
        Ok(())
    }

    /// Reports that the open step did not happen, and cannot happen later: it may run again. Does nothing when
    /// `step` is not open.
    ///
    /// # Errors
    ///
    /// [`RecordError::StepRunning`], [`Error::Superseded`]; [`RecordError::NotDecided`] when the step has returned a
    /// result in this attempt; an invalid name; a database out of reach: the statement that ends the attempt then
    /// reports it.
    ///
    /// # Cancel safety
    ///
    /// Once polled, it goes on in the background.
    pub async fn step_not_done(&self, step: &str) -> Result<(), Error> {
        let running = self.enter(step)?;
        self.not_done(&running).await
    }

    pub(super) async fn not_done(&self, running: &RunningStep<'_>) -> Result<(), Error> {
        if running.has_result() {
            return Err(Error::Record(RecordError::NotDecided {
                record: self.record().clone(),
                reason: "the step returned a result in this attempt, which is not in the database: call the step again, or report its result with `step_happened`",
            }));
        }
        if let Some(params) = self.ask_of_open(running) {
            self.set_open(None);
            self.settle(params, None).await?;
        }
        Ok(())
    }

    /// Records the result of the open step, if this attempt knows it and could not record it before.
    pub(super) async fn keep_known(&self) -> Result<Option<Outcome>, Error> {
        let (params, outcome) = {
            let state = self.steps.state();
            let (Some((step, number)), Some(outcome)) = (&state.open, &state.unkept) else {
                return Ok(None);
            };
            (
                self.ask_step(step, StepKind::Once { number: *number }),
                outcome.clone(),
            )
        };
        self.settle(params, Some(outcome.clone())).await?;
        self.set_open(None);
        Ok(Some(outcome))
    }

    /// Fails when a step is open, unless the outcome is its result.
    pub(super) fn check_steps(&self) -> Result<(), Error> {
        let state = self.steps.state();
        match &state.open {
            Some((step, _)) if !state.is_whole => Err(self.unknown(step)),
            _ => Ok(()),
        }
    }

    async fn do_step<T, E>(
        &self,
        step: &str,
        repeat: Repeat,
        work: impl Future<Output = Result<T, StepFailed<E>>>,
    ) -> Result<T, E>
    where
        T: Serialize + DeserializeOwned,
        E: From<Error>,
    {
        let running = self.enter(step)?;
        let of = || format!("the step {step} of {}", self.record());
        let params = match self.begin_step(&running, repeat).await? {
            StepToDo::Fresh(params) => params,
            StepToDo::Done(outcome) => return Ok(outcome.parse_json_of(of())?),
        };
        let result = match work.await {
            Ok(result) => result,
            Err(StepFailed::Unknown(error)) => return Err(error),
            Err(StepFailed::NotDone(error)) => {
                if repeat == Repeat::Never {
                    // If this statement fails, the next step or the end of the attempt reports it.
                    self.set_open(None);
                    self.settle(params, None).await?;
                }
                return Err(error);
            }
        };
        if repeat == Repeat::Never {
            self.steps.state().has_result = true;
        }
        let outcome = Outcome::json_of(&result, of())?;
        let size = outcome.bytes().len();
        self.bounds.check("the result of the step", size)?;
        if repeat == Repeat::Never {
            self.steps.state().unkept = Some(outcome.clone());
        }
        self.settle(params, Some(outcome)).await?;
        if repeat == Repeat::Never {
            self.set_open(None);
        }
        Ok(result)
    }

    /// Enters a step of the caller.
    fn enter(&self, step: &str) -> Result<RunningStep<'_>, Error> {
        check_step(step)?;
        self.enter_any(step)
    }

    pub(super) fn enter_any(&self, step: &str) -> Result<RunningStep<'_>, Error> {
        self.steps.enter(step).map_err(|running| {
            Error::Record(RecordError::StepRunning {
                record: self.record().clone(),
                step: running.as_ref().into(),
            })
        })
    }

    pub(super) async fn begin_step(
        &self,
        running: &RunningStep<'_>,
        repeat: Repeat,
    ) -> Result<StepToDo, Error> {
        self.check_running("begin a step of")?;
        if repeat == Repeat::Never
            && running.has_result()
            && let Some(outcome) = self.keep_known().await?
        {
            return Ok(StepToDo::Done(outcome));
        }
        if let Some((begun, _)) = running.open()
            && (repeat == Repeat::Never || begun == running.step)
        {
            return Err(self.unknown(&begun));
        }
        let kind = match repeat {
            Repeat::Allowed => StepKind::Repeatable,
            Repeat::Never => StepKind::Once {
                number: running.next(),
            },
        };
        let params = self.ask_step(&running.step, kind);
        let core = &self.core;
        let begin = |reply| BeginStep::task(&core.lanes, params.clone(), reply);
        let begun = match core.lanes.answer(begin).await {
            Ok((begun, undo)) => {
                undo.disarm();
                begun
            }
            Err(error) => {
                // The step may have begun in the database, but the work has not run.
                if repeat == Repeat::Never {
                    undo_step(&core.lanes, params);
                }
                return Err(error);
            }
        };
        match begun {
            StepBegun::Fresh => {}
            StepBegun::Done(outcome) => return Ok(StepToDo::Done(outcome)),
            StepBegun::OtherOpen(step) => return Err(self.unknown(&step)),
            StepBegun::Superseded | StepBegun::Locked => {
                return Err(self.superseded("begin a step of"));
            }
        }
        self.inner.bind();
        if let StepKind::Once { number } = kind {
            self.set_open(Some((Arc::clone(&running.step), number)));
        }
        Ok(StepToDo::Fresh(params))
    }

    /// Sets or clears the open step and its number.
    fn set_open(&self, begun: Option<(Arc<str>, i32)>) {
        self.inner.set_step_is_open(begun.is_some());
        let mut state = self.steps.state();
        state.open = begun;
        state.unkept = None;
        state.has_result = false;
        state.is_whole = false;
    }

    /// The ask that closes the entered step, if it is open.
    fn ask_of_open(&self, running: &RunningStep<'_>) -> Option<StepParams> {
        let (begun, number) = running.open()?;
        (begun == running.step).then(|| self.ask_step(&begun, StepKind::Once { number }))
    }

    fn ask_step(&self, step: &Arc<str>, kind: StepKind) -> StepParams {
        StepParams {
            key: self.record().clone(),
            attempt_id: self.inner.attempt_id(),
            attempt: self.attempt(),
            step: Arc::clone(step),
            kind,
        }
    }

    async fn settle(&self, params: StepParams, outcome: Option<Outcome>) -> Result<(), Error> {
        let core = &self.core;
        let progress = Progress::within(core.holdings.settings.operation_timeout);
        let keep = |reply| FinishStep::task(params, outcome, Some(reply), progress);
        match core.lanes.answer(keep).await? {
            FinishOutcome::Ended => Ok(()),
            FinishOutcome::Superseded | FinishOutcome::Locked => {
                Err(self.superseded("keep a step of"))
            }
        }
    }

    fn unknown(&self, step: &str) -> Error {
        Error::Record(RecordError::StepUnknown {
            record: self.record().clone(),
            step: step.into(),
        })
    }
}
