//! What is kept of an outcome, and for how long.

use std::time::Duration;

use crate::model::{Error, Outcome, RecordError};
use crate::store::verbs::record::RecordEnd;

/// The largest outcome, and the times for which it is kept and its key remembered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) retention: Duration,
    pub(crate) remember: Duration,
    pub(crate) max_outcome: usize,
}

impl Bounds {
    pub(crate) fn check(&self, what: &'static str, bytes: usize) -> Result<(), Error> {
        if bytes <= self.max_outcome {
            return Ok(());
        }
        Err(Error::Record(RecordError::OutcomeTooLarge {
            what,
            bytes,
            limit: self.max_outcome,
        }))
    }

    pub(crate) fn done(&self, outcome: &Outcome) -> Result<RecordEnd, Error> {
        self.check("the outcome", outcome.bytes().len())?;
        Ok(RecordEnd::Done {
            outcome: outcome.clone(),
            retain: self.retention,
            remember: self.remember,
        })
    }
}
