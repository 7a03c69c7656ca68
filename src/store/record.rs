//! Idempotency records.
//!
//! What applies to all verbs ([`Store`](super::Store)) applies to these. On top of it:
//!
//! - *durable*: what a claim, a step or an end says survives a crash of the server, on every brand (unlike a
//!   released lease).
//! - *naming*: an attempt is named by its own id (`attempt_id`) together with its number. As long as the
//!   record is running, an attempt whose id and number are in the row has not been superseded; so every verb may be sent twice.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use super::fault::Fault;
use super::lease::Renewed;
use super::record_state::{Facts, KeptState};
use super::to_micros;
use crate::model::{Fingerprint, Outcome, RecordKey, RecordState};

/// The verbs for records.
#[async_trait]
pub(crate) trait RecordStore: Send {
    /// The records of these keys, in the order of the keys. An outcome of more than `largest` bytes stays where it is:
    /// only its size is told.
    async fn record_read(
        &mut self,
        keys: &[RecordKey],
        largest: usize,
    ) -> Result<Vec<Option<RecordRow>>, Fault>;

    /// The record of one key, as [`record_read`](Self::record_read) reads it.
    async fn record_read_one(
        &mut self,
        key: &RecordKey,
        largest: usize,
    ) -> Result<Option<RecordRow>, Fault> {
        let rows = self.record_read(std::slice::from_ref(key), largest).await?;
        Ok(rows.into_iter().next().flatten())
    }

    /// Whether a transaction that has not ended has claimed the key, or has its record locked; without waiting for it.
    /// (False on SQLite, where only the file tells that there is a writer.)
    async fn record_is_claimed(&mut self, key: &RecordKey) -> Result<bool, Fault>;

    /// Removes a record whose time is over, if it is still the attempt that was seen, with its steps, in one transaction.
    /// One that is locked is left alone; one that runs, too, before its lease is over or while it has an open step.
    async fn record_forget(&mut self, key: &RecordKey, attempt: i64) -> Result<(), Fault>;

    /// Begins an attempt where there is no record, or where there is the one that the ask has seen and it may be
    /// run again: it is free; or running, past its lease, and without an open step. The attempt's number is
    /// `max(previous + 1, microseconds of the clock)`. An attempt that takes over from one that has vanished does not know what
    /// that one has begun: the key is bound to its request.
    ///
    /// One outcome per ask, in the order of the asks.
    async fn record_claim(&mut self, asks: &[ClaimAsk]) -> Result<Vec<Claimed>, Fault>;

    /// Extends the leases of attempts that run. A lease that has run out is extended, too, as long as nobody has
    /// taken over.
    ///
    /// One outcome per ask, in the order of the asks.
    async fn record_renew(&mut self, asks: &[KeepAsk]) -> Result<Vec<Renewed>, Fault>;

    /// Ends attempts that run: with an outcome, or by freeing their keys. A record with an open step is not freed,
    /// but becomes unknown, unless the attempt knows that the step has not happened. Lease or no lease: what has not been taken over may end.
    ///
    /// One outcome per ask, in the order of the asks.
    async fn record_finish(&mut self, asks: &[FinishAsk]) -> Result<Vec<Finished>, Fault>;
}

#[derive(Debug, Clone)]
pub(crate) struct ClaimAsk {
    pub(crate) key: RecordKey,
    /// The id of the attempt-to-be: fresh for each.
    pub(crate) attempt_id: Uuid,
    /// For people to read.
    pub(crate) holder: Arc<str>,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) lease: Duration,
    pub(crate) max_attempts: i32,
    /// The client's database: a claim in another one is refused.
    pub(crate) database: Uuid,
    /// How long the outcome will be kept, and the key remembered, of a claim in a transaction.
    pub(crate) retain: Duration,
    pub(crate) remember: Duration,
    /// How long the key is remembered when the attempt vanishes, and nobody asks for it.
    pub(crate) remember_begun: Duration,
    /// The attempt of the record that was seen; `None`: there was none.
    pub(crate) seen: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claimed {
    /// The attempt runs. (Asked again after a broken connection, this is the answer to the first sending.)
    Mine { attempt: i64 },
    /// It is not as it was seen: look again.
    Missed,
    /// A transaction that has not ended has claimed it, or has it locked.
    Locked,
}

#[derive(Debug, Clone)]
pub(crate) struct KeepAsk {
    pub(crate) key: RecordKey,
    pub(crate) attempt_id: Uuid,
    pub(crate) lease: Duration,
}

#[derive(Debug, Clone)]
pub(crate) struct FinishAsk {
    pub(crate) key: RecordKey,
    pub(crate) attempt_id: Uuid,
    /// [`ANY_ATTEMPT`] where only the attempt's id is known.
    pub(crate) attempt: i64,
    pub(crate) end: RecordEnd,
}

/// An id belongs to one attempt only.
pub(crate) const ANY_ATTEMPT: i64 = -1;

#[derive(Debug, Clone)]
pub(crate) enum RecordEnd {
    Done {
        outcome: Outcome,
        /// How long the outcome is kept, from now on.
        retain: Duration,
        /// How long the key is remembered, from now on: not less.
        remember: Duration,
    },
    Free {
        /// Whether the next attempt has to be of the same request.
        bound: bool,
        /// How many attempts are not held against the key.
        pardon: i32,
        /// How long the key is remembered, from now on.
        remember: Duration,
        /// The same where the next attempt has to be of the same request.
        remember_begun: Duration,
        /// Whether a step may have happened of which nothing is kept. If not, the attempt knows that the open step of the record
        /// has not happened.
        step_is_open: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finished {
    /// It is as was asked, by this sending or an earlier one.
    Ended,
    /// The attempt is not the running one any more.
    Superseded,
    /// Somebody has the row locked: not done yet.
    Locked,
}

/// What a row says, before it is known to make sense. Times left are microseconds, by the database's clock when
/// the row was read; the others are since 1970-01-01 UTC.
#[derive(Debug, Clone)]
pub(crate) struct RecordRow {
    pub(crate) scope: Vec<u8>,
    pub(crate) key: Vec<u8>,
    pub(crate) state: KeptState,
    pub(crate) attempt: i64,
    pub(crate) vanished: i32,
    pub(crate) max_attempts: i32,
    pub(crate) attempt_id: Uuid,
    pub(crate) holder: String,
    pub(crate) fingerprint: Vec<u8>,
    pub(crate) bound: bool,
    pub(crate) open_step: Option<String>,
    pub(crate) content_type: Option<String>,
    /// Not there when it is larger than was asked for.
    pub(crate) outcome: Option<Arc<[u8]>>,
    pub(crate) outcome_size: Option<i64>,
    pub(crate) began_at: i64,
    pub(crate) attempted_at: i64,
    pub(crate) lease_until: i64,
    pub(crate) done_at: Option<i64>,
    pub(crate) lease_left: i64,
    pub(crate) retain_left: Option<i64>,
    pub(crate) forget_left: Option<i64>,
}

impl RecordRow {
    /// What the record is by the database's clock, where `max_attempts` attempts may vanish. `None`: the row is damaged.
    pub(crate) fn state_now(&self, max_attempts: i32) -> Option<RecordState> {
        self.state.by_the_clock(&Facts {
            lease_left: self.lease_left,
            has_open_step: self.open_step.is_some(),
            vanished: self.vanished,
            max_attempts,
            retain_left: self.retain_left,
        })
    }

    pub(crate) fn is_of(&self, key: &RecordKey) -> bool {
        self.key == key.key() && self.scope == key.scope()
    }

    /// Whether the attempt of this id has neither ended nor been taken over.
    pub(crate) fn runs_for(&self, attempt_id: Uuid) -> bool {
        self.attempt_id == attempt_id && self.state == KeptState::Running
    }

    /// The size of an outcome that has stayed where it is.
    pub(crate) fn left_behind(&self) -> Option<usize> {
        let size = self.outcome_size.filter(|_| self.outcome.is_none())?;
        usize::try_from(size).ok()
    }

    /// Whether this is the outcome that was kept.
    fn has(&self, outcome: &Outcome) -> bool {
        self.outcome.as_deref() == Some(outcome.bytes())
            && self.content_type.as_deref() == Some(outcome.content_type())
    }

    /// The rows of `keys`, in their order.
    pub(crate) fn in_order(mut rows: Vec<Self>, keys: &[RecordKey]) -> Vec<Option<Self>> {
        let mut of = |key: &RecordKey| {
            let at = rows.iter().position(|row| row.is_of(key))?;
            Some(rows.swap_remove(at))
        };
        keys.iter().map(&mut of).collect()
    }

    /// What an attempt that did not end with this sending has come to. The row has been read with an outcome as large as
    /// that of the ask ([`FinishAsk::size`]).
    pub(crate) fn finished(row: Option<&Self>, ask: &FinishAsk) -> Finished {
        match row {
            Some(row) if row.attempt_id != ask.attempt_id => Finished::Superseded,
            Some(row) if ![row.attempt, ANY_ATTEMPT].contains(&ask.attempt) => Finished::Superseded,
            Some(row) => match (row.state, &ask.end) {
                (KeptState::Running, _) => Finished::Locked,
                (KeptState::Done, RecordEnd::Done { outcome, .. }) if row.has(outcome) => {
                    Finished::Ended
                }
                (KeptState::Free | KeptState::Unknown, RecordEnd::Free { .. }) => Finished::Ended,
                // Another outcome counts, too: the one that a transaction has kept.
                _ => Finished::Superseded,
            },
            None => Finished::Superseded,
        }
    }
}

impl FinishAsk {
    /// How large the outcome is, in bytes; 0 without one.
    pub(crate) fn size(&self) -> usize {
        match &self.end {
            RecordEnd::Done { outcome, .. } => outcome.bytes().len(),
            RecordEnd::Free { .. } => 0,
        }
    }
}

impl ClaimAsk {
    /// What a claim that changed nothing has come to.
    pub(crate) fn missed(&self, row: Option<&RecordRow>) -> Claimed {
        match row {
            Some(row) if row.runs_for(self.attempt_id) => Claimed::Mine {
                attempt: row.attempt,
            },
            // As it was seen, and yet not to be had.
            Some(row) if self.seen == Some(row.attempt) => Claimed::Locked,
            Some(_) => Claimed::Missed,
            None => Claimed::Locked,
        }
    }
}

/// The columns that an end sets.
#[derive(Debug)]
pub(crate) struct EndColumns<'a> {
    pub(crate) state: &'static str,
    pub(crate) outcome: Option<&'a Outcome>,
    pub(crate) retain: Option<i64>,
    pub(crate) remember: i64,
    /// Instead of `remember`, where the record is bound by then.
    pub(crate) remember_begun: i64,
    pub(crate) bound: bool,
    pub(crate) pardon: i32,
    /// Whether an open step of the record stays, and makes it unknown.
    pub(crate) step_is_open: bool,
}

impl<'a> From<&'a RecordEnd> for EndColumns<'a> {
    fn from(end: &'a RecordEnd) -> Self {
        match end {
            RecordEnd::Done {
                outcome,
                retain,
                remember,
            } => Self {
                state: KeptState::Done.name(),
                outcome: Some(outcome),
                retain: Some(to_micros(*retain)),
                remember: to_micros(*remember),
                remember_begun: to_micros(*remember),
                bound: true,
                pardon: i32::MAX,
                step_is_open: false,
            },
            RecordEnd::Free {
                bound,
                pardon,
                remember,
                remember_begun,
                step_is_open,
            } => Self {
                state: KeptState::Free.name(),
                outcome: None,
                retain: None,
                remember: to_micros(*remember),
                remember_begun: to_micros((*remember_begun).max(*remember)),
                bound: *bound,
                pardon: *pardon,
                step_is_open: *step_is_open,
            },
        }
    }
}

/// The row of a record, from the columns that every brand selects in this order.
macro_rules! record_row {
    ($row:expr) => {{
        let row = $row;
        Ok::<_, sqlx::Error>($crate::store::record::RecordRow {
            scope: row.try_get(0)?,
            key: row.try_get(1)?,
            state: $crate::store::record_state::KeptState::parse(row.try_get(2)?),
            attempt: row.try_get(3)?,
            vanished: row.try_get(4)?,
            max_attempts: row.try_get(5)?,
            attempt_id: row.try_get(6)?,
            holder: row.try_get(7)?,
            fingerprint: row.try_get(8)?,
            bound: row.try_get(9)?,
            open_step: row.try_get(10)?,
            content_type: row.try_get(11)?,
            outcome: row.try_get::<Option<Vec<u8>>, _>(12)?.map(Into::into),
            began_at: row.try_get(13)?,
            attempted_at: row.try_get(14)?,
            lease_until: row.try_get(15)?,
            done_at: row.try_get(16)?,
            lease_left: row.try_get(17)?,
            retain_left: row.try_get(18)?,
            forget_left: row.try_get(19)?,
            outcome_size: row.try_get(20)?,
        })
    }};
}
pub(crate) use record_row;
