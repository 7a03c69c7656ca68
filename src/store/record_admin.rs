//! Idempotency records, as an administrator sees and changes them.
//!
//! What applies to the verbs for [records](super::record) applies to these.

use std::time::Duration;

use async_trait::async_trait;

use super::fault::Fault;
use super::record::RecordRow;
use crate::model::{Outcome, RecordKey, RecordState};

/// The verbs for administrators.
#[async_trait]
pub(crate) trait RecordAdminStore {
    /// Records in the order of their scopes and keys, without their outcomes.
    async fn record_list(&mut self, filter: &ListAsk) -> Result<Vec<RecordRow>, Fault>;

    /// Changes a record that nobody is working on from outside, if it is still what was seen. False: it is not.
    async fn record_decide(&mut self, ask: &DecideAsk) -> Result<bool, Fault>;
}

#[derive(Debug, Clone)]
pub(crate) struct ListAsk {
    pub(crate) scope: Option<Vec<u8>>,
    /// Only those that are in this state by the clock: the rule of
    /// [`state_now`](super::record::RecordRow::state_now), with the number of attempts that the record itself allows.
    pub(crate) state: Option<RecordState>,
    pub(crate) limit: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct DecideAsk {
    pub(crate) key: RecordKey,
    /// The attempt that was seen.
    pub(crate) attempt: i64,
    pub(crate) decision: Decision,
    /// How long the key is remembered once it is free.
    pub(crate) remember: Duration,
}

#[derive(Debug, Clone)]
pub(crate) enum Decision {
    /// Running, past its lease and with an open step: unknown from now on.
    Unknown,
    /// Unknown: the open step happened, and this is what it came to; or it did not happen. The key is free.
    Resolve(Option<Outcome>),
    /// Running past its lease, or free: free, and no attempt is held against it. (With an open step, it becomes unknown.)
    Reset,
}
