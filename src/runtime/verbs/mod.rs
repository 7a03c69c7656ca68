//! The verbs that lanes send: the asks, the answer to the caller, and the undo.

pub(crate) mod accept;
pub(crate) mod alone;
pub(crate) mod claim;
mod exchange;
pub(crate) mod finish;
pub(crate) mod join;
pub(crate) mod leave;
pub(crate) mod read;
pub(crate) mod release;
pub(crate) mod step;
pub(crate) mod take;
pub(crate) mod walk;
pub(crate) mod wanted;

use std::time::Duration;

/// How long an undo is repeated.
pub(crate) const MAX_UNDO: Duration = Duration::from_mins(10);
