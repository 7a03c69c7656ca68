//! The verbs that lanes send: what is asked, how the caller is answered, and what undoes it.

pub(crate) mod alone;
pub(crate) mod claim;
pub(crate) mod finish;
pub(crate) mod read;
pub(crate) mod release;
pub(crate) mod step;
pub(crate) mod take;
pub(crate) mod undo;
pub(crate) mod walk;

use std::time::Duration;

/// How long an undo is repeated.
pub(crate) const MAX_UNDO: Duration = Duration::from_mins(10);
