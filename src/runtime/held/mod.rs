//! What this client holds: grants, their renewal, and the guards that end them.

pub(crate) mod attempt_guard;
pub(crate) mod grant;
mod grant_spans;
pub(crate) mod guard;
pub(crate) mod guards;
pub(crate) mod holdings;
pub(crate) mod on_end;
pub(crate) mod renew;
pub(crate) mod session;
pub(crate) mod session_life;
pub(crate) mod status;
