//! The steps of an attempt: the running step and the open step.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::model::Outcome;

/// The steps of an attempt: one at a time.
#[derive(Debug, Default)]
pub(super) struct Steps(Mutex<StepsState>);

#[derive(Debug, Default)]
pub(super) struct StepsState {
    pub(super) running: Option<Arc<str>>,
    /// The number of steps that must not be repeated, and have begun.
    pub(super) begun: i32,
    /// The open step, and its number among the begun steps.
    pub(super) open: Option<(Arc<str>, i32)>,
    /// The result of the open step, which this attempt knows, and could not record yet.
    pub(super) unkept: Option<Outcome>,
    /// The work of the open step has returned a result in this attempt, which can perhaps not be kept.
    pub(super) has_result: bool,
    /// The open step is the whole work: the outcome of the attempt is its result.
    pub(super) is_whole: bool,
}

/// Whether a step may run again when it may already have happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    Allowed,
    Never,
}

/// The running step. Dropping it lets another step begin.
#[derive(Debug)]
pub(super) struct RunningStep<'a> {
    steps: &'a Steps,
    pub(super) step: Arc<str>,
}

impl Steps {
    pub(super) fn enter(&self, step: &str) -> Result<RunningStep<'_>, Arc<str>> {
        let mut state = self.state();
        if let Some(running) = &state.running {
            return Err(Arc::clone(running));
        }
        let step: Arc<str> = step.into();
        state.running = Some(Arc::clone(&step));
        Ok(RunningStep { steps: self, step })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, StepsState> {
        self.0.lock()
    }
}

impl RunningStep<'_> {
    pub(super) fn open(&self) -> Option<(Arc<str>, i32)> {
        self.steps.state().open.clone()
    }

    /// Whether the running step is open although its work has returned a result in this attempt.
    pub(super) fn has_result(&self) -> bool {
        let state = self.steps.state();
        let begun = state.open.as_ref().map(|(begun, _)| begun);
        state.has_result && begun == Some(&self.step)
    }

    /// The number for the next step that begins.
    pub(super) fn next(&self) -> i32 {
        let mut state = self.steps.state();
        state.begun += 1;
        state.begun
    }
}

impl Drop for RunningStep<'_> {
    fn drop(&mut self) {
        self.steps.state().running = None;
    }
}
