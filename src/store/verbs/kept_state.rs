//! The state in the row of a record. (`record_row.rs` has the state that follows from it by the database's clock.)

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
