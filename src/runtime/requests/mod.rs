//! The requests that lanes send: the parameters, the answer to the caller, and the undo.

pub(crate) mod claim;
pub(crate) mod confirm;
pub(crate) mod ending;
pub(crate) mod exchange;
pub(crate) mod finish;
pub(crate) mod form_token;
pub(crate) mod hold;
pub(crate) mod join;
pub(crate) mod leave;
pub(crate) mod pending_grant;
pub(crate) mod read;
mod recheck;
pub(crate) mod release;
pub(crate) mod step;
pub(crate) mod take;

use std::time::Duration;

/// How long an undo is repeated.
pub(crate) const MAX_UNDO: Duration = Duration::from_mins(10);
