//! Idempotency records: the verbs for administrators.
//!
//! These verbs follow the rules of those for [records](super::record).

use std::time::Duration;

use async_trait::async_trait;

use super::fault::Fault;
use super::record_row::RecordRow;
use crate::model::{Outcome, RecordKey, RecordState};

/// The verbs for administrators.
#[async_trait]
pub(crate) trait RecordAdminStore {
    /// Lists records in the order of their scopes and keys, without their outcomes.
    async fn record_list(&mut self, filter: &ListParams) -> Result<Vec<RecordRow>, Fault>;

    /// Changes a record that has no live attempt, if it is still as it was seen. False: it is not.
    async fn record_decide(&mut self, params: &DecideParams) -> Result<bool, Fault>;
}

#[derive(Debug, Clone)]
pub(crate) struct ListParams {
    pub(crate) scope: Option<Vec<u8>>,
    /// Only records in this state by the clock: the rule of [`state_now`](super::record_row::RecordRow::state_now),
    /// with the number of attempts that the record itself allows.
    pub(crate) state: Option<RecordState>,
    pub(crate) limit: u32,
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
    /// Unknown: the open step happened with this result, or (`None`) did not happen. The key becomes free.
    Resolve(Option<Outcome>),
    /// Running past its lease, or free: becomes free, and no attempt counts against it. (With an open step, it becomes
    /// unknown.)
    Reset,
}
