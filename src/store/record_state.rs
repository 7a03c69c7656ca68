//! The state that the row of a record keeps. What it comes to by the database's clock says [`RecordRow`](super::record::RecordRow).

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
