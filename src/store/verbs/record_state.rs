//! The state of a record: the state in its row, and the state that follows from it by the database's clock.

use crate::model::RecordState;

/// The column `state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(Default))]
pub(crate) enum KeptState {
    Running,
    Free,
    Done,
    Unknown,
    Expired,
    /// None of these: the row was edited by hand.
    #[cfg_attr(test, default)]
    Damaged,
}

impl KeptState {
    pub(crate) fn parse(state: &str) -> Self {
        let all = [
            Self::Running,
            Self::Free,
            Self::Done,
            Self::Unknown,
            Self::Expired,
        ];
        let named = all.into_iter().find(|kept| kept.name() == state);
        named.unwrap_or(Self::Damaged)
    }

    /// The value in the column.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Free => "free",
            Self::Done => "done",
            Self::Unknown => "unknown",
            Self::Expired => "expired",
            Self::Damaged => "damaged",
        }
    }
}

/// What the state of a record depends on, besides the column.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    /// How much of the attempt's lease is left, in microseconds.
    pub(crate) lease_left: i64,
    /// A step that must not be repeated has begun, and may have happened.
    pub(crate) has_open_step: bool,
    /// How many attempts in a row were abandoned, and how many may, each within [`COUNTS_FOR`] after the one before.
    pub(crate) abandoned: i32,
    pub(crate) max_attempts: i32,
    /// For how many more microseconds the outcome is retained.
    pub(crate) retain_left: Option<i64>,
}

/// How long an attempt that was abandoned counts, from the end of its lease, in microseconds: an hour. So a key that
/// is poisoned is free again an hour after the last attempt. (The statements have this time as a literal.)
const COUNTS_FOR: i64 = 3_600_000_000;

impl KeptState {
    /// The state of the record by the database's clock when its row was read. `None`: the row is damaged.
    ///
    /// Lists filter by the same rule in SQL (each engine's `record_admin.rs`).
    pub(crate) fn by_the_clock(self, facts: &Facts) -> Option<RecordState> {
        let over = |left: i64| left <= 0;
        let counts = facts.lease_left > -COUNTS_FOR;
        Some(match self {
            Self::Running if !over(facts.lease_left) => RecordState::Running,
            Self::Running if facts.has_open_step => RecordState::Unknown,
            Self::Running | Self::Free if counts && facts.abandoned >= facts.max_attempts => {
                RecordState::Poisoned
            }
            Self::Running => RecordState::Lapsed,
            Self::Free => RecordState::Free,
            Self::Unknown => RecordState::Unknown,
            Self::Done if facts.retain_left.is_some_and(over) => RecordState::Expired,
            Self::Done => RecordState::Done,
            Self::Expired => RecordState::Expired,
            Self::Damaged => return None,
        })
    }
}
