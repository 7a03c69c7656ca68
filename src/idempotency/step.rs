//! Steps: effects outside of the database, each done once for a key, over all attempts.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::guard::IdempotencyGuard;
use super::steps::{Repeat, Running};
use crate::model::Error;
use crate::model::Outcome;
use crate::model::check_step;
use crate::runtime::head::Fate;
use crate::runtime::verbs::step::{BeginStep, FinishStep};
use crate::store::record::Finished;
use crate::store::step::{StepAsk, StepBegun, StepKind};

/// How a step that must not be repeated has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepFailed<E> {
    /// It did not happen, for sure, and will not: the other side has refused it. It may be tried again.
    NotDone(E),
    /// It may have happened: no answer has come.
    Unknown(E),
}

/// What `?` makes of an error: nothing is taken for granted.
impl<E> From<E> for StepFailed<E> {
    fn from(error: E) -> Self {
        Self::Unknown(error)
    }
}

/// What to do about a step.
pub(super) enum StepToDo {
    Fresh(StepAsk),
    Done(Outcome),
}

impl IdempotencyGuard {
    /// Does `work` once for the key, and keeps its result: an attempt that comes after a crash gets the result instead
    /// of doing it again.
    ///
    /// A crash in the middle of it, or before the result was kept, lets the next attempt **do it again**: give the other
    /// side the [`downstream_key`](Self::downstream_key), so that it sees that it is the same. Where it cannot, use
    /// [`step_once`](Self::step_once).
    ///
    /// `step` names it, 1 to 255 bytes; the result is kept as JSON, of at most
    /// [`max_outcome`](crate::Idempotency::max_outcome) bytes. Steps of one guard run one at a time, neither beside nor
    /// inside each other. A failed one is not kept.
    ///
    /// # Errors
    ///
    /// Those of `work`. [`Error::StepRunning`] at once, when another step of this guard runs. [`Error::Superseded`]: another attempt has taken over; a refused name; a result that is too large, or
    /// cannot be said in JSON; a database out of reach.
    ///
    /// # Cancel safety
    ///
    /// As after a crash.
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

    /// Does `work` at most once for the key, whatever happens: for an effect that must not be repeated and that the
    /// other side cannot recognise.
    ///
    /// When the process crashes in the middle of it, or `work` fails with [`StepFailed::Unknown`], nobody knows whether
    /// it happened. It is not run again: the record is [`Begun::Unknown`](crate::Begun::Unknown) until the
    /// [reconcile hook](crate::Idempotency::reconcile) or a person (`rowlock idempotency resolve`) has found out. Two
    /// statements more than [`step`](Self::step), which see to that.
    ///
    /// A result that could not be kept, because the database was away, is not lost: as long as this attempt runs, the next call
    /// for the same step keeps and returns it, and does not run `work`; [`complete`](Self::complete) and
    /// [`release`](Self::release) keep it first, too. (One that is too large, or cannot be said in JSON, is:
    /// say a smaller one with [`step_happened`](Self::step_happened).)
    ///
    /// After [`StepFailed::Unknown`] the attempt cannot be completed. When it finds out by itself, it says so with
    /// [`step_happened`](Self::step_happened) or [`step_not_done`](Self::step_not_done), and goes on.
    ///
    /// # Errors
    ///
    /// Those of [`step`](Self::step); [`Error::StepUnknown`] when it, or another one, was begun in this attempt and
    /// failed as unknown.
    ///
    /// # Cancel safety
    ///
    /// As after a crash: dropping the future in the middle of `work` makes the record unknown when the attempt ends.
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
    /// if let Begun::New(guard) = rowlock.idempotency().begin("me", "letter-1", &request).await? {
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

    /// The open step happened, as this attempt has found out (from the other side, say), and this is what it came to:
    /// kept as if [`step_once`](Self::step_once) had returned it. Does nothing when `step` is not open.
    ///
    /// # Errors
    ///
    /// [`Error::StepRunning`], [`Error::Superseded`]; a refused name; a result that is too large, or cannot be said in JSON; a
    /// database out of reach. After an error the step is still open, and this can be called again.
    ///
    /// # Cancel safety
    ///
    /// Once polled, it goes on in the background. Call it again to know that the attempt can be completed.
    pub async fn step_happened<T: Serialize>(&self, step: &str, result: &T) -> Result<(), Error> {
        let running = self.enter(step)?;
        let outcome = Outcome::json(result)?;
        let size = outcome.bytes().len();
        self.bounds.check("the result of the step", size)?;
        if let Some(ask) = self.ask_of_open(&running) {
            self.settle(ask, Some(outcome)).await?;
            self.set_open(None);
        }
        Ok(())
    }

    /// The open step did not happen, as this attempt has found out, and will not: it may be run again. Does nothing when
    /// `step` is not open.
    ///
    /// # Errors
    ///
    /// [`Error::StepRunning`], [`Error::Superseded`]; [`Error::NotDecided`] when the step has returned a result in this attempt; a
    /// refused name; a database out of reach: the end of the attempt says it then.
    ///
    /// # Cancel safety
    ///
    /// Once polled, it goes on in the background.
    pub async fn step_not_done(&self, step: &str) -> Result<(), Error> {
        let running = self.enter(step)?;
        self.not_done(&running).await
    }

    pub(super) async fn not_done(&self, running: &Running<'_>) -> Result<(), Error> {
        if running.is_unkept() {
            return Err(Error::NotDecided {
                record: self.record().clone(),
                reason: "the step has returned a result in this attempt, which the database has not kept yet: call the step again",
            });
        }
        if let Some(ask) = self.ask_of_open(running) {
            self.set_open(None);
            self.settle(ask, None).await?;
        }
        Ok(())
    }

    /// Keeps what a step is known to have come to, and could not be kept before.
    pub(super) async fn keep_known(&self) -> Result<Option<Outcome>, Error> {
        let (ask, outcome) = {
            let state = self.steps.state();
            let (Some((step, number)), Some(outcome)) = (&state.open, &state.unkept) else {
                return Ok(None);
            };
            (
                self.ask_step(step, StepKind::Once { number: *number }),
                outcome.clone(),
            )
        };
        self.settle(ask, Some(outcome.clone())).await?;
        self.set_open(None);
        Ok(Some(outcome))
    }

    /// Fails when nobody knows whether a step has happened, unless the outcome tells it.
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
        let ask = match self.begin_step(&running, repeat).await? {
            StepToDo::Fresh(ask) => ask,
            StepToDo::Done(outcome) => return Ok(outcome.parse_json()?),
        };
        let result = match work.await {
            Ok(result) => result,
            Err(StepFailed::Unknown(error)) => return Err(error),
            Err(StepFailed::NotDone(error)) => {
                if repeat == Repeat::Never {
                    // When it cannot be recorded, the next step or the end of the attempt says it.
                    self.set_open(None);
                    self.settle(ask, None).await?;
                }
                return Err(error);
            }
        };
        let outcome = Outcome::json(&result)?;
        let size = outcome.bytes().len();
        self.bounds.check("the result of the step", size)?;
        if repeat == Repeat::Never {
            self.steps.state().unkept = Some(outcome.clone());
        }
        self.settle(ask, Some(outcome)).await?;
        if repeat == Repeat::Never {
            self.set_open(None);
        }
        Ok(result)
    }

    /// For a caller's step.
    fn enter(&self, step: &str) -> Result<Running<'_>, Error> {
        check_step(step)?;
        self.enter_any(step)
    }

    pub(super) fn enter_any(&self, step: &str) -> Result<Running<'_>, Error> {
        self.steps
            .enter(step)
            .map_err(|running| Error::StepRunning {
                record: self.record().clone(),
                step: running.as_ref().into(),
            })
    }

    pub(super) async fn begin_step(
        &self,
        running: &Running<'_>,
        repeat: Repeat,
    ) -> Result<StepToDo, Error> {
        self.check_running("begin a step of")?;
        if repeat == Repeat::Never
            && running.is_unkept()
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
        let ask = self.ask_step(&running.step, kind);
        let core = &self.inner.core;
        let begin = |reply| BeginStep::task(core, ask.clone(), reply);
        let begun = match core.answer(begin).await {
            Ok((begun, undo)) => {
                undo.disarm();
                begun
            }
            Err(error) => {
                // Whether it was begun is not known, but nothing has run.
                if repeat == Repeat::Never {
                    core.undo_step(ask);
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
        Ok(StepToDo::Fresh(ask))
    }

    /// Which beginning is open: nobody knows whether it happened.
    fn set_open(&self, begun: Option<(Arc<str>, i32)>) {
        self.inner.set_step_is_open(begun.is_some());
        let mut state = self.steps.state();
        state.open = begun;
        state.unkept = None;
        state.is_whole = false;
    }

    /// The ask that closes the step that is entered, when it is open.
    fn ask_of_open(&self, running: &Running<'_>) -> Option<StepAsk> {
        let (begun, number) = running.open()?;
        (begun == running.step).then(|| self.ask_step(&begun, StepKind::Once { number }))
    }

    fn ask_step(&self, step: &Arc<str>, kind: StepKind) -> StepAsk {
        StepAsk {
            key: self.record().clone(),
            attempt_id: self.inner.attempt_id(),
            attempt: self.attempt(),
            step: Arc::clone(step),
            kind,
        }
    }

    async fn settle(&self, ask: StepAsk, outcome: Option<Outcome>) -> Result<(), Error> {
        let core = &self.inner.core;
        let fate = Fate::within(core.settings.operation_timeout);
        let keep = |reply| FinishStep::task(ask, outcome, Some(reply), fate);
        match core.answer(keep).await? {
            Finished::Ended => Ok(()),
            Finished::Superseded | Finished::Locked => Err(self.superseded("keep a step of")),
        }
    }

    fn unknown(&self, step: &str) -> Error {
        Error::StepUnknown {
            record: self.record().clone(),
            step: step.into(),
        }
    }
}
