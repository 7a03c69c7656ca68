//! Who may see the console, and who may act in it.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;

/// What the sender of a request may do in the console.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// Nothing: the answer is 403.
    None,
    /// See all pages.
    Read,
    /// See all pages, and act: free locks, end sessions, decide about records.
    Act {
        /// Who it is, for the log lines of each action, and for who waits for a name that they pause.
        who: String,
    },
}

/// The name that a person gave when they logged in with the console's [token](crate::Console::token). The console puts
/// it into the extensions of the request, before it asks the closure for the [`Access`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visitor {
    /// The name. Nothing proves it: everybody who knows the token may give any name.
    pub name: String,
}

/// The application's decision.
#[derive(Clone)]
pub(crate) struct Policy(Arc<dyn Fn(&Parts) -> Access + Send + Sync>);

impl Policy {
    pub(crate) fn new(access: impl Fn(&Parts) -> Access + Send + Sync + 'static) -> Self {
        Self(Arc::new(access))
    }

    pub(crate) fn of(&self, parts: &Parts) -> Access {
        (self.0)(parts)
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Policy")
    }
}
