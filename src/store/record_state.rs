//! What a record is: the state that its row keeps, and what that comes to by the database's clock.

use super::record::RecordRow;
use crate::model::RecordState;

/// The column `state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeptState {
    Running,
    Free,
    Done,
    Unknown,
    Expired,
    /// None of these: the row was edited by hand.
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

    /// As the column has it.
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

impl RecordRow {
    /// What the record was by the database's clock when the row was read, where `max_attempts` attempts may vanish. `None`: the
    /// row is damaged.
    ///
    /// Lists filter by the same rule, in the statement (`record_admin.rs` of each brand).
    pub(crate) fn state_now(&self, max_attempts: i32) -> Option<RecordState> {
        let over = |left: i64| left <= 0;
        Some(match self.state {
            KeptState::Running if !over(self.lease_left) => RecordState::Running,
            KeptState::Running if self.open_step.is_some() => RecordState::Unknown,
            KeptState::Running | KeptState::Free if self.vanished >= max_attempts => {
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
}
