//! Idempotency records: the verbs for administrators.
//!
//! These verbs follow the rules of those for [records](super::record).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::fault::Fault;
#[cfg(doc)]
use super::list::PAGE;
use super::record_row::RecordRow;
use crate::model::{Outcome, RecordKey};

/// The verbs for administrators.
#[async_trait]
pub(crate) trait RecordAdminStore {
    /// The first [`PAGE`] records of the range, by scope and key, without their outcomes.
    async fn record_list(&mut self, range: &RecordRange) -> Result<Vec<RecordRow>, Fault>;

    /// The records that were made unknown, and then those that the cleaner will look at last, without their outcomes:
    /// [`PAGE`] of each at most. A running or abandoned attempt is remembered for longer than any outcome of its
    /// scope, so it is among these.
    async fn record_open(&mut self) -> Result<Vec<RecordRow>, Fault>;

    /// Changes a record that has no live attempt, if it is still as it was seen. False: it is not.
    async fn record_decide(&mut self, params: &DecideParams) -> Result<bool, Fault>;
}

/// Records from `from` on, and before `until`: scopes and keys.
#[derive(Debug, Clone)]
pub(crate) struct RecordRange {
    pub(crate) from: (Vec<u8>, Vec<u8>),
    pub(crate) until: (Vec<u8>, Vec<u8>),
}

#[derive(Debug, Clone)]
pub(crate) struct DecideParams {
    pub(crate) key: RecordKey,
    /// The attempt that was seen.
    pub(crate) attempt: i64,
    pub(crate) decision: Decision,
    /// How long the free key is remembered.
    pub(crate) remember: Duration,
}

#[derive(Debug, Clone)]
pub(crate) enum Decision {
    /// Running, past its lease and with an open step: becomes unknown.
    Unknown,
    /// Unknown, or running as above, with this open step: it happened with this result, or (`None`) did not happen.
    /// The key becomes free.
    Resolve(Arc<str>, Option<Outcome>),
    /// Running past its lease, or free: becomes free, and no attempt counts against it. (With an open step, it becomes
    /// unknown.)
    Reset,
}
