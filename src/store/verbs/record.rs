//! Idempotency records.
//!
//! These verbs follow the rules of [`Store`](super::Store), and two more:
//!
//! - *durable*: a claim, a step or an end survives a crash of the server, on every engine (unlike a released lease).
//! - *naming*: an attempt is named by its own id (`attempt_id`) together with its number. While the record is running,
//!   an attempt whose id and number are in the row has not been superseded. So every verb may be sent twice.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::{ColumnIndex, Decode, FromRow, Row, Type};
use uuid::Uuid;

use super::fault::Fault;
use super::lease::RenewOutcome;
use super::record_state::{Facts, KeptState};
use super::time::to_micros;
use crate::model::{Fingerprint, Outcome, RecordKey, RecordState};

/// The verbs for records.
#[async_trait]
pub(crate) trait RecordStore: Send {
    /// Reads the records of these keys, in the order of the keys. For an outcome of more than `largest` bytes, reads
    /// only its size.
    async fn record_read(
        &mut self,
        keys: &[RecordKey],
        largest: usize,
    ) -> Result<Vec<Option<RecordRow>>, Fault>;

    /// Reads the record of one key as [`record_read`](Self::record_read) does.
    async fn record_read_one(
        &mut self,
        key: &RecordKey,
        largest: usize,
    ) -> Result<Option<RecordRow>, Fault> {
        let rows = self.record_read(std::slice::from_ref(key), largest).await?;
        Ok(rows.into_iter().next().flatten())
    }

    /// Whether an open transaction has claimed the key or has its record locked. Does not wait for that transaction.
    /// (False on SQLite, where only the lock of the file shows that there is a writer.)
    async fn record_is_claimed(&mut self, key: &RecordKey) -> Result<bool, Fault>;

    /// Removes an expired record with its steps, in one transaction, if it still has the attempt that was seen. Leaves
    /// a locked record alone, and a running one with a live lease or an open step.
    async fn record_forget(&mut self, key: &RecordKey, attempt: i64) -> Result<(), Fault>;

    /// Begins an attempt where there is no record, or where the record is as the ask has seen it and may run again: it
    /// is free, or it is running, past its lease, and without an open step. The attempt's number is `max(previous + 1,
    /// microseconds of the clock)`. After an abandoned attempt the key is bound to its request, because the new
    /// attempt does not know what the abandoned one began.
    ///
    /// One outcome for each, in their order.
    async fn record_claim(&mut self, all: &[ClaimParams]) -> Result<Vec<ClaimOutcome>, Fault>;

    /// Extends the leases of running attempts. Extends an expired lease too, unless another attempt has taken over.
    ///
    /// One outcome for each, in their order.
    async fn record_renew(&mut self, all: &[KeepParams]) -> Result<Vec<RenewOutcome>, Fault>;

    /// Ends running attempts, with an outcome or by freeing their keys. A record with an open step is not freed but
    /// becomes unknown, unless the attempt knows that the step did not happen. An attempt that was not taken over may
    /// end even after its lease.
    ///
    /// One outcome for each, in their order.
    async fn record_finish(&mut self, all: &[FinishParams]) -> Result<Vec<FinishOutcome>, Fault>;
}

#[derive(Debug, Clone)]
pub(crate) struct ClaimParams {
    pub(crate) key: RecordKey,
    /// The id for the new attempt: fresh for each claim.
    pub(crate) attempt_id: Uuid,
    /// A text for people.
    pub(crate) holder: Arc<str>,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) lease: Duration,
    pub(crate) max_attempts: i32,
    /// The client's database: a claim in another database is refused.
    pub(crate) database: Uuid,
    /// For a claim in a transaction: how long to keep the outcome and remember the key.
    pub(crate) retain: Duration,
    pub(crate) remember: Duration,
    /// How long the key is remembered when the attempt is abandoned and no caller asks for the key.
    pub(crate) remember_begun: Duration,
    /// The attempt in the record that was seen; `None`: there was no record.
    pub(crate) seen: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimOutcome {
    /// The attempt runs. (A second sending after a broken connection gets this answer too.)
    Mine { attempt: i64 },
    /// The record is not as it was seen: look again.
    Missed,
    /// An open transaction has claimed the key, or has its record locked.
    Locked,
}

#[derive(Debug, Clone)]
pub(crate) struct KeepParams {
    pub(crate) key: RecordKey,
    pub(crate) attempt_id: Uuid,
    pub(crate) lease: Duration,
}

#[derive(Debug, Clone)]
pub(crate) struct FinishParams {
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
        /// How long to keep the outcome, from now on.
        retain: Duration,
        /// How long to remember the key, from now on: at least as long.
        remember: Duration,
    },
    Free {
        /// Whether the next attempt has to be of the same request.
        bound: bool,
        /// How many attempts not to count against the key.
        pardon: i32,
        /// How long to remember the key, from now on.
        remember: Duration,
        /// The same, for when the next attempt has to be of the same request.
        remember_begun: Duration,
        /// Whether a step may have happened without a kept result. If false, the attempt knows that the record's open
        /// step did not happen.
        step_is_open: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FinishOutcome {
    /// This sending or an earlier one has ended the attempt as asked.
    Ended,
    /// The attempt is no longer the running one.
    Superseded,
    /// Another transaction has the row locked: not ended yet.
    Locked,
}

/// The columns of a row, unchecked. Times left are microseconds by the database's clock when the row was read; other
/// times are microseconds since 1970-01-01 UTC.
#[derive(Debug, Clone)]
#[cfg_attr(test, derive(Default))]
pub(crate) struct RecordRow {
    pub(crate) scope: Vec<u8>,
    pub(crate) key: Vec<u8>,
    pub(crate) state: KeptState,
    pub(crate) attempt: i64,
    pub(crate) abandoned: i32,
    pub(crate) max_attempts: i32,
    pub(crate) attempt_id: Uuid,
    pub(crate) holder: String,
    pub(crate) fingerprint: Vec<u8>,
    pub(crate) bound: bool,
    pub(crate) open_step: Option<String>,
    pub(crate) content_type: Option<String>,
    /// Missing when it is larger than the ask allows.
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
    /// The state of the record by the database's clock, when `max_attempts` attempts may be abandoned. `None`: the row
    /// is damaged.
    pub(crate) fn state_now(&self, max_attempts: i32) -> Option<RecordState> {
        self.state.by_the_clock(&Facts {
            lease_left: self.lease_left,
            has_open_step: self.open_step.is_some(),
            abandoned: self.abandoned,
            max_attempts,
            retain_left: self.retain_left,
        })
    }

    pub(crate) fn is_of(&self, key: &RecordKey) -> bool {
        self.key == key.key() && self.scope == key.scope()
    }

    /// Whether the attempt with this id has neither ended nor been taken over.
    pub(crate) fn runs_for(&self, attempt_id: Uuid) -> bool {
        self.attempt_id == attempt_id && self.state == KeptState::Running
    }

    /// The size of an outcome that was too large to read.
    pub(crate) fn left_behind(&self) -> Option<usize> {
        let size = self.outcome_size.filter(|_| self.outcome.is_none())?;
        usize::try_from(size).ok()
    }

    /// Whether this outcome was kept.
    fn has(&self, outcome: &Outcome) -> bool {
        self.outcome.as_deref() == Some(outcome.bytes())
            && self.content_type.as_deref() == Some(outcome.content_type())
    }

    /// Sorts `rows` into the order of `keys`.
    pub(crate) fn in_order(mut rows: Vec<Self>, keys: &[RecordKey]) -> Vec<Option<Self>> {
        let mut of = |key: &RecordKey| {
            let at = rows.iter().position(|row| row.is_of(key))?;
            Some(rows.swap_remove(at))
        };
        keys.iter().map(&mut of).collect()
    }

    /// The result for an attempt that this sending did not end. The row was read with an outcome as large as the ask's
    /// ([`FinishParams::size`]).
    pub(crate) fn finished(row: Option<&Self>, params: &FinishParams) -> FinishOutcome {
        match row {
            Some(row) if row.attempt_id != params.attempt_id => FinishOutcome::Superseded,
            Some(row) if ![row.attempt, ANY_ATTEMPT].contains(&params.attempt) => {
                FinishOutcome::Superseded
            }
            Some(row) => match (row.state, &params.end) {
                (KeptState::Running, _) => FinishOutcome::Locked,
                (KeptState::Done, RecordEnd::Done { outcome, .. }) if row.has(outcome) => {
                    FinishOutcome::Ended
                }
                (KeptState::Free | KeptState::Unknown, RecordEnd::Free { .. }) => {
                    FinishOutcome::Ended
                }
                // A transaction may have kept another outcome: that is an end, too.
                _ => FinishOutcome::Superseded,
            },
            None => FinishOutcome::Superseded,
        }
    }
}

impl FinishOutcome {
    /// Whether the row of the running attempt was found.
    pub(crate) fn of(is_mine: bool) -> Self {
        if is_mine {
            Self::Ended
        } else {
            Self::Superseded
        }
    }
}

impl FinishParams {
    /// The size of the outcome in bytes; 0 without one.
    pub(crate) fn size(&self) -> usize {
        match &self.end {
            RecordEnd::Done { outcome, .. } => outcome.bytes().len(),
            RecordEnd::Free { .. } => 0,
        }
    }
}

impl ClaimParams {
    /// The result of a claim that changed nothing.
    pub(crate) fn missed(&self, row: Option<&RecordRow>) -> ClaimOutcome {
        match row {
            Some(row) if row.runs_for(self.attempt_id) => ClaimOutcome::Mine {
                attempt: row.attempt,
            },
            // The record is as it was seen, and yet could not be claimed.
            Some(row) if self.seen == Some(row.attempt) => ClaimOutcome::Locked,
            Some(_) => ClaimOutcome::Missed,
            None => ClaimOutcome::Locked,
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
    /// Replaces `remember` when the record is bound by then.
    pub(crate) remember_begun: i64,
    pub(crate) bound: bool,
    pub(crate) pardon: i32,
    /// Whether an open step stays and makes the record unknown.
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

/// The columns that every engine reads as they are.
macro_rules! plain_columns {
    () => {
        "r.scope, r.idempotency_key, r.state, r.attempt, r.abandoned, r.max_attempts, r.attempt_id, r.holder, \
         r.fingerprint, r.bound, r.content_type"
    };
}
pub(crate) use plain_columns;

/// Every column of the table.
macro_rules! every_record_column {
    () => {
        concat!(
            $crate::store::verbs::record::plain_columns!(),
            ", r.open_step, r.open_step_number, r.outcome, r.began_at, r.attempted_at, r.lease_until, r.done_at, \
             r.retain_until, r.forget_at, r.clean_at"
        )
    };
}
pub(crate) use every_record_column;

/// Reads the columns by their names. [`plain_columns`] and the engine's `read_records!` have them.
impl<'r, R: Row> FromRow<'r, R> for RecordRow
where
    &'static str: ColumnIndex<R>,
    &'r str: Decode<'r, R::Database> + Type<R::Database>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    Vec<u8>: Decode<'r, R::Database> + Type<R::Database>,
    Uuid: Decode<'r, R::Database> + Type<R::Database>,
    bool: Decode<'r, R::Database> + Type<R::Database>,
    i32: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    fn from_row(row: &'r R) -> Result<Self, sqlx::Error> {
        Ok(Self {
            scope: row.try_get("scope")?,
            key: row.try_get("idempotency_key")?,
            state: KeptState::parse(row.try_get("state")?),
            attempt: row.try_get("attempt")?,
            abandoned: row.try_get("abandoned")?,
            max_attempts: row.try_get("max_attempts")?,
            attempt_id: row.try_get("attempt_id")?,
            holder: row.try_get("holder")?,
            fingerprint: row.try_get("fingerprint")?,
            bound: row.try_get("bound")?,
            open_step: row.try_get("open_step")?,
            content_type: row.try_get("content_type")?,
            outcome: row
                .try_get::<Option<Vec<u8>>, _>("outcome")?
                .map(Into::into),
            outcome_size: row.try_get("outcome_size")?,
            began_at: row.try_get("began_at")?,
            attempted_at: row.try_get("attempted_at")?,
            lease_until: row.try_get("lease_until")?,
            done_at: row.try_get("done_at")?,
            lease_left: row.try_get("lease_left")?,
            retain_left: row.try_get("retain_left")?,
            forget_left: row.try_get("forget_left")?,
        })
    }
}
