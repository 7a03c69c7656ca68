//! How a grant stands, and what it is of.

use uuid::Uuid;

use crate::model::{Loss, Moment, Name, RecordKey};

/// What a grant is of.
pub(crate) trait GrantSubject {
    /// Its name in the metrics.
    const WHAT: &'static str;
}

impl GrantSubject for Name {
    const WHAT: &'static str = "lock";
}

impl GrantSubject for RecordKey {
    const WHAT: &'static str = "attempt";
}

impl GrantSubject for Uuid {
    const WHAT: &'static str = "session";
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Status {
    /// Counted from before the last confirmed request was sent.
    pub(crate) deadline: Moment,
    /// A renewal is overdue, or the cap is near.
    pub(crate) at_risk: bool,
    pub(crate) end: Option<GrantEnd>,
    /// The number of guards.
    pub(crate) guards: u32,
}

impl Status {
    /// The status of a grant that ends with its session.
    pub(crate) fn within(self, session: &Self) -> Self {
        Self {
            deadline: self.deadline.min(session.deadline),
            at_risk: self.at_risk || session.at_risk,
            end: self.end.or(session.end),
            ..self
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GrantEnd {
    Released,
    Lost(Loss),
}
