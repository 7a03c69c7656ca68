//! The steps of idempotency records.

use std::cmp::Ordering;
use std::sync::Arc;

use async_trait::async_trait;
use uuid::Uuid;

use super::columns::read_columns;
use super::fault::Fault;
use super::record::FinishOutcome;
use crate::model::{Outcome, RecordKey};

/// The verbs for steps. They follow the rules of those for [records](super::record).
#[async_trait]
pub(crate) trait StepStore: Send {
    /// Begins a step, unless it was finished in this or an earlier attempt. A step that must not be repeated becomes
    /// the open step of the record, unless a later beginning is open. (An earlier beginning is over.)
    async fn step_begin(&mut self, params: &StepParams) -> Result<StepBegun, Fault> {
        if let Some(begun) = params.seen(self.step_look(params).await?) {
            return Ok(begun);
        }
        if self.step_open(params).await? {
            return Ok(StepBegun::Fresh);
        }
        let look = self.step_look(params).await?;
        Ok(params.seen(look).unwrap_or(StepBegun::Locked))
    }

    /// Looks at the record and the step. `None`: there is no record.
    async fn step_look(&mut self, params: &StepParams) -> Result<Option<StepLook>, Fault>;

    /// Makes the step the open step of the record. False: the attempt is not the running one, a later beginning is
    /// open, or the row is locked.
    async fn step_open(&mut self, params: &StepParams) -> Result<bool, Fault>;

    /// Keeps the result of a step, or that it did not happen. Closes the open step if that is this beginning or an
    /// earlier one: a late sending does not close the same step begun again.
    async fn step_finish(
        &mut self,
        params: &StepParams,
        outcome: Option<&Outcome>,
    ) -> Result<FinishOutcome, Fault>;

    /// The finished steps of a record, oldest first, with the first `most` bytes of each result.
    async fn step_list(&mut self, key: &RecordKey, most: i32) -> Result<Vec<StepRow>, Fault>;
}

#[derive(Debug, Clone)]
pub(crate) struct StepParams {
    pub(crate) key: RecordKey,
    pub(crate) attempt_id: Uuid,
    pub(crate) attempt: i64,
    pub(crate) step: Arc<str>,
    pub(crate) kind: StepKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepKind {
    Repeatable,
    /// It must not be repeated. The beginnings of such steps in an attempt are counted from 1. None begins while an
    /// earlier one is open.
    Once {
        number: i32,
    },
}

impl StepKind {
    /// The value in the column; 0 for a repeatable step.
    pub(crate) fn number(self) -> i32 {
        match self {
            Self::Repeatable => 0,
            Self::Once { number } => number,
        }
    }
}

/// Whether the attempt is the running one, the open step, the number of its beginning, and the step's result.
pub(crate) type StepLook = (
    bool,
    Option<String>,
    Option<i32>,
    Option<String>,
    Option<Vec<u8>>,
);

impl StepParams {
    /// Why a step could not be settled.
    pub(crate) fn not_settled(look: Option<&StepLook>) -> FinishOutcome {
        match look {
            Some((true, ..)) => FinishOutcome::Locked,
            _ => FinishOutcome::Superseded,
        }
    }

    /// The answer that a look at the step already gives. `None`: the step has to be opened first.
    pub(crate) fn seen(&self, look: Option<StepLook>) -> Option<StepBegun> {
        match look {
            None | Some((false, ..)) => Some(StepBegun::Superseded),
            Some((.., Some(content_type), Some(bytes))) => {
                Some(StepBegun::Done(Outcome::kept(&content_type, bytes)))
            }
            Some(_) if self.kind == StepKind::Repeatable => Some(StepBegun::Fresh),
            Some((_, Some(open), number, ..)) => match number.cmp(&Some(self.kind.number())) {
                // The attempt knows that the earlier step did not happen, or it would not begin another one.
                Ordering::Less => None,
                // An earlier sending opened it.
                Ordering::Equal => Some(StepBegun::Fresh),
                Ordering::Greater => Some(StepBegun::OtherOpen(open)),
            },
            Some(_) => None,
        }
    }
}

#[derive(Debug)]
pub(crate) enum StepBegun {
    /// Do the step.
    Fresh,
    /// The step was done before.
    Done(Outcome),
    /// A later beginning, of this step or another one, is open: it is unknown whether that step happened.
    OtherOpen(String),
    /// The attempt is no longer the running one.
    Superseded,
    /// Another transaction has the row locked: not begun yet.
    Locked,
}

#[derive(Debug)]
pub(crate) struct StepRow {
    pub(crate) step: String,
    pub(crate) attempt: i64,
    /// The begin of the result.
    pub(crate) outcome: Outcome,
    /// The bytes of the whole result.
    pub(crate) size: i64,
    /// Microseconds since 1970-01-01 UTC.
    pub(crate) done_at: i64,
}

read_columns! {
    StepRow: (String, i64, String, Vec<u8>, i64, i64)
        => |(step, attempt, content_type, bytes, size, done_at)| Self {
            step,
            attempt,
            outcome: Outcome::kept(&content_type, bytes),
            size,
            done_at,
        };
}
