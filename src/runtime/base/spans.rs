//! The spans of `tracing` in the trace of a caller: an acquire, a hold, an attempt. docs/METRICS.md has their fields.
//!
//! Their level is INFO, as that of the HTTP layer's span and of the attribute `tracing::instrument`: a program that
//! logs at INFO has them in its traces, between the spans of its own. A span writes no line into the log. A span that
//! no subscriber wants costs one comparison: its fields are not computed.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tracing::field::{self, Empty};
use tracing::span::Id;
use tracing::{Span, info_span};
use uuid::Uuid;

use super::meter;
use crate::model::{Error, Kind, Loss, Name};

/// The target of all spans, by which a filter can leave them out: `rowlock::spans=off`.
const TARGET: &str = "rowlock::spans";

/// A call that asks for a lock, until it has its answer.
pub(crate) fn acquire(name: &Result<Name, Error>, kind: Kind) -> Span {
    info_span!(
        target: TARGET,
        "rowlock.acquire",
        rowlock.name = name.as_ref().ok().map(field::display),
        rowlock.kind = meter::kind_name(kind),
        rowlock.outcome = Empty,
        rowlock.position = Empty,
    )
}

/// The call has its answer. `position`: where its waiter stood in the queue of the name.
pub(crate) fn acquired(span: &Span, outcome: &'static str, position: Option<i64>) {
    span.record("rowlock.outcome", outcome);
    if let Some(position) = position {
        span.record("rowlock.position", position);
    }
}

/// A guard, from the grant to its release or loss.
pub(crate) fn hold(name: &Name, fence: i64) -> Span {
    info_span!(
        target: TARGET,
        "rowlock.hold",
        rowlock.name = %name,
        rowlock.fence = fence,
        rowlock.loss = Empty,
    )
}

/// An attempt for a key, until it ends. Scope and key stay out of it: traces often go to another company, and the
/// scope may say whose request it is.
pub(crate) fn attempt(attempt: i64) -> Span {
    info_span!(
        target: TARGET,
        "rowlock.attempt",
        rowlock.attempt = attempt,
        rowlock.end = Empty,
    )
}

/// The attempt has ended.
pub(crate) fn ended(span: &Span, end: &'static str) {
    span.record("rowlock.end", end);
}

/// The spans of guards which hold a grant, or one of the grants of a session: by the grant's id.
#[derive(Debug, Default)]
pub(crate) struct HoldSpans(Mutex<BTreeMap<(Uuid, u64), Span>>);

impl HoldSpans {
    pub(crate) fn insert(&self, grant: Uuid, id: &Id, span: Span) {
        self.0.lock().insert((grant, id.into_u64()), span);
    }

    /// A guard is released.
    pub(crate) fn release(&self, grant: Uuid, id: &Id) {
        // A subscriber may do anything when a span ends: not while this is locked.
        let span = self.0.lock().remove(&(grant, id.into_u64()));
        drop(span);
    }

    /// A grant is lost; `None`: the session of all of them.
    pub(crate) fn lose(&self, grant: Option<Uuid>, loss: Loss) {
        let is_its = |(of, _): &(Uuid, u64)| grant.is_none_or(|grant| grant == *of);
        let lost: Vec<Span> = {
            let mut all = self.0.lock();
            let lost = all.extract_if(.., |of, _| is_its(of));
            lost.map(|(_, span)| span).collect()
        };
        for span in lost {
            span.record("rowlock.loss", meter::loss_name(loss));
        }
    }
}
