//! A lease that is renewed: the lease of a lock, of an attempt, or of a session.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::model::{Loss, Moment, RecordKey};
use crate::runtime::held::grant::{Grant, Status};
use crate::runtime::held::session::Session;
use crate::store::verbs::lease::RenewOutcome;

#[derive(Debug, Clone)]
pub(super) enum Renewable {
    Lease(Arc<Grant>),
    Attempt(Arc<Grant<RecordKey>>),
    Session(Arc<Session>),
}

/// Runs the same code for all kinds.
macro_rules! on {
    ($kept:expr, $grant:ident => $body:expr) => {
        match $kept {
            Renewable::Lease($grant) => $body,
            Renewable::Attempt($grant) => $body,
            Renewable::Session(session) => {
                let $grant = &session.grant;
                $body
            }
        }
    };
}

impl Renewable {
    pub(super) fn id(&self) -> Uuid {
        on!(self, grant => grant.id)
    }

    /// The bytes of its name, or of its scope and key together. (A session has a statement of its own.)
    pub(super) fn name_len(&self) -> usize {
        match self {
            Renewable::Lease(grant) => grant.name.as_bytes().len(),
            Renewable::Attempt(grant) => grant.name.scope().len() + grant.name.key().len(),
            Renewable::Session(_) => 0,
        }
    }

    /// How many leases end with it.
    pub(super) fn leases(&self) -> usize {
        match self {
            Renewable::Lease(_) | Renewable::Attempt(_) => 1,
            Renewable::Session(session) => session.locks(),
        }
    }

    pub(super) fn ttl(&self) -> Duration {
        on!(self, grant => grant.ttl)
    }

    pub(super) fn status(&self) -> Status {
        on!(self, grant => grant.status())
    }

    pub(super) fn is_held_at(&self, now: Moment) -> bool {
        on!(self, grant => grant.is_held_at(now))
    }

    pub(super) fn announce(&self, now: Moment) {
        on!(self, grant => grant.announce(now));
    }

    pub(super) fn announce_at(&self) -> Moment {
        on!(self, grant => grant.announce_at())
    }

    pub(super) fn renew_at(&self) -> Moment {
        on!(self, grant => grant.renew_at())
    }

    /// Whether its cap allows another renewal.
    pub(super) fn is_renewable(&self, now: Moment) -> bool {
        on!(self, grant => grant.renewal_ttl(now).is_some())
    }

    pub(super) fn settle(&self, now: Moment, outcome: RenewOutcome, sent: Moment) {
        match outcome {
            RenewOutcome::Live { remaining, .. } => {
                on!(self, grant => grant.confirm(now, sent, remaining));
            }
            RenewOutcome::Gone => match self {
                // Another client may have ended it, but only after it had expired.
                Renewable::Session(session) => session.grant.lose(Loss::Expired),
                Renewable::Lease(grant) => grant.gone(),
                Renewable::Attempt(grant) => grant.gone(),
            },
        }
    }
}
