//! The row of a record, as every engine reads it. A new field of a record is added here.

use std::sync::Arc;

use sqlx::{ColumnIndex, Decode, FromRow, Row, Type};
use uuid::Uuid;

use super::kept_state::KeptState;
use crate::model::{Outcome, RecordKey, RecordState};

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

/// How long an attempt that was abandoned counts, from the end of its lease, in microseconds: an hour. So a key that
/// is poisoned is free again an hour after the last attempt. (The statements have this time as a literal.)
const COUNTS_FOR: i64 = 3_600_000_000;

impl RecordRow {
    /// The state of the record by the database's clock when its row was read, when `max_attempts` attempts in a row
    /// may be abandoned, each within [`COUNTS_FOR`] after the one before. `None`: the row is damaged.
    ///
    /// Lists filter by the same rule in SQL (each engine's `record_admin.rs`).
    pub(crate) fn state_now(&self, max_attempts: i32) -> Option<RecordState> {
        let over = |left: i64| left <= 0;
        let counts = self.lease_left > -COUNTS_FOR;
        Some(match self.state {
            KeptState::Running if !over(self.lease_left) => RecordState::Running,
            // A step that must not be repeated has begun, and may have happened.
            KeptState::Running if self.open_step.is_some() => RecordState::Unknown,
            KeptState::Running | KeptState::Free if counts && self.abandoned >= max_attempts => {
                RecordState::Poisoned
            }
            KeptState::Running => RecordState::Lapsed,
            KeptState::Free => RecordState::Free,
            KeptState::Unknown => RecordState::Unknown,
            KeptState::Done if self.retain_left.is_some_and(over) => RecordState::Expired,
            KeptState::Done => RecordState::Done,
            KeptState::Expired => RecordState::Expired,
            KeptState::Damaged => return None,
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
    pub(crate) fn has(&self, outcome: &Outcome) -> bool {
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
            $crate::store::verbs::record_row::plain_columns!(),
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
